"""The queue of a delayed exchange at its owner: messages leave it in the order of their due times.

What comes is stamped with its due time, which the record keeps in the place of a time to live (`stamped`). The due
index is a fold of the log (`journal.due_index`): appends add to it, and an owner that begins reads what waits, in
slices. Rows of messages that left otherwise are void.

What is due is set aside, read from the disk if it is there only, a batch in the order of places, and held as a dead
letter (reason `due`), which publishes it once to each target, over failovers (`dead_lettering.replicated`). So many are
held at once that a backlog of very many does not stand in memory.

A message with a key (header `x-delay-key`) takes the place of the one that waits under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.properties import properties_of, routing_headers
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.delays import DELAY_KEY, DELAY_MS_MAX, delay_key, due_ms
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.due_index import DueIndex
from clusterbroker.journal.layout import PERSISTENT, Location
from clusterbroker.journal.record import Message, read_records

BATCH: Final = 256
"""Messages that become due together: read from the disk at once."""
HELD_MAX: Final = 1024
"""Due, and not yet at all their targets."""
READ_MAX: Final = 4096
READ_BYTES_MAX: Final = 4 << 20
"""Records that an owner reads at once when it begins; one may be longer."""
LOOK_MS: Final = 1000
"""So often a queue with waiting messages looks at the clock, which may have jumped."""
_KEY: Final = DELAY_KEY.encode()


def stamped(message: Message, now_ms: int) -> Message:
    """The message as it waits: its time to live is the absolute due time, in ms since 1970, and it outlives its node.
    Whoever took it from its publisher set its time."""
    taken_ms = message.time_ms or now_ms
    due = due_ms(routing_headers(message), taken_ms)
    return with_due(message, taken_ms if due is None else due, now_ms)


def with_due(message: Message, at_ms: int, now_ms: int) -> Message:
    """The message as one that waits until then, for ten years at most."""
    return Message(
        message.address, message.payload, message.header_length, message.flags | PERSISTENT, 0,
        message.time_ms or now_ms, max(1, min(at_ms, now_ms + DELAY_MS_MAX)), message.format,
    )  # fmt: skip


class DelayQueue(Queue):
    """See the module."""

    __slots__ = ("_fetching", "_firing", "_index", "_keys", "_read_end", "_read_from")

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        super().__init__(entity, settings, ring, host, now_ms)
        self._begin()

    def begin_alone(self) -> None:
        """The queue has no copies: what its log holds is all there is."""
        self.dead_letters.begin_epoch()
        self._begin()

    def _begin(self) -> None:
        self._index = DueIndex()
        self._keys: dict[str, int] = {}
        """The newest message of each key, which may have left."""
        self._read_from, self._read_end = 1, self.ring.next_seq
        self._fetching = self._firing = False
        self.ring.mark()

    def message_count(self, _: int) -> int:
        return self.ring.ready

    # -- in -----------------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        self._append(messages, now_ms)
        self._published(ticket, now_ms, len(messages))

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        messages = [message for _, message, _, _ in read_records(records)]
        self.publish(messages, ticket, now_ms)
        return len(messages)

    def accept_dead_letter(self, message: Message) -> None:
        self._append((message,), self.host.now_ms)

    def _append(self, messages: Sequence[Message], now_ms: int) -> None:
        seq = self.ring.next_seq
        waiting = [stamped(message, now_ms) for message in messages]
        self.ring.append(waiting)
        for place, message in enumerate(waiting):
            self._note(seq + place, message)

    def _note(self, seq: int, message: Message) -> None:
        """A message waits."""
        if _KEY in message.header and (key := delay_key(routing_headers(message))):
            known = self._keys.get(key, 0)
            self._keys[key] = max(seq, known)
            older = min(seq, known)
            if older and older != seq and self.ring.set_aside(older):
                self.ring.settle(older)
            elif older == seq and known != seq:  # read late: another one has come since
                if self.ring.set_aside(seq):
                    self.ring.settle(seq)
                return
        self._index.add(message.ttl_ms, seq)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if self.paused:
            return
        if self._read_from < self._read_end:
            if not self._fetching:
                self._read()
        elif not self.halted:
            self._fire(now_ms)

    def _read(self) -> None:
        """The next slice of what waited when this owner began."""
        index, first, size, absent = self._index, self._read_from, 0, []
        rows = self.ring.living(first, self._read_end - 1, READ_MAX)
        self._read_from = rows[-1][0] + 1 if len(rows) == READ_MAX else self._read_end
        for seq, state, *_ in rows:
            if state != READY:
                continue
            if (message := self.ring.message(seq)) is not None:
                self._note(seq, message)
                continue
            absent.append(self.ring.location(seq))
            size += absent[-1][3]
            if size >= READ_BYTES_MAX:
                self._read_from = seq + 1
                break
        if not absent:
            self.host.later(self)
            return
        self._fetching = True

        def read(messages: Sequence[Message]) -> None:
            if self._index is not index:
                return
            self._fetching = False
            for location, message in zip(absent, messages, strict=True):
                if self.ring.living(location[0], location[0], 1):
                    self._note(location[0], message)
            self.ring.mark()

        def again() -> None:
            """Some cannot be read, and are held back by now."""
            if self._index is index:
                self._fetching = False
                self._read_from = first
                self.ring.mark()

        self.host.fetch(self, absent, read, again)

    def _fire(self, now_ms: int) -> None:
        """What is due begins its way."""
        letters = self.dead_letters.replicated
        while letters is not None and not self._firing and len(letters) < HELD_MAX:
            if self.host.effort.spent:
                self.host.later(self)
                return
            seqs = self._index.take(now_ms, BATCH)
            if not seqs:
                if not self._index:
                    self._keys.clear()
                return
            due = [seq for seq in seqs if self.ring.set_aside(seq)]
            absent = sorted((self.ring.location(seq) for seq in due if self.ring.message(seq) is None), key=_place)
            if absent:
                self._load(due, absent)
            else:
                self._hold(due)

    def _load(self, due: list[int], absent: list[Location]) -> None:
        """Holds what is due when its content is here; what cannot be read stays where it is, and is nobody's."""
        index, self._firing = self._index, True

        def loaded(locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location]) -> None:
            if self._index is not index or self.deleted:
                return
            self._firing = False
            self.ring.fill(locations, messages)
            unread = {where[0] for where in asked}.difference(where[0] for where in locations)
            self._hold([seq for seq in due if seq not in unread])

        self.host.load(self, absent, loaded)

    def _hold(self, due: Sequence[int]) -> None:
        for seq in due:
            message = self.ring.message(seq)
            if self._keys and message is not None and _KEY in message.header:
                key = delay_key(properties_of(message).headers)
                if self._keys.get(key) == seq:
                    del self._keys[key]
            self.dead_letters.give_up(seq, message, "due")
            self.host.effort.popped()

    def _schedule(self, now_ms: int) -> None:
        if self.paused:
            return
        letters, first = self.dead_letters.replicated, self._index.first_ms
        again = 0 if letters is None else letters.wake_ms(now_ms)
        browsed = 0 if self.browsing is None else self.browsing.due_ms
        look = min(first, now_ms + LOOK_MS) if first > now_ms and not self.halted else 0
        if wishes := [at_ms for at_ms in (again, browsed, look) if at_ms]:
            self.host.wake(self, min(wishes))

    # -- ownership, and what an operator asks -------------------------------------------------------------------

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._begin()

    def end_epoch(self) -> None:
        super().end_epoch()
        self._index = DueIndex()
        self._keys = {}

    @property
    def is_read(self) -> bool:
        """All that waits is known."""
        return self._read_from >= self._read_end and not self._fetching

    def waiting(self, first_ms: int, last_ms: int, most: int) -> list[int]:
        """The seqs of what is due in this span, in order; at most so many, and some that left meanwhile."""
        return [seq for _, seq in self._index.within(first_ms, last_ms, most)]

    def under(self, key: str) -> list[int]:
        """The message that waits under this key, if there is one."""
        seq = self._keys.get(key, 0)
        return [seq] if seq and any(row[1] == READY for row in self.ring.living(seq, seq, 1)) else []

    def reschedule(self, seq: int, message: Message, at_ms: int) -> None:
        """What is ready waits anew until `at_ms`, in the same group commit: at no time in both places."""
        self.ring.settle(seq)
        waiting = with_due(message, at_ms, self.host.now_ms)
        first = self.ring.next_seq
        self.ring.append((waiting,))
        self._note(first, waiting)


def _place(location: Location) -> tuple[int, int]:
    return location[1], location[2]
