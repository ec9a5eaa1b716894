"""Settlements of a queue's deliveries at this node, until its owner has committed them.

Settlements are gathered once per turn and sent with a rising id. They are kept, and sent again with each attachment,
until `Settled`; the owner takes one twice without harm, because a settlement counts only while the message is held by
this node. What it could not carry out it says with that (`settling`), and whoever waits for it hears so.

One case needs care. A returned message may come again before `Settled` does: its return has been carried out, and its
new delivery is outstanding. If the next attachment had both, the owner would return a message that a client holds. A
repeated delivery is therefore removed from the settlement that returned it (`came_again`). The removal happens when
the settlement is sent again, because there may be very many of them, and mostly it is not.

An acknowledged message may come again as well: its link was attached elsewhere before the owner heard of it, or has
ended, so the acknowledgement was, or will be, void, and the message somebody else's at this node. Which of the two was
first the node cannot tell before `Settled` says so. It returns the delivery, behind the acknowledgement: if that counts
after all, there is nothing to return.

What a link has left, or returned, the owner may have given to somebody else at this node before it heard of that: it
ends a link, or begins it anew, by the wiring alone. The settlement, which names the message and the node, would then
take it from its new holder. So a delivery of what is open is in doubt (`doubts`), and the node attaches again instead
of taking it. What the Attach itself has told was carried out before anything came in that attachment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec.structs

from clusterbroker.broker.queues.handle import NOT_HELD, CommitPart
from clusterbroker.broker.queues.link_held import NO_LINK, LinkAttach
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_LEFT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    LinkRanges,
    Range,
    Settlement,
)
from clusterbroker.journal.ranges import intersect, ranges_of, subtract

RANGES_MAX: Final = 4096
"""Ranges in one settlement."""


class Settlements:
    """Of one queue and this node."""

    __slots__ = ("_certain", "_doubtful", "_gathered", "_next_id", "_open", "_returned", "_struck", "_tickets", "_told")

    def __init__(self) -> None:
        self._next_id = 1
        self._told = 0  # the last id that the owner was told in this attachment
        self._certain = 0  # the last one that the attachment itself has told
        self._doubtful: dict[int, int] = {}  # seq -> id of the open settlement by which a link has it no more
        self._gathered: dict[tuple[int, int, str, bytes, int, LinkAttach], list[int]] = {}
        """Outcome, delivery count, link, change, withdraws, held_by: seqs."""
        self._open: deque[Settlement] | tuple[()] = ()
        self._returned: dict[int, int] = {}  # seq -> id of the open settlement that returns it
        self._struck: dict[int, list[int]] = {}  # id of an open settlement -> seqs to be struck off it
        # few, and seldom any: an empty deque weighs 760 bytes
        self._tickets: list[tuple[int, int, Ticket, CommitPart, Callable[[], None]]] = []
        """First and last id of a part's settlements, who waits for them, the part, and what is done if it is void."""

    def __bool__(self) -> bool:
        return bool(self._open or self._gathered)

    def add(
        self, seq: int, outcome: int, count: int = 0, link: str = "", change: bytes = b"", withdraws: int = 0,
        held_by: LinkAttach = NO_LINK,
    ) -> None:  # fmt: skip
        """A delivery that is rejected or returned, or acknowledged and not outstanding here; `count`: for how often it
        had been before; `link` and `change` as in `Modification`, and `change` of a dead letter; `withdraws` and
        `held_by` as in `Settlement`."""
        self._gathered.setdefault((outcome, count, link, change, withdraws, held_by), []).append(seq)

    def add_ranges(self, ranges: Sequence[Range], outcome: int) -> None:
        """Each of these, uncounted."""
        for first, last in ranges:
            for seq in range(first, last + 1):
                self.add(seq, outcome)

    def gather(self, acknowledged: Sequence[Range], held_by: LinkRanges = (), whole: bool = False) -> int:
        """Makes settlements of all that came since the last call; returns the id of the first of them. `held_by`: of
        what was acknowledged. `whole`: all of it is carried out, or nothing."""
        known, begin = len(self._open), self._next_id
        for holder, ranges in held_by:
            self._append(SETTLE_ACK, intersect(acknowledged, ranges), held_by=LinkAttach(*holder))
            acknowledged = subtract(acknowledged, ranges)
        if acknowledged:
            self._append(SETTLE_ACK, acknowledged)
        if not self._gathered and not whole:  # as a rule
            return begin
        for (outcome, count, link, change, withdraws, holder), seqs in sorted(self._gathered.items()):
            self._append(outcome, ranges_of(seqs), count, link, change, withdraws, holder)
        self._gathered.clear()
        for place in range(known, len(self._open) if whole else 0):
            self._open[place] = msgspec.structs.replace(self._open[place], whole=self._next_id - 1)  # type: ignore[index]
        return begin

    def _append(
        self, outcome: int, ranges: Sequence[Range], count: int = 0, link: str = "", change: bytes = b"",
        withdraws: int = 0, held_by: LinkAttach = NO_LINK,
    ) -> None:  # fmt: skip
        holding = held_by if held_by.link else None
        for start in range(0, len(ranges), RANGES_MAX):
            part = tuple(ranges[start : start + RANGES_MAX])
            if isinstance(self._open, tuple):
                self._open = deque()
            self._open.append(Settlement(self._next_id, outcome, part, count, link, change, withdraws, 0, holding))
            if outcome in (SETTLE_REQUEUE, SETTLE_REQUEUE_COUNTED, SETTLE_LEFT):
                for first, last in part:
                    self._returned.update(dict.fromkeys(range(first, last + 1), self._next_id))
            if outcome == SETTLE_LEFT:
                self._doubt(part, self._next_id)
            self._next_id += 1

    def hold(self, ticket: Ticket, part: CommitPart, begin: int, refused: Callable[[], None]) -> None:
        """The ticket passes when all that was gathered is committed, what the part settles with the rest. It is
        rejected if some of that, from id `begin` on, was not carried out (`CommitPart.void`); `refused()` before it
        passes."""
        assert not self._gathered, "what was settled is gathered before somebody waits for it"
        if self._open:
            ticket.hold()
            self._tickets.append((begin, self._open[-1].id, ticket, part, refused))

    def _doubt(self, ranges: Sequence[Range], number: int) -> None:
        for first, last in ranges:
            self._doubtful.update(dict.fromkeys(range(first, last + 1), number))

    def link_gone(self) -> None:
        """A link has left this node: what was returned or rejected, and is not answered, may have been its."""
        for settlement in self._open:
            if settlement.outcome != SETTLE_ACK and settlement.id > self._certain:
                self._doubt(settlement.ranges, settlement.id)

    def doubts(self, seqs: Iterable[int]) -> bool:
        """Whether the owner may have delivered one of these before it heard that it has left a link here."""
        return bool(self._doubtful) and any(self._doubtful.get(seq, 0) > self._certain for seq in seqs)

    @property
    def watches_returns(self) -> bool:
        """Whether `doubts` and `came_again` have to be told what is delivered."""
        return bool(self._returned or self._doubtful or self._gathered)

    def came_again(self, seqs: Iterable[int]) -> None:
        """The owner delivered these again, so it has carried out their return."""
        for seq in seqs:
            returned = self._returned.pop(seq, None) or self._doubtful.pop(seq, None)
            if returned is not None:
                self._struck.setdefault(returned, []).append(seq)

    def _strike(self) -> None:
        """Takes what came again off its settlements, but for those that name a link: the owner judges them, and
        somebody waits for that."""
        if not self._struck or not self._open:
            return
        for place, settlement in enumerate(self._open):
            struck = self._struck.pop(settlement.id, None)
            if struck is not None and settlement.held_by is None:
                left = subtract(settlement.ranges, ranges_of(struck))
                self._open[place] = msgspec.structs.replace(settlement, ranges=tuple(left))

    # -- out

    def detached(self) -> None:
        self._told = 0

    def tell(self, everything: bool = False) -> tuple[Settlement, ...]:
        """Those that the owner does not know yet in this attachment, or all for a new one."""
        if everything:
            self._strike()
        untold = tuple(self._open if everything else (one for one in self._open if one.id > self._told))
        if self._open:
            self._told = self._open[-1].id
        if everything:
            self._certain = self._next_id - 1
        return untold

    # -- answers

    def settled(self, upto: int, void: Sequence[Range] = (), queue: str = "") -> list[Range]:
        """The owner has committed all up to this id, but `void` of the last of them; returns the acknowledged ranges
        among them."""
        acknowledged: list[Range] = []
        for begin, last_id, ticket, part, _ in self._tickets if void else ():
            found = {one.seq for one in part.settles if any(first <= one.seq <= last for first, last in void)}
            if found and begin <= upto <= last_id:  # of the same message another part may be another holder's
                part.void |= found
                ticket.reject(queue, NOT_HELD)
        # of what is whole none is forgotten before the last: another owner has to judge all of it
        while self._open and max(self._open[0].id, self._open[0].whole) <= upto:
            settlement = self._open.popleft()
            self._struck.pop(settlement.id, None)
            if settlement.outcome == SETTLE_ACK:
                acknowledged.extend(settlement.ranges)
            elif self._returned or self._doubtful:
                for first, last in settlement.ranges:
                    for seq in range(first, last + 1):
                        for known in (self._returned, self._doubtful):
                            if known.get(seq) == settlement.id:
                                del known[seq]
        while self._tickets and self._tickets[0][1] <= upto:
            _, _, ticket, part, refused = self._tickets.pop(0)
            if part.void:
                refused()
            ticket.pass_()
        return acknowledged

    def drop(self) -> list[Range]:
        """Forgets everything: the queue is gone; returns what was acknowledged."""
        acknowledged = [span for one in self._open if one.outcome == SETTLE_ACK for span in one.ranges]
        self._gathered.clear()
        self._open = ()
        self._returned.clear()
        self._doubtful.clear()
        self._struck.clear()
        tickets, self._tickets = self._tickets, []
        for _, _, ticket, *_ in tickets:
            ticket.pass_()
        return acknowledged
