"""The queue of a delayed exchange at its owner: messages leave it in the order of their due times.

What comes is stamped with its due time, which the record keeps in the place of a time to live (`stamped`). The due
index is a fold of the log (`journal.due_index`): appends add to it, and an owner that begins reads what waits, in
slices. Rows of messages that left otherwise are void.

What is due is set aside, read from the disk if it is there only, and goes to the queues behind the exchange
(`due_letters`), each of which has its lane (`lanes`). What no lane takes now is put back as it was, and parked.

A message with a key (header `x-delay-key`) takes the place of the one that waits under it.

Each turn is bounded by the node's effort, which counts bytes of headers too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import Final

from msgspec.structs import replace

from clusterbroker.broker.content.delays import due_of, kept_header, note_waiting, waiting
from clusterbroker.broker.content.message import with_properties
from clusterbroker.broker.content.properties import properties_of, routing_headers
from clusterbroker.broker.delay.delay_keys import DelayKeys
from clusterbroker.broker.delay.due_letters import HELD_MAX, LETTER_BYTES, RUN_BYTES, DueLetters, Letter
from clusterbroker.broker.delay.lanes import RETRY_FIRST_MS, Lane
from clusterbroker.broker.delay.own_targets import for_all, own_targets
from clusterbroker.broker.delay.pace import Pace
from clusterbroker.broker.queues.dead_lettering.replicated import DUE
from clusterbroker.broker.queues.effort import LOOKED_BYTES
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import UNACKED
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.delays import TARGETS, delay_key, due_ms
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.exchange_rules import DELAY_RATE
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.due_index import DueIndex
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

BATCH: Final = 256
"""Messages that become due together: read from the disk at once."""
BATCH_BYTES: Final = 4 << 20
"""Of them; one may be longer."""
READ_MAX: Final = 4096
READ_BYTES_MAX: Final = 4 << 20
"""Records that an owner reads at once when it begins; one may be longer."""
LOOK_MS: Final = 1000
"""So often a queue with waiting messages looks at the clock, which may have jumped."""
UNREAD_MS: Final = 60_000
"""So often it tries a message that could not be read when it was due."""
FOREVER: Final = 2**62

__all__ = ["BATCH", "HELD_MAX", "DelayQueue"]


class DelayQueue(Queue):
    """See the module."""

    __slots__ = (
        "_aside", "_fetching", "_index", "_keys", "_pace", "_read_end", "_read_from", "_taken", "_unnoted", "letters",
    )  # fmt: skip

    letters: DueLetters | None

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self.letters = None
        self._keys = DelayKeys(self._waits)
        self._pace = Pace(entity.arguments.get(DELAY_RATE))
        super().__init__(entity, settings, ring, host, now_ms)
        self._begin()

    def begin_alone(self) -> None:
        """The queue has no copies: what its log holds is all there is."""
        self.dead_letters.begin_epoch()
        self._begin()
        self._resume()

    def _begin(self) -> None:
        self._index = DueIndex()
        self._index.reserve(self.ring.ready)
        self._keys.clear()
        self._read_from, self._read_end = 1, self.ring.next_seq
        self._fetching = False
        self._unnoted: tuple[list[int], list[Message]] = [], []  # read, and not in the index yet
        self._taken: deque[tuple[int, Message | None, Lane | None]] = deque()
        """Set aside because they are due, and the lane in which they were parked; without content: on its way."""
        self._aside: set[int] = set()  # due while an operator moves them
        self.ring.mark()

    def _resume(self) -> None:
        self.letters = DueLetters(self, self)
        self.letters.resume()

    def message_count(self, _: int) -> int:
        return self.ring.ready

    # -- in -----------------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        self._append(messages, now_ms)
        self._published(ticket, now_ms, len(messages))

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        return self._publish_each(records, ticket, now_ms)

    def are_fleeting(self, _: Sequence[Message], /) -> bool:
        """What waits comes to the log, transient messages too, and their numbers with them."""
        return False

    def keeps_times_of(self, _: bytes) -> bool:
        """A delay counts from where its message was taken."""
        return True

    def accept_dead_letter(self, message: Message) -> None:
        self._append((message,), self.host.now_ms)

    @property
    def rejects(self) -> bool:
        return super().rejects or self._keys.is_full

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        if named is not None and self.log.producers.knows(*named):
            return True
        accepted = self.takes((message,), now_ms)
        if not accepted and named is not None:  # the log has to know that it is not here
            self.log.producers.refuse(*named)
        return accepted

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        """One that takes the place of another has the room of that."""
        if self.limits.closed:
            return False
        if not self.rejects:
            return True
        keys = [self._time_and_key(message, now_ms)[1] for message in messages]
        new = {key for key in keys if key and not self._keys.under(key)}
        if new and not self._keys.has_room(len(new)):
            return False
        if not self.limits.rejects:
            return True
        replaced = [self._keys.under(key) for key in {key for key in keys if key and key not in new}]
        in_place = len(keys) - sum(not key for key in keys) - len(new)
        if not replaced:
            return self.limits.takes(messages, now_ms)
        ring = self.ring
        freed = sum(_body_bytes(ring, seq) for seq in replaced)
        count = len(messages) - in_place
        size = sum(message.body_length for message in messages) - freed
        return self.limits.has_room(now_ms, count, max(size, 0) if count == 0 else max(size, 1))

    def _time_and_key(self, message: Message, now_ms: int) -> tuple[int, str]:
        """When a message is due and under which key it waits; whoever took it from its publisher set its time. 0: it is
        not delayed."""
        taken_ms = message.time_ms or now_ms
        said = due_of(message, taken_ms)
        if said is None:
            headers = routing_headers(message)
            said = due_ms(headers, taken_ms) or 0, delay_key(headers)
        return said

    def _append(self, messages: Sequence[Message], now_ms: int) -> None:
        seq, messages = self.ring.next_seq, [for_all(message) for message in messages]
        said = [self._time_and_key(message, now_ms) for message in messages]
        self.ring.append(
            [
                waiting(message, now_ms, due or message.time_ms or now_ms)
                for message, (due, _) in zip(messages, said, strict=True)
            ]
        )
        for place, (due, key) in enumerate(said):
            due = due or messages[place].time_ms or now_ms
            if key and (older := self._keys.note(key, seq + place)):
                self._drop(older)
            self._index.add(due, seq + place)

    def _drop(self, seq: int) -> None:
        """A waiting message leaves, if it does still wait."""
        if self.ring.set_aside(seq):
            self.ring.settle(seq)
            self._index.void(seq)

    def _note_all(self, seqs: list[int], messages: list[Message]) -> int:
        """As `_note`, of messages that were read when this owner began; so many are noted when the effort is spent."""
        at, effort = 0, self.host.effort
        while at < len(seqs) and not effort.spent:
            first = at
            at, looked = note_waiting(seqs, messages, at, self._index, effort.left * LOOKED_BYTES)
            effort.looked_at(at - first, looked)
            if at < len(seqs) and not effort.spent:
                self._note(seqs[at], messages[at])
                at += 1
        return at

    def _note(self, seq: int, message: Message) -> None:
        """A message waits that was read, or that an operator gave another time. It takes nobody's place: who had to go
        has gone in the group in which the newer one came. One that is due has no key, for a newer one may wait under
        it: what nobody took is appended anew, so its number says nothing of its age."""
        if message.ttl_ms > self.host.now_ms and (key := self._key(message)):
            self._keys.note(key, seq)
        self._index.add(message.ttl_ms, seq)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if self.paused:
            return
        if not self.is_read:
            if not self._fetching:
                self._read()
        elif not self.halted:
            self._fire(now_ms)

    def _follow(self, now_ms: int) -> None:
        if self.letters is not None and not self.paused:
            self.letters.turn(now_ms)
            if self.ring.needs_write:
                self.host.write(self)
        super()._follow(now_ms)

    def _wants_turn(self, advanced: bool) -> bool:
        return super()._wants_turn(advanced) or (self.letters is not None and len(self.letters) > 0)

    def _read(self) -> None:
        """The next slice of what waited when this owner began."""
        if not self._note_slice():
            self.host.later(self)
            return
        if self._read_from >= self._read_end:
            self.ring.mark()
            return
        index, first = self._index, self._read_from
        self._read_from, here_seqs, here, absent = self.ring.waiting(
            first, self._read_end - 1, READ_MAX, READ_BYTES_MAX
        )
        if (noted := self._note_all(here_seqs, here)) < len(here):
            self._read_from = here_seqs[noted]
            absent = [place for place in absent if place[0] < self._read_from]
        if not absent:
            self.host.later(self)
            return
        self._fetching = True

        def read(messages: Sequence[Message]) -> None:
            if self._index is not index:
                return
            self._fetching = False
            self._unnoted = [location[0] for location in absent], list(messages)
            self.ring.mark()

        def again() -> None:
            """Some cannot be read, and are held back by now."""
            if self._index is index:
                self._fetching = False
                self._read_from = first
                self.ring.mark()

        self.host.fetch(self, absent, read, again)

    def _note_slice(self) -> bool:
        """Notes what was read, if it still waits. False: the effort is spent before its end."""
        seqs, messages = self._unnoted
        if not self.ring.all_ready(seqs):
            waits = [place for place, seq in enumerate(seqs) if self._waits(seq)]
            seqs, messages = [seqs[place] for place in waits], [messages[place] for place in waits]
        noted = self._note_all(seqs, messages)
        self._unnoted = seqs[noted:], messages[noted:]
        return noted == len(seqs)

    def _fire(self, now_ms: int) -> None:
        """What is due begins its way."""
        letters = self.letters
        while letters is not None and letters.has_room and not self._fetching:
            if self.host.effort.spent:
                self.host.later(self)
                return
            if not self._pace.has_room(now_ms):
                return
            if not self._taken and not self._take(letters, now_ms):
                return
            if not self._has_content():
                return
            apart = 0
            while self._taken and letters.has_room and not self.host.effort.spent and self._pace.has_room(now_ms):
                apart = apart or self._offer_together(letters, now_ms)
                if not apart:
                    continue
                apart -= 1
                self._pace.left -= 1
                seq, message, lane = self._taken.popleft()
                assert message is not None, "its content is here"
                self._offer(letters, seq, message, lane, now_ms)

    def _take(self, letters: DueLetters, now_ms: int) -> bool:
        """Sets aside what is due next; parked ones first. Whether there are any."""
        for lane in tuple(letters.lanes.values()):
            room = lane.quota - lane.underway
            if lane.parked and lane.again_ms <= now_ms and room > 0 and not lane.stalled and not lane.owed:
                for seq in lane.parked.take(FOREVER, min(BATCH, room)):
                    self._set_aside(seq, lane)
                if not self._taken or not lane.takes(letters.next_number, now_ms):
                    lane.again_ms = max(lane.again_ms, now_ms + RETRY_FIRST_MS)
        while not self._taken:
            seqs = self._index.take(now_ms, BATCH)
            if not seqs:
                if not self._index and not self.ring.ready:
                    self._keys.clear()
                return False
            aside, messages, others = self.ring.set_all_aside(seqs)
            self._taken.extend(zip(aside, messages, repeat(None)))
            for seq in others:
                self._set_aside(seq, None)
        return True

    def _set_aside(self, seq: int, lane: Lane | None) -> None:
        if self.ring.set_aside(seq):
            self._taken.append((seq, self.ring.message(seq), lane))
        elif any(row[1] == UNACKED for row in self.ring.living(seq, seq, 1)):
            self._aside.add(seq)

    def _has_content(self) -> bool:
        """Whether all that was taken is here; else it is read from the disk, in the order of places. What cannot be
        read stays, and is tried again."""
        absent, size = list[Location](), 0
        for place, (seq, message, _) in enumerate(self._taken):
            if message is None:
                location = self.ring.location(seq)
                size += location[3]
                if absent and size > BATCH_BYTES:
                    for later, _, lane in list(self._taken)[place:]:
                        self._unset(later, lane)
                    self._taken = deque(list(self._taken)[:place])
                    break
                absent.append(location)
        if not absent:
            return True
        index, self._fetching = self._index, True

        def loaded(locations: Sequence[Location], messages: Sequence[Message], _: Sequence[Location]) -> None:
            if self._index is not index or self.deleted:
                return
            self._fetching = False
            found = {where[0]: message for where, message in zip(locations, messages, strict=True)}
            taken, self._taken = self._taken, deque()
            for seq, message, lane in taken:
                message = message or found.get(seq)
                if message is not None:
                    self._taken.append((seq, message, lane))
                else:
                    self.ring.put_back(seq)
                    self._index.add(self.host.now_ms + UNREAD_MS, seq)
            self.ring.mark()

        self.host.load(self, sorted(absent, key=_place), loaded)
        return False

    def _unset(self, seq: int, lane: Lane | None) -> None:
        """It was taken too early: it is the next one that is due."""
        self.ring.put_back(seq)
        if lane is None:
            self._index.add(0, seq)
        else:
            lane.parked.add(0, seq)

    def _offer_together(self, letters: DueLetters, now_ms: int) -> int:
        """The first of what is due goes to one queue as one letter, if that refuses nothing. 0: some did; else so many
        have to go one by one."""
        seqs, messages, size = list[int](), list[Message](), 0
        for seq, message, lane in islice(self._taken, min(letters.room, self._pace.most, len(self._taken))):
            if lane is not None or message is None or size >= LETTER_BYTES:
                break
            seqs.append(seq)
            messages.append(message)
            size += len(message.payload)
        if len(seqs) < 2:
            return 1
        alike, target = self.host.due.together(self, messages, RUN_BYTES)
        if target is None or target.rejects:
            return alike
        to = letters.lane(target)
        to.target = target
        count = min(alike, 0 if to.parked else to.room(letters.next_number, now_ms))
        if count < 2:
            return alike
        del seqs[count:], messages[count:]
        for _ in range(count):
            self._taken.popleft()
        self._pace.left -= count
        if self._keys:
            for seq, message in zip(seqs, messages, strict=True):
                self._forget_key(seq, message)
        seqs, messages = self._sift(seqs, messages)
        if seqs:
            letters.hold_all(seqs, messages, target)
        return 0

    def _sift(self, seqs: list[int], messages: list[Message], /) -> tuple[list[int], list[Message]]:
        """Those of what was set aside that go on; others are settled."""
        return seqs, messages

    def _parts(self, _message: Message, targets: Sequence[QueueHandle], /) -> bool:
        """Whether what nobody takes now waits for each of its targets, as a message of its own."""
        return len(targets) > 1

    def _offer(self, letters: DueLetters, seq: int, message: Message, lane: Lane | None, now_ms: int) -> None:
        """One due message goes to the lanes that take it, or is parked."""
        host, number = self.host, letters.next_number
        targets = host.due.targets(self, message)
        if targets is None:
            self.ring.put_back(seq)
            self._index.add(now_ms + RETRY_FIRST_MS, seq)
            return
        if not targets:
            self._nowhere(seq, message, now_ms)
            return
        withheld = []
        for target in targets:
            to = letters.lane(target)
            to.target = target
            if (to.parked and to is not lane) or not to.takes(number, now_ms):
                withheld.append(target)
            elif target.rejects and not target.takes((message,), now_ms):
                to.refuse(now_ms)
                withheld.append(target)
        if len(withheld) < len(targets):
            self._forget_key(seq, message)
            letters.hold(seq, message, targets, withheld)
            return
        if self._parts(message, targets):  # none of them waits for another one
            self._forget_key(seq, message)
            self._part(letters, message, targets)
            self.ring.settle(seq)
            return
        self.ring.put_back(seq)
        only = letters.lane(targets[0])
        if only is lane:
            only.again_ms = max(only.again_ms, now_ms + RETRY_FIRST_MS)
        only.parked.add(message.ttl_ms, seq)

    def _nowhere(self, seq: int, message: Message, _now_ms: int, /) -> None:
        """No queue is behind the exchange for a due message: it is dropped."""
        self.ring.settle(seq)
        self._forget_key(seq, message)

    def _key(self, message: Message) -> str:
        """One that waits for some of its targets is replaced by none, and replaces none: it waits beside others that
        are it."""
        said = due_of(message, 0)
        if said is not None and (not said[1] or kept_header(message) is not None):
            self.host.effort.looked(message.header_length)
            return said[1]
        self.host.effort.decoded(message.header_length)
        return "" if own_targets(message) is not None else delay_key(routing_headers(message))

    def _forget_key(self, seq: int, message: Message) -> None:
        if self._keys:
            self._keys.forget(self._key(message), seq)

    # -- letters (`due_letters.Sender`) -------------------------------------------------------------------------

    def letter_reason(self, _targets: Sequence[QueueHandle], /) -> int:
        return DUE

    def letter_targets(self, letter: Letter, /) -> Sequence[QueueHandle] | None:
        return self.host.due.targets(self, letter.messages[0])

    def letter_nowhere(self, letter: Letter, /) -> None:
        """It is dropped, as in `_nowhere`."""

    def letter_returned(self, letter: Letter, /) -> None:
        """It waits for those anew."""
        assert letter.messages, "it is not answered yet"
        assert letter.targets is not None, "it was published"
        assert self.letters is not None, "it was held in this epoch"
        if len(letter.targets) > 1 or letter.narrowed:
            self._part(self.letters, letter.messages[0], letter.refused)
        else:
            for message in letter.returned:
                self._park_anew(self.letters, message, letter.refused[0])

    def _part(self, letters: DueLetters, message: Message, targets: Sequence[QueueHandle]) -> None:
        """A message waits anew for each of these, in its own lane."""
        properties = properties_of(message)
        for target in targets:
            after = replace(properties, headers={**(properties.headers or {}), TARGETS: [target.name]})
            self._park_anew(letters, with_properties(message, after), target)
            self.host.effort.letter(message.header_length, 0)

    def _park_anew(self, letters: DueLetters, message: Message, target: QueueHandle) -> None:
        seq = self.ring.next_seq
        self.ring.append((waiting(message, self.host.now_ms, message.ttl_ms),))
        letters.lane(target).parked.add(message.ttl_ms, seq)

    def _schedule(self, now_ms: int) -> None:
        if self.paused:
            return
        first = self._index.first_ms
        again = 0 if self.letters is None else self.letters.wake_ms(now_ms)
        cancelled = 0 if self.dead_letters.replicated is None else self.dead_letters.replicated.wake_ms(now_ms)
        browsed = 0 if self.browsing is None else self.browsing.due_ms
        if (self._taken or 0 < first <= now_ms) and not self._fetching and not self._pace.has_room(now_ms):
            again = min(again or FOREVER, now_ms + self._pace.wait_ms)
        look = min(first, now_ms + LOOK_MS) if first > now_ms and not self.halted else 0
        if wishes := [at_ms for at_ms in (again, cancelled, browsed, look) if at_ms]:
            self.host.wake(self, min(wishes))

    # -- ownership, and what an operator asks -------------------------------------------------------------------

    def begin_epoch(self, now_ms: int) -> None:
        super().begin_epoch(now_ms)
        self._begin()
        self._resume()

    def end_epoch(self) -> None:
        super().end_epoch()
        self._end_letters()
        self._index = DueIndex()
        self._keys.clear()
        self._taken.clear()
        self._unnoted = [], []

    def _release(self) -> None:
        self._end_letters()
        super()._release()

    def _end_letters(self) -> None:
        if self.letters is not None:
            self.letters.ended = True
        self.letters = None

    def put_back(self, seq: int) -> None:
        super().put_back(seq)
        if seq in self._aside:
            self._aside.discard(seq)
            self._index.add(self.host.now_ms, seq)
            self.ring.mark()

    @property
    def is_read(self) -> bool:
        """All that waits is known."""
        return self._read_from >= self._read_end and not self._unnoted[0] and (not self._fetching or bool(self._taken))

    def _waits(self, seq: int) -> bool:
        return self.ring.all_ready([seq])

    def waiting(self, first_ms: int, last_ms: int, most: int) -> list[tuple[int, int]]:
        """(due time, seq) of what is due in this span, in order; at most so many, and some that left meanwhile."""
        rows = self._index.within(first_ms, last_ms, most)
        for lane in self.letters.lanes.values() if self.letters is not None else ():
            rows += lane.parked.within(first_ms, last_ms, most)
        return sorted(rows)[:most]

    def under(self, key: str) -> list[int]:
        """The message that waits under this key, if there is one."""
        seq = self._keys.under(key)
        return [seq] if seq else []

    def remove(self, seq: int) -> None:
        super().remove(seq)
        self._index.void(seq)

    def reschedule(self, seq: int, message: Message, at_ms: int) -> None:
        """What is ready waits anew until `at_ms`, in the same group commit: at no time in both places."""
        self.ring.settle(seq)
        self._index.void(seq)
        again = waiting(message, self.host.now_ms, at_ms)
        first = self.ring.next_seq
        self.ring.append((again,))
        self._note(first, again)


def _place(location: Location) -> tuple[int, int]:
    return location[1], location[2]


def _body_bytes(ring: Ring, seq: int) -> int:
    message = ring.message(seq)
    return ring.location(seq)[3] if message is None else message.body_length
