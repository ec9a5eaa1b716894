"""What happens to the requests of a group's queue, found out at its owner, for a pool that tells it (`events`).

A request that is new in the queue, and one that is handed out, are seen as that happens. The hand-out asks for what a
consumer sees of each message then (`Annotation.tell`), so it costs a call in Python for each; a pool that tells nothing
pays nothing. What is held is remembered by its number, and looked at in the turns behind one in which anything was
settled or handed out, LOOK_MAX in each:

    UNACKED    it is held
    READY      it has returned, and nobody has said why: its consumer's node was lost, or it never got there
    gone       its consumer has acknowledged it
    DEAD       it died: the pool's responder tells

What dies in a queue without copies is gone at once, so the queue says it (`died`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from clusterbroker.broker.pools.events import Event, Ids, Name, ids_of
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import DEAD, UNACKED
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

LOOK_MAX: Final = 500
"""Held requests that one turn looks at."""
BEFORE_MAX: Final = 20_000
"""Requests that an owner which begins looks through, the oldest ones."""
Fetch = Callable[[list[Location], Callable[[Sequence[Message]], None]], object]
"""Reads messages that are not in memory; nobody is told when they cannot be read."""


class Held(NamedTuple):
    """A request that a consumer has."""

    worker: str | None
    """Its launch; empty: nobody whom the pool has started; None: another owner has handed it out."""
    at_ms: int
    ids: Ids


class RequestEvents:
    """Of one epoch of a queue. `about`: fields of all its events. `tell` hears of each; `clock`: ms since 1970."""

    __slots__ = (
        "_about", "_before", "_clock", "_fetch", "_held", "_key", "_left", "_next", "_ring", "_seen", "_tell", "_upto",
    )  # fmt: skip

    def __init__(
        self, key: str, about: dict[str, Any], ring: Ring, clock: Callable[[], int], tell: Callable[[Event], object],
        fetch: Fetch,
    ) -> None:  # fmt: skip
        self._key = key
        self._about = about
        self._ring = ring
        self._clock = clock
        self._tell = tell
        self._fetch = fetch
        self._next = ring.next_seq
        """What was there before has been told of by who owned the queue then."""
        self._held: dict[int, Held] = {}
        """By its number; what was looked at longest ago comes first."""
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._left = 0
        """So many of them are to be looked at, since anything changed."""
        living = ring.living(1, ring.next_seq - 1, BEFORE_MAX)
        self._upto = living[-1][0] if living else 0
        self._before: set[int] | None = {seq for seq, state, *_ in living if state != DEAD}
        """What was there as the epoch began, until it is known which of it consumers hold."""

    def came(self, name: Name = "received") -> None:
        """What is new in the queue came so."""
        first, self._next = self._next, self._ring.next_seq
        for seq in range(first, self._next):
            message = self._ring.message(seq)
            if message is not None:
                self._say(name, seq, ids_of(message))
            elif self._ring.living(seq, seq, 1):
                self._say(name, seq, Ids())

    def handed(self, seq: int, message: Message, delivery_count: int, member: Member | None) -> None:
        """A consumer gets it; None: who asked for one message."""
        self.came()
        self.returned(seq, "")  # if it was held: nobody has said why it came back
        if self._before is not None:
            self._before.discard(seq)
        worker, ids = "" if member is None else member.worker, ids_of(message)
        self._held[seq] = Held(worker, self._clock(), ids)
        self._say("delivered", seq, ids, worker=worker, delivery_count=delivery_count)

    def returned(self, seq: int, why: str) -> None:
        """It is anybody's again."""
        held = self._held.pop(seq, None)
        if held is not None:
            self._say("returned", seq, held.ids, **_by(held), why=why)

    def died(self, seq: int) -> None:
        """Nobody has it any more, and nobody will."""
        self._held.pop(seq, None)
        if self._before is not None:
            self._before.discard(seq)

    def _adopt(self) -> None:
        """Consumers hold what an owner before has handed out, or this one before anybody wanted to know. What they have
        acknowledged meanwhile is gone by now: of that its number is known, and no more."""
        gone, self._before = self._before or set(), None
        ring = self._ring
        absent: list[int] = []
        for seq, state, *_ in ring.living(1, self._upto, BEFORE_MAX):
            gone.discard(seq)
            if state != UNACKED or seq in self._held:
                continue
            message = ring.message(seq)
            self._held[seq] = Held(None, self._clock(), Ids() if message is None else ids_of(message))
            if message is None:
                absent.append(seq)

        def found(messages: Sequence[Message]) -> None:
            for seq, message in zip(absent, messages, strict=False):
                if (held := self._held.get(seq)) is not None:
                    self._held[seq] = held._replace(ids=ids_of(message))

        for seq in sorted(gone):
            self._say("answered", seq, Ids())
        if absent:
            self._fetch([ring.location(seq) for seq in absent], found)

    def look(self, most: int = LOOK_MAX) -> bool:
        """In each turn in which the queue works, behind the hand-out. Whether there is more to look at."""
        self.came()
        if self._before is not None:
            self._adopt()
        seen = self._ring.acked, self._ring.unacked, self._ring.handed
        if seen != self._seen:
            self._seen, self._left = seen, len(self._held)
        looked = list(islice(self._held, min(most, self._left)))
        for seq in looked:
            found = self._ring.living(seq, seq, 1)
            state = found[0][1] if found else None
            if state == UNACKED:
                self._held[seq] = self._held.pop(seq)
            elif state is None:
                held = self._held.pop(seq)
                by = _by(held)
                if by:
                    by["took_ms"] = max(0, self._clock() - held.at_ms)
                self._say("answered", seq, held.ids, **by)
            elif state == DEAD:
                del self._held[seq]
            else:
                self.returned(seq, "")
        self._left -= len(looked)
        return self._left > 0 and bool(self._held)

    def _say(self, name: Name, seq: int, ids: Ids, **about: Any) -> None:
        self._tell(Event(name, self._clock(), self._key, {**self._about, "seq": seq, **ids.fields, **about}))


def _by(held: Held) -> dict[str, Any]:
    """Who has it, if that is known."""
    return {} if held.worker is None else {"worker": held.worker}
