"""A world for movers: a source queue, a destination that knows numbers, a ledger, and interruptions at any moment.

What is said travels in lists; a step takes one thing from one of them. An interruption lets a part of what is on its
way arrive, gives what the source holds back to its queue, flagged, and begins a new mover with what the ledger has.
"""

from __future__ import annotations

import random
from collections import Counter

from clusterbroker.broker.bridges import ledger as records
from clusterbroker.broker.bridges.mover import (
    Cancel,
    Consume,
    Effect,
    End,
    Look,
    Mover,
    Phase,
    Plan,
    Publish,
    Record,
    Settle,
)  # fmt: skip

STEPS_MAX = 100_000


class FakeParcel:
    """Messages (content, priority, flagged) as `rewriting.Parcel` has them."""

    def __init__(self, messages: list[tuple[bytes, int, bool]]) -> None:
        self.messages = messages
        self.count = len(messages)
        self.prints = b"".join(content.ljust(8, b"\0")[:8] for content, _, _ in messages)
        self.priorities = bytes(priority for _, priority, _ in messages)
        self.flagged = bytes(flag for _, _, flag in messages)
        self.numbers: list[int] = []

    def number(self, first: int) -> None:
        self.number_each([first + at for at in range(self.count)])

    def number_each(self, numbers: list[int]) -> None:
        self.numbers = list(numbers)


