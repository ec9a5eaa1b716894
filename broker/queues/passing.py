"""A queue whose messages nobody consumes: its owner sorts each, and it leaves as a dead letter does.

Each message is looked at once per epoch, in the order of the queue, when its content is here. What is sorted is set
aside and held, with a reason that says where it goes; `dead_lettering.replicated` publishes it once to each target,
over failovers. So many are held at once that a backlog of very many does not stand in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.message import with_flags
from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message

HELD_MAX: Final = 1024
"""On their way at once."""
READ_MAX: Final = 1024
READ_BYTES_MAX: Final = 4 << 20
"""Looked at in one turn; one message may be longer."""


class PassingQueue(Queue):
    """See the module."""

    __slots__ = ("_fetched", "_fetched_end", "_fetching", "_next", "_reading")

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self._next = 1
        self._reading = 0
        self._fetching = False
        self._fetched: deque[tuple[int, Message]] = deque()
        """Read from the disk, and not looked at yet; nothing behind them is before they have been."""
        self._fetched_end = 0
        super().__init__(entity, settings, ring, host, now_ms)

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
        self._fetched.clear()
        self.ring.mark()

    def end_epoch(self) -> None:
        super().end_epoch()
        self._reading += 1

    # -- in: all of it outlives its node ------------------------------------------------------------------------

    def kept(self, message: Message) -> Message:
        """As it stands in the log."""
        return with_flags(message, message.flags | PERSISTENT)

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        super().publish([self.kept(message) for message in messages], ticket, now_ms)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        return self._publish_each(records, ticket, now_ms)

    def are_fleeting(self, _: Sequence[Message], /) -> bool:
        return False

    def accept_dead_letter(self, message: Message) -> None:
        super().accept_dead_letter(self.kept(message))

    def kill(self, message: Message) -> None:
        super().kill(self.kept(message))

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        super()._serve(now_ms)
        if not self.paused and self.dead_letters.replicated is not None and self.passes:
            self._look()
            self._pass()

    def _follow(self, now_ms: int) -> None:
        had_room = self._has_room
        super()._follow(now_ms)
        if self._has_room and not had_room:  # some have left: what waited for that goes on
            self.ring.mark()

    @property
    def passes(self) -> bool:
        """Whether anything is looked at now."""
        return not self.halted

    def _look(self) -> None:
        """The next messages, as far as they are here; what is on the disk only is read first."""
        if self._fetching:
            return
        if self._fetched:
            self._look_at_fetched()
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
                if self.host.effort.spent:
                    self.host.later(self)
                    return
        if absent:
            self._read(absent)
        elif len(rows) == READ_MAX:
            self.host.later(self)
        else:
            self._next = self.ring.next_seq

    def _look_at_fetched(self) -> None:
        while self._fetched:
            seq, message = self._fetched.popleft()
            if any(state == READY for _, state, *_ in self.ring.living(seq, seq, 1)):
                self._came(seq, message)
            self._next = seq + 1
            if self._fetched and self.host.effort.spent:
                self.host.later(self)
                return
        self._next = self._fetched_end
        self.ring.mark()

    def _read(self, absent: list[tuple[int, int, int, int]]) -> None:
        reading, last = self._reading, absent[-1][0]
        self._fetching = True

        def read(messages: Sequence[Message]) -> None:
            if self._reading != reading:
                return
            self._fetching = False
            for seq, _, message in self._read_back(absent, messages, self._next, last, READ_MAX):
                self._fetched.append((seq, message))
            self._fetched_end = last + 1
            self._look_at_fetched()

        def damaged() -> None:
            """Some cannot be read, and are held back by now."""
            if self._reading == reading:
                self._fetching = False
                self.ring.mark()

        self.host.fetch(self, absent, read, damaged)

    def _hold(self, seq: int, reason: Reason) -> None:
        """What was set aside leaves."""
        letters = self.dead_letters.replicated
        assert letters is not None, "an owner has begun"
        letters.hold(seq, reason)
        self.host.effort.popped()

    @property
    def _has_room(self) -> bool:
        letters = self.dead_letters.replicated
        return letters is not None and len(letters) < HELD_MAX and not self.host.effort.spent

    @abstractmethod
    def _came(self, seq: int, message: Message) -> None:
        """A message is looked at for the first time in this epoch."""

    @abstractmethod
    def _pass(self) -> None:
        """Whatever may leave now leaves."""

    def _wants_turn(self, advanced: bool) -> bool:
        return super()._wants_turn(advanced) or self._next < self.ring.next_seq
