"""A queue of a pool whose messages nobody consumes: its owner sorts each, and it leaves as a dead letter does.

Each message is looked at once per epoch, in the order of the queue, when its content is here. What is sorted is set
aside and held, with a reason that says where it goes; `dead_lettering.replicated` publishes it once to each target,
over failovers. So many are held at once that a backlog of very many does not stand in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.message import with_flags
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.commands import EndPoolQueue
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message, read_records

HELD_MAX: Final = 1024
"""On their way at once."""
READ_MAX: Final = 1024
READ_BYTES_MAX: Final = 4 << 20
"""Looked at in one turn; one message may be longer."""
AGAIN_MS: Final = 1000
"""A command that could not be ordered is ordered again after it."""


class PassingQueue(Queue):
    """See the module. `host` is the node."""

    __slots__ = ("_again_ms", "_ending", "_fetching", "_next", "_part", "_reading", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, part: PoolQueue
    ) -> None:
        self.node = node
        self._part = part
        self._next = 1
        self._reading = 0
        self._fetching = False
        super().__init__(entity, settings, ring, node, now_ms)

    @property
    def pool(self) -> Pool | None:
        """None: it ends just now."""
        return self.node.map.pools.get(self._part.pool_id)

    def begin_alone(self) -> None:
        """The queue has no copies: what its log holds is all there is."""
        self.dead_letters.begin_epoch()
        self._begin()

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._begin()

    def _begin(self) -> None:
        self._next = 1
        self._reading += 1
        self._fetching = False
        self._again_ms = 0
        """When a command is ordered again that could not be ordered."""
        self._ending = False
        self.ring.mark()

    def end_epoch(self) -> None:
        super().end_epoch()
        self._reading += 1

    # -- in: all of it outlives its node ------------------------------------------------------------------------

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        super().publish([_lasting(message) for message in messages], ticket, now_ms)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        messages = [message for _, message, _, _ in read_records(records)]
        self.publish(messages, ticket, now_ms)
        return len(messages)

    def accept_dead_letter(self, message: Message) -> None:
        super().accept_dead_letter(_lasting(message))

    def kill(self, message: Message) -> None:
        super().kill(_lasting(message))

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        super()._serve(now_ms)
        if not (self.paused or self.halted) and self.dead_letters.replicated is not None and self.pool is not None:
            self._look()
            self._pass()

    def _look(self) -> None:
        """The next messages, as far as they are here; what is on the disk only is read first."""
        if self._fetching:
            return
        rows = self.ring.living(self._next, self.ring.next_seq - 1, READ_MAX)
        absent, size = [], 0
        for seq, state, *_ in rows:
            if state == READY:
                message = self.ring.message(seq)
                if message is None:
                    absent.append(self.ring.location(seq))
                    size += absent[-1][3]
                elif not absent:
                    self._came(seq, message)
            if absent and size >= READ_BYTES_MAX:
                break
            if not absent:
                self._next = seq + 1
        if absent:
            self._read(absent)
        elif len(rows) == READ_MAX:
            self.node.later(self)
        else:
            self._next = self.ring.next_seq

    def _read(self, absent: list[tuple[int, int, int, int]]) -> None:
        reading, last = self._reading, absent[-1][0]
        self._fetching = True

        def read(messages: Sequence[Message]) -> None:
            if self._reading != reading:
                return
            self._fetching = False
            found = {where[0]: message for where, message in zip(absent, messages, strict=True)}
            for seq, state, *_ in self.ring.living(self._next, last, READ_MAX):
                message = found.get(seq) or self.ring.message(seq)
                if state == READY and message is not None:
                    self._came(seq, message)
            self._next = last + 1
            self.ring.mark()

        def damaged() -> None:
            """Some cannot be read, and are held back by now."""
            if self._reading == reading:
                self._fetching = False
                self.ring.mark()

        self.node.fetch(self, absent, read, damaged)

    def _hold(self, seq: int, reason: Reason) -> None:
        """What was set aside leaves."""
        letters = self.dead_letters.replicated
        assert letters is not None, "an owner has begun"
        letters.hold(seq, reason)
        self.node.effort.popped()

    @property
    def _has_room(self) -> bool:
        letters = self.dead_letters.replicated
        return letters is not None and len(letters) < HELD_MAX and not self.node.effort.spent

    # -- the end of a pool --------------------------------------------------------------------------------------

    @property
    def _is_done(self) -> bool:
        """Nothing is here any more, and no group of the pool is left that something could come from."""
        ring = self.ring
        is_empty = self._next >= ring.next_seq and not ring.living(1, ring.next_seq - 1, 1)
        return is_empty and not self.node.map.pools.groups(self._part.pool_id)

    def _end_queue(self) -> None:
        """Of a pool that is deleted."""
        if self._ending or self.node.now_ms < self._again_ms:
            return
        self._ending = True
        entity = self.entity
        command = EndPoolQueue(pool_id=self._part.pool_id, queue_id=entity.queue_id, epoch=entity.epoch)

        def done(applied: Applied) -> None:
            if not self.deleted and self.ring.owner is self:
                self._ending = False
                self._again_ms = 0 if applied.ok and applied.result else self.node.now_ms + AGAIN_MS
                self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._again_ms > now_ms and not self.paused:
            self.node.wake(self, self._again_ms)

    @abstractmethod
    def _came(self, seq: int, message: Message) -> None:
        """A message is looked at for the first time in this epoch."""

    @abstractmethod
    def _pass(self) -> None:
        """Whatever may leave now leaves."""

    def pool_changed(self) -> None:
        """The pool is another one in the map."""
        self.ring.mark()

    def _wants_turn(self, advanced: bool) -> bool:
        return super()._wants_turn(advanced) or self._next < self.ring.next_seq


def _lasting(message: Message) -> Message:
    return with_flags(message, message.flags | PERSISTENT)