class World:
    """`run` until all is moved."""

    def __init__(self, contents: list[tuple[bytes, int]], seed: int, window: int, forgets: int = 0) -> None:
        """`contents`: of the queue, with priorities. `forgets`: so many interruptions are crashes of the source, which
        forgets acks of the last window and flags all; what it hands out arrives whole."""
        self.random = random.Random(seed)
        self.expected = Counter(content for content, _ in contents)
        self.ready = [(content, priority, False) for content, priority in contents]
        self._arrange()
        self.unacked: list[tuple[bytes, int, bool]] = []
        self.acked: list[tuple[bytes, int, bool]] = []
        self.handed = 0
        self.stored = Counter[bytes]()
        self.highest: dict[tuple[int, int], int] = {}
        self.log: list[bytes] = [records.opened(b"p")]
        self.window, self.forgets, self.whole = window, forgets, bool(forgets)
        self.now_s = 1_700_000_000.0
        self.interruptions = 0
        self._begin()

    def _arrange(self) -> None:
        self.ready.sort(key=lambda message: -message[1])  # stable: the order within each priority stays

    def _begin(self) -> None:
        state = records.begun(records.state(self.log), self.now_s)
        self.log.append(records.closed(state.next, (one for one in state.window if not one.closed)))
        self.mover = Mover(Plan(window=self.window), state)
        self.to_source: list[Effect] = []
        self.to_ledger: list[Record] = []
        self.to_destination: list[FakeParcel] = []
        self.answers: list[tuple[str, int]] = []  # of the source, in their order
        self.confirms: list[int] = []
        self.credit = 0
        self.consuming = False
        self.tags = self.received = 0
        self._do(self.mover.tick(self.now_s))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Record():
                    self.to_ledger.append(effect)
                case Publish(parcel):
                    self.to_destination.append(parcel)  # type: ignore[arg-type]
                case End():
                    pass
                case _:
                    self.to_source.append(effect)

    def run(self, interruptions: int) -> None:
        """Steps at random, so many interruptions among them."""
        for _ in range(STEPS_MAX):
            if self.mover.phase is Phase.OVER:
                return
            if interruptions and self.random.random() < 0.03:
                interruptions -= 1
                self._interrupt()
            self._step()
        raise AssertionError(f"it does not come to its end: {self.mover.phase}")

    def _step(self) -> None:
        doors = [
            door
            for door, there in (
                (self._source, self.to_source), (self._hand_out, self.credit and self.consuming and self.ready),
                (self._answer, self.answers), (self._ledger, self.to_ledger),
                (self._destination, self.to_destination), (self._confirm, self.confirms),
            )
            if there
        ]  # fmt: skip
        if doors and self.random.random() < 0.95:
            self.random.choice(doors)()
        else:
            self.now_s += 0.3
            self._do(self.mover.tick(self.now_s))

    def _source(self) -> None:
        match self.to_source.pop(0):
            case Consume(count):
                self.credit, self.consuming = count, True
                self.answers.append(("begun", 0))
            case Cancel():
                self.consuming = False
                self.answers.append(("cancelled", 0))
            case Settle(tag, sync):
                count = tag - self.tags
                self.tags = tag
                self.acked = self.unacked[:count]
                del self.unacked[:count]
                assert sync, "a counted mover waits for the source"
                self.answers.append(("synced", 0))
            case Look():
                self.answers.append(("depth", len(self.ready)))

    def _hand_out(self) -> None:
        count = min(self.credit, len(self.ready))
        if not self.whole:
            count = self.random.randint(1, min(count, 5))
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.credit -= count
        self.unacked += taken
        self.answers += [("delivered", at) for at in range(len(self.unacked) - count, len(self.unacked))]

    def _answer(self) -> None:
        what, number = self.answers.pop(0)
        if what == "delivered":
            batch = [self.unacked[number]]
            while self.answers and self.answers[0][0] == "delivered" and (self.whole or self.random.random() < 0.8):
                batch.append(self.unacked[self.answers.pop(0)[1]])
            self._do(self.mover.delivered(FakeParcel(batch), self.now_s))  # type: ignore[arg-type]
        elif what == "begun":
            self._do(self.mover.begun(self.now_s))
        elif what == "cancelled":
            self._do(self.mover.cancelled(self.now_s))
        elif what == "synced":
            self._do(self.mover.synced(self.now_s))
        else:
            self._do(self.mover.depth(number, self.now_s))

    def _ledger(self) -> None:
        self.log += self.to_ledger.pop(0).bodies
        self._do(self.mover.recorded(self.now_s))

    def _destination(self) -> None:
        parcel = self.to_destination.pop(0)
        for (content, priority, _), number in zip(parcel.messages, parcel.numbers, strict=True):
            self._publish(content, priority, number)
        self.received += parcel.count
        self.confirms.append(self.received)

    def _publish(self, content: bytes, priority: int, number: int) -> None:
        producer = number >> records.SESSION_SHIFT, priority
        if number > self.highest.get(producer, 0):  # what is below is known
            self.highest[producer] = number
            self.stored[content] += 1

    def _confirm(self) -> None:
        self._do(self.mover.confirmed(self.confirms.pop(), True, self.now_s))
        self.confirms.clear()

    def _interrupt(self) -> None:
        self.interruptions += 1
        for _ in range(self.random.randint(0, len(self.to_source))):
            self._source()
        if self.to_destination:  # a part of what is on its way arrives
            cut = self.random.randint(0, len(self.to_destination))
            for parcel in self.to_destination[:cut]:
                for (content, priority, _), number in zip(parcel.messages, parcel.numbers, strict=True):
                    self._publish(content, priority, number)
            if cut < len(self.to_destination):
                parcel = self.to_destination[cut]
                some = self.random.randint(0, parcel.count)
                for (content, priority, _), number in list(zip(parcel.messages, parcel.numbers, strict=True))[:some]:
                    self._publish(content, priority, number)
        if self.to_ledger:
            bodies = self.to_ledger[0].bodies
            self.log += bodies[: self.random.randint(0, len(bodies))]
        back = [(content, priority, True) for content, priority, _ in self.unacked]
        if self.forgets:
            self.forgets -= 1
            back = [(content, priority, True) for content, priority, _ in self.acked] + back
            self.ready = [(content, priority, True) for content, priority, _ in self.ready]
        self.ready = back + self.ready
        self._arrange()
        self.unacked, self.acked = [], []
        self.now_s += 5
        self._begin()
