"""What is due, on its way to the queues behind its exchange, each of which takes it once.

As dead letters of a replicated queue (`queues.dead_lettering.replicated`) a message leaves in steps that a new owner
can take up:

    held       a DEAD record (reason `due`, or `due_unbound`): it has left the order of the queue, and has a number
    published  once that record is committed, to each target under the queue's name and that number
    answered   by all of them
    settled    SET; what some have refused is appended anew in the same group, for those alone (header `x-delay-to`)

A new owner publishes all that is held again: who has the number takes no second copy. The queue finds the targets of
that anew, by the reason for one (`Sender`).

No target waits for another one (`lanes`). A letter that only some have answered, while others stall, is narrowed: the
attributes DUE_TARGET name those that still have to answer, so that others may forget its number.

Messages that are due together and go to one queue, which refuses nothing, are one letter (`hold_all`): their numbers
follow each other, and all of them are published, answered and settled as one. A new owner finds each by itself.

Bounds: HELD_MAX messages and HELD_BYTES of content, without those that stall: STALLED_MAX and STALLED_BYTES at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from clusterbroker.broker.delay.lanes import QUOTA, STALL_MS, Lane
from clusterbroker.broker.queues.attributes import DUE_TARGET
from clusterbroker.broker.queues.dead_lettering.replicated import DUE, DUE_UNBOUND
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.log import SAFE
from clusterbroker.broker.queues.ticket import RunTicket, Ticket
from clusterbroker.journal.layout import Location
from clusterbroker.journal.queue_state import LAST_DEAD
from clusterbroker.journal.record import Message

HELD_MAX: Final = QUOTA
HELD_BYTES: Final = 16 << 20
STALLED_MAX: Final = 4096
STALLED_BYTES: Final = 4 * HELD_BYTES
RUN_MAX: Final = 256
"""Messages that go to one queue together, but for those of one letter; and bytes of their headers."""
RUN_BYTES: Final = 64 << 10
LETTER_BYTES: Final = 1 << 20
"""Of one letter; its last message may be longer."""


class Letter:
    """What is held for its targets as one: a message, or several for one target.

    number    of the first; those of others follow it
    reason    of its DEAD record
    messages  empty: the content is not here; its `size` in bytes
    mark      of the commit that its DEAD record needs
    targets   None: it is not published yet
    refused   those that have not taken it
    awaited   those that have not answered
    returned  its messages that one of them has not taken: of several perhaps not all
    narrowed  DUE_TARGET names those that are awaited
    alone     it goes with no other, for something raised when it did
    """

    __slots__ = (
        "alone", "awaited", "mark", "messages", "narrowed", "number", "reason", "refused", "returned", "seqs", "size",
        "targets",
    )  # fmt: skip

    def __init__(self, seqs: list[int], number: int, mark: int, messages: list[Message], reason: int) -> None:
        self.seqs = seqs
        self.number = number
        self.reason = reason
        self.mark = mark
        self.fill(messages)
        self.targets: Sequence[QueueHandle] | None = None
        self.awaited: dict[QueueHandle, None] = {}
        self.refused: list[QueueHandle] = []
        self.returned: list[Message] = []
        self.narrowed = self.alone = False

    def fill(self, messages: list[Message]) -> None:
        self.messages = messages
        self.size = sum([len(message.payload) for message in messages])

    @property
    def seq(self) -> int:
        """Of the first; what has several targets has no other."""
        return self.seqs[0]

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + len(self.seqs))


class Sender(Protocol):
    """The queue, as its letters see it."""

    def letter_reason(self, targets: Sequence[QueueHandle], /) -> int:
        """With which a letter to these is held."""

    def letter_targets(self, letter: Letter, /) -> Sequence[QueueHandle] | None:
        """Where a letter goes that the owner before held; None: that is not known yet."""

    def letter_nowhere(self, letter: Letter, /) -> None:
        """Such a letter finds no queue any more; it is settled afterwards."""

    def letter_returned(self, letter: Letter, /) -> None:
        """Some targets have not taken it; it is settled afterwards, in the same group."""


class DueLetters:
    """Of one delay queue and epoch."""

    __slots__ = (
        "_count", "_leaving", "_line", "_narrowing", "_open", "_queue", "_sender", "_stalled", "_stalled_bytes",
        "ended", "held_bytes", "lanes",
    )  # fmt: skip

    def __init__(self, queue: LocalQueue, sender: Sender) -> None:
        self._queue = queue
        self._sender = sender
        self._open: dict[int, Letter] = {}  # by number: held, or settled and that is not committed
        self._count = 0  # of their messages
        self._line: deque[Letter] = deque()  # not published yet, in order
        self._leaving: deque[tuple[Letter, int]] = deque()  # settled, and the mark of the commit of that
        self._narrowing: deque[tuple[Letter, int]] = deque()
        self._stalled = self._stalled_bytes = 0
        self.lanes: dict[int, Lane] = {}
        self.held_bytes = 0
        self.ended = False

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """For so many messages more; the last of them may be more bytes than there is room for. None as long as letters
        of the owner before wait for their targets: lanes go by the lowest number that is open."""
        if self._line and self._line[-1].targets is None:
            return 0
        if self.held_bytes - min(self._stalled_bytes, STALLED_BYTES) >= HELD_BYTES:
            return 0
        return HELD_MAX + min(self._stalled, STALLED_MAX) - self._count

    @property
    def has_room(self) -> bool:
        return self.room > 0

    def lane(self, target: QueueHandle) -> Lane:
        """To this queue."""
        queue_id = target.entity.queue_id
        lane = self.lanes.get(queue_id)
        if lane is None:
            lane = self.lanes[queue_id] = Lane(target)
        return lane

    @property
    def next_number(self) -> int:
        """Of the next letter."""
        return self._queue.ring.attributes.get(LAST_DEAD, 0) + 1

    @property
    def _mark(self) -> int:
        queue = self._queue
        return queue.log.commits if queue.ring.journaled or queue.replicated else SAFE

    # -- in -----------------------------------------------------------------------------------------------------

    def hold(self, seq: int, message: Message, targets: Sequence[QueueHandle], withheld: Sequence[QueueHandle]) -> None:
        """A message that was set aside goes to these targets; those that are `withheld` are not asked."""
        reason = self._sender.letter_reason(targets)
        letter = Letter([seq], self._queue.ring.hold_dead(seq, reason), self._mark, [message], reason)
        letter.targets = targets
        letter.refused = list(withheld)
        self._open_one(letter)
        self.held_bytes += letter.size
        for target in withheld:
            self.lane(target).owed += 1
        for target in targets:
            if target not in letter.refused:
                letter.awaited[target] = None
                self.lane(target).hold(letter.number, letter.size)

    def hold_all(self, seqs: list[int], messages: list[Message], target: QueueHandle) -> None:
        """Messages that were set aside go to this queue, whose lane takes that many."""
        reason = self._sender.letter_reason((target,))
        letter = Letter(seqs, self._queue.ring.hold_all_dead(seqs, reason), self._mark, messages, reason)
        letter.targets = (target,)
        letter.awaited[target] = None
        self._open_one(letter)
        self.held_bytes += letter.size
        self.lane(target).hold(letter.number, letter.size, len(seqs))

    def _open_one(self, letter: Letter) -> None:
        self._open[letter.number] = letter
        self._count += len(letter.seqs)
        self._line.append(letter)

    def resume(self) -> None:
        """A new owner takes up what the last one left, in the order of the numbers."""
        for seq, number, reason in self._queue.ring.dead():
            if reason in (DUE, DUE_UNBOUND):  # else it was cancelled (`dead_lettering`)
                self._open_one(Letter([seq], number, SAFE, [], reason))

    # -- the turn -----------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Publishes what is durable."""
        durable = self._queue.log.durable
        if self._leaving and durable(self._leaving[0][1]):
            self._queue.ring.mark()  # there is room for others
        while self._leaving and durable(self._leaving[0][1]):
            letter, _ = self._leaving.popleft()
            self._close(letter)
            self._forget(letter, letter.targets or ())
        while self._narrowing and durable(self._narrowing[0][1]):
            letter, _ = self._narrowing.popleft()
            self._forget(letter, [one for one in letter.targets or () if one not in letter.awaited])
        self._publish()
        for lane in tuple(self.lanes.values()):
            if lane.look(now_ms):
                self._narrow(lane)
                self._queue.ring.mark()  # there is room for others
            elif lane.target.deleted and lane.idle:
                del self.lanes[lane.target.entity.queue_id]
        stalled = [lane for lane in self.lanes.values() if lane.stalled]
        self._stalled, self._stalled_bytes = sum([one.underway for one in stalled]), sum([one.size for one in stalled])

    def _close(self, letter: Letter) -> None:
        del self._open[letter.number]
        self._count -= len(letter.seqs)

    def _forget(self, letter: Letter, targets: Sequence[QueueHandle]) -> None:
        """These do not hear of its number again."""
        for target in targets:
            lane = self.lanes.get(target.entity.queue_id)
            if lane is not None:
                lane.open.pop(letter.number, None)
                if lane.idle:
                    del self.lanes[target.entity.queue_id]

    def _publish(self) -> None:
        queue, host = self._queue, self._queue.host
        while self._line and queue.log.durable(self._line[0].mark) and not queue.broken:
            if host.effort.spent:
                host.later(queue)
                return
            letter = self._line[0]
            if not letter.messages and (message := queue.ring.message(letter.seq)) is not None:
                letter.fill([message])
                self.held_bytes += letter.size
            if not letter.messages:
                self._load()
                return
            if letter.targets is None:
                if not self._address(letter):
                    return
                queue.ring.mark()  # there is room for others behind the last of them
            run = self._run()
            try:
                self._send(run)
            except Exception as error:
                if sum([len(one.seqs) for one in run]) > 1:  # which of them it was shows next
                    continue
                host.stumbled(queue, error, run[0].seq)
                return

    def _run(self) -> list[Letter]:
        """Takes the first letter out of the line, and those behind it that go to the same queue and no other, if that
        refuses nothing."""
        letter = self._line.popleft()
        run, awaited = [letter], letter.awaited
        if len(awaited) == 1:
            if not (letter.alone or next(iter(awaited)).rejects):
                self._join(run)
            elif len(letter.seqs) > 1:  # the queue may refuse some from now on
                run = [self._part(letter)]
        return run

    def _join(self, run: list[Letter]) -> None:
        """Puts those of the line behind a letter that may go with it."""
        durable, awaited = self._queue.log.durable, run[0].awaited
        count, size = len(run[0].seqs), 0
        while self._line and count < RUN_MAX and size < RUN_BYTES:
            after = self._line[0]
            if not after.messages or after.alone or after.awaited != awaited or not durable(after.mark):
                break
            run.append(self._line.popleft())
            count += len(after.seqs)
            size += sum([message.header_length for message in after.messages])

    def _part(self, letter: Letter) -> Letter:
        """Makes a letter of each message of one that is not published; the first of them, and the others are next in
        the line."""
        (target,) = letter.awaited
        parts = []
        for seq, number, message in zip(letter.seqs, letter.numbers, letter.messages, strict=True):
            part = Letter([seq], number, letter.mark, [message], letter.reason)
            part.targets = letter.targets
            part.awaited[target] = None
            part.alone = letter.alone
            parts.append(part)
            self._open[number] = part
        self._line.extendleft(reversed(parts[1:]))
        self.lane(target).hold_each(letter.numbers)
        return parts[0]

    def _address(self, letter: Letter) -> bool:
        """A letter of the owner before: it goes to the targets of now, or to those that still had to answer."""
        found = self._sender.letter_targets(letter)
        if found is None:
            return False
        if self._queue.ring.has_attributes:
            named = {queue_id for (seq, queue_id), _ in DUE_TARGET.of(self._queue.ring.attributes) if seq == letter.seq}
            if named:
                letter.narrowed = True
                found = [target for target in found if target.entity.queue_id in named]
        letter.targets = found
        for target in found:
            letter.awaited[target] = None
            self.lane(target).hold(letter.number, letter.size)
        return True

    def _send(self, run: Sequence[Letter]) -> None:
        targets = tuple(run[0].awaited)
        if not targets:
            self._sender.letter_nowhere(run[0])
            self._ends(run[0])
            return
        queue, now_ms = self._queue, self._queue.host.now_ms
        messages = [message for letter in run for message in letter.messages]
        numbers = [number for letter in run for number in letter.numbers]
        assert len(messages) == len(numbers), "a run has its content"
        for target in targets:
            self.lane(target).ask(len(numbers), now_ms)
        tickets = [RunTicket(1, len(numbers), self._answers(run, target)) for target in targets]
        try:
            queue.host.due.publish(queue, messages, numbers, targets, tickets)
        except Exception:
            for target, ticket in zip(targets, tickets, strict=True):
                if not ticket.done:
                    ticket.on_done = lambda _: None
                    self.lane(target).takes_back(len(numbers))
            self._take_back(run)
            raise

    def _take_back(self, run: Sequence[Letter]) -> None:
        """Letters are the first of the line again, each alone."""
        for letter in run:
            letter.alone = True
        self._line.extendleft([letter for letter in reversed(run) if letter.awaited])

    def _answers(self, run: Sequence[Letter], target: QueueHandle) -> Callable[[Ticket], None]:
        def answered(ticket: Ticket) -> None:
            if self.ended or self._queue.deleted:
                return
            refused = () if dies_there(target) else ticket.refused_places
            count, at = sum([len(letter.seqs) for letter in run]), 0
            size = sum([letter.size for letter in run])
            self.lane(target).answered(count, size, bool(refused), self._queue.host.now_ms)
            for letter in run:
                del letter.awaited[target]
                if refused:
                    self._refuses(letter, target, [place for place in range(len(letter.seqs)) if at + place in refused])
                    at += len(letter.seqs)
                if not letter.awaited:
                    self._ends(letter)
                elif letter.narrowed:
                    self._queue.ring.set_attribute(DUE_TARGET.name((letter.seq, target.entity.queue_id)), 0)
                    self._narrowing.append((letter, self._mark))
            self._queue.ring.mark()

        return answered

    def _refuses(self, letter: Letter, target: QueueHandle, places: Sequence[int]) -> None:
        """These of a letter's messages have come back: none, or some, if its target had no limit when it was sent."""
        if places:
            letter.returned = [letter.messages[place] for place in places]
            letter.refused.append(target)
            self.lane(target).owed += 1

    def _ends(self, letter: Letter) -> None:
        """All have answered."""
        if letter.narrowed:
            for (seq, queue_id), _ in DUE_TARGET.of(self._queue.ring.attributes):
                if seq == letter.seq:
                    self._queue.ring.set_attribute(DUE_TARGET.name((seq, queue_id)), 0)
        for target in letter.refused:
            self.lane(target).owed -= 1
        if letter.refused:
            self._sender.letter_returned(letter)
        self._queue.ring.settle_all(letter.seqs)
        self.held_bytes -= letter.size
        letter.messages = letter.returned = []
        self._leaving.append((letter, self._mark))

    def _narrow(self, lane: Lane) -> None:
        """A lane stalls: the log says which letters wait for it alone, and others may forget those."""
        for number in lane.open:
            letter = self._open.get(number)
            if letter is None or letter.narrowed or lane.target not in letter.awaited:
                continue
            if letter.targets is None or len(letter.targets) < 2:
                continue
            letter.narrowed = True
            for target in (*letter.awaited, *letter.refused):
                self._queue.ring.set_attribute(DUE_TARGET.name((letter.seq, target.entity.queue_id)), 1)
            self._narrowing.append((letter, self._mark))

    # -- content from the disk ----------------------------------------------------------------------------------

    def _load(self) -> None:
        """Letters of the owner before, from the first on."""
        queue = self._queue
        absent, size = list[Location](), 0
        for letter in self._line:
            if not letter.messages and letter.mark != LOADING and queue.ring.message(letter.seq) is None:
                location = queue.ring.location(letter.seq)
                size += location[3]
                if absent and size > HELD_BYTES // 4:
                    break
                absent.append(location)
                letter.mark = LOADING
            if len(absent) == HELD_MAX // 4:
                break
        if absent:
            queue.host.load(queue, absent, self._loaded)

    def _loaded(self, locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location]) -> None:
        if self.ended or self._queue.deleted:
            return
        found = {where[0]: message for where, message in zip(locations, messages, strict=True)}
        loading = {where[0] for where in asked}
        for letter in [one for one in self._line if one.seq in loading]:
            letter.mark = SAFE
            message = found.get(letter.seq)
            if message is None:  # it stays dead, and is held back as damaged
                self._line.remove(letter)
                self._close(letter)
            else:
                letter.fill([message])
                self.held_bytes += letter.size
        self._queue.ring.mark()

    def wake_ms(self, now_ms: int) -> int:
        """When a lane has to be looked at; 0: none has. What is past waits for an answer, which brings a turn."""
        wishes = [
            at_ms
            for lane in self.lanes.values()
            for at_ms in (
                lane.again_ms if lane.parked else 0,
                lane.asked_ms + STALL_MS if lane.asked and not lane.stalled else 0,
            )
            if at_ms > now_ms
        ]
        return min(wishes, default=0)


def dies_there(target: QueueHandle) -> bool:
    """What it refuses has become a dead letter of its own, each time, unless it has ended. An owner elsewhere takes
    that, and refuses nothing; by which policy it has judged is not known here."""
    settings = target.settings
    return (
        isinstance(target, LocalQueue)
        and not target.deleted
        and not target.is_ending
        and settings.overflow == "reject-publish-dlx"
        and settings.dead_letter_exchange is not None
    )


LOADING: Final = 1 << 62
"""The mark of a letter whose content is on its way: no commit reaches it."""
