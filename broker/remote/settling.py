"""Settlements of remote queues at the queue's owner: each counts once, and only from the node that may say so.

Theory. A delivery is settled by the node that has it. Whose word counts for a message is a function of where the
message is, and never of a consumer: that may be gone (its link was detached, its channel cancelled it) while an outcome
is on its way, through backpressure or to the next owner.

    the message is                              a node's word counts
    held by a node (a consumer, a get)          that node's, in its present start
    held by a recoverable link                  that of the node of the link's newest attach, attached or suspended:
                                                its `place`, which a new attach and the link's end clear
    ready, returning, held by somebody else     nobody's: it expired, was withdrawn, or its link goes on elsewhere
    gone                                        needs no word: it was settled before, and never comes again

A node keeps what a transaction settles until the owner has it, which an alarm may delay for long. Meanwhile its link
may end, and another one that is placed at the same node be handed the message. So an outcome for which a client waits
names the link and its attach that have held its message (`Commit.links`, `Settlement.held_by`): it counts for that link
alone, and no more when that has begun anew.

The place of a link is said by a consumer's Attach or Consume, by ASK_HELD, and by `AttachedQueue.links`: a node names
there, to each next owner, the attaches of its gone consumers while outcomes of theirs are on the way. An attach that is
not the newest one is not obeyed (`link_since`), whoever names it.

What the owner answers, so that a client in rcv-settle-mode second, or with a transaction, believes in nothing that did
not happen:

    outcome                        carried out, or gone       not held by that node
    accepted, rejected (Settle)    Settled                    Settled with `void`: its client is not answered
    a part without messages        Settled                    Settled with `void` (Settlement.whole): all of it stays
    a transaction's part (Commit)  Published                  refused as a whole: nothing is stored, all stays
    returned, left to its link     Settled                    Settled: it has returned, or is its link's
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from clusterbroker.broker.queues.handle import HELD_BY_NOBODY, Modification
from clusterbroker.broker.queues.link_held import LinkAttach
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import READY, UNACKED
from clusterbroker.broker.remote.attachment import Attachment
from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_LEFT,
    SETTLE_REJECT,
    SETTLE_REQUEUE_COUNTED,
    Holding,
    LinkRanges,
    Range,
    Settlement,
)
from clusterbroker.journal.ranges import intersect, merged, ranges_of, subtract

_LEAVES: Final = (SETTLE_ACK, SETTLE_REJECT)
"""Outcomes in which somebody may believe."""


class SettledQueue(Protocol):
    """What this needs of the owned queue."""

    queue: LocalQueue

    @property
    def has_gap(self) -> bool:
        """Whether clients may hold messages of which the queue knows nothing."""

    def touch(self) -> None:
        """Asks for a turn of the owned queue."""


class Settling:
    """Of one queue and epoch."""

    __slots__ = ("_owned",)

    def __init__(self, owned: SettledQueue) -> None:
        self._owned = owned

    def settle(self, attachment: Attachment, settlements: tuple[Settlement, ...]) -> None:
        self.carry_out(attachment, settlements)
        self._owned.queue.ring.mark()
        self._owned.touch()

    def carry_out(
        self, attachment: Attachment, settlements: Sequence[Settlement], adopted: Sequence[Range] = ()
    ) -> None:
        """Those that were told before, and applied, are passed over. `adopted`: these were nobody's, and are the node's
        for what it says here (an epoch's first Attach)."""
        news = [one for one in settlements if one.id > attachment.settlement]
        wholes: dict[int, list[Settlement]] = {}
        for settlement in news:
            if settlement.whole:
                wholes.setdefault(settlement.whole, []).append(settlement)
        refused = {number for number, whole in wholes.items() if self._not_held(attachment, whole, number, adopted)}
        for settlement in news:
            self._settle(attachment, settlement, settlement.whole in refused, adopted)

    def _not_held(
        self, attachment: Attachment, whole: Sequence[Settlement], number: int, adopted: Sequence[Range]
    ) -> bool:
        """Whether one of these is here, and not held by the node: with this settlement it hears which."""
        void = [
            span
            for settlement in whole
            for first, last in settlement.ranges
            for span in self._void([(first, last)], self._held(attachment, first, last, settlement.held_by, adopted))
        ]
        if void:
            attachment.not_held[number] = tuple(void)
        return bool(void)

    def _held(
        self, attachment: Attachment, first: int, last: int, held_by: Holding | None, adopted: Sequence[Range] = ()
    ) -> Sequence[Range]:
        """What the node has of these: with `held_by` as the place of that link, which holds them since that attach or
        before, or for it. A queue that has lost what was committed may not know by whom its messages are held."""
        queue, holder = self._owned.queue, attachment.holder
        ring = queue.ring
        if held_by is not None and not self._owned.has_gap:
            if not queue.host.recovery.goes_on(LinkAttach(*held_by)):
                return ()
            link, here = held_by[0], ring.link_place(held_by[0]) == holder
            held = ring.held_by_link(link, first, last + 1 - first, last) if here else ()
            return merged([*((seq, seq) for seq, _, _ in held), *intersect(((first, last),), adopted)])
        if ring.count_held(first, last, holder) == last + 1 - first:
            return ((first, last),)
        living = ring.living(first, last, last + 1 - first)
        return ranges_of(seq for seq, *_ in living if ring.count_held(seq, seq, holder))

    def _settle(
        self, attachment: Attachment, settlement: Settlement, is_refused: bool, adopted: Sequence[Range]
    ) -> None:
        queue, ring = self._owned.queue, self._owned.queue.ring
        changed = 0
        if not is_refused:
            changed, taken = self._carry_out(attachment, self._counting(attachment, settlement, adopted))
            if (
                settlement.outcome in _LEAVES
                and not settlement.whole
                and (void := self._void(settlement.ranges, taken))
            ):
                attachment.not_held[settlement.id] = void
        attachment.settlement = settlement.id
        if changed and (ring.needs_write or queue.log.unfinished):
            attachment.unsettled.append((settlement.id, queue.log.commits))
        elif attachment.unsettled:  # it needs no commit, but the answer is for all up to it
            attachment.unsettled.append((settlement.id, attachment.unsettled[-1][1]))

    def _counting(self, attachment: Attachment, settlement: Settlement, adopted: Sequence[Range]) -> Settlement:
        """What counts of a settlement that says which link holds its messages: what that link holds, at this node."""
        if settlement.held_by is None or self._owned.has_gap:
            return settlement
        held = [span for one in settlement.ranges for span in self._held(attachment, *one, settlement.held_by, adopted)]
        return msgspec.structs.replace(settlement, ranges=tuple(held))

    def _void(self, ranges: Sequence[Range], taken: Sequence[Range]) -> tuple[Range, ...]:
        """Of these, what is here and was not taken. Of what was acknowledged the number is enough: it is here no more,
        but a message that was rejected may wait for its death."""
        if _count(taken) == _count(ranges):
            return ()
        living = self._owned.queue.ring.living
        here = [
            seq
            for first, last in subtract(ranges, taken)
            for seq, state, *_ in living(first, last, last + 1 - first)
            if state in (READY, UNACKED)
        ]
        return tuple(ranges_of(here))

    def holds_all(
        self, attachment: Attachment, settlements: Sequence[tuple[int, Sequence[Range]]], links: LinkRanges
    ) -> bool:
        """Whether the node holds each of the messages that its transaction settles, and `links` those of them that they
        held when the client settled them: one of them may have come to another link at the same node since. A queue
        that has lost what was committed knows nothing of some, which come to nobody any more."""
        if any(first == HELD_BY_NOBODY for _, ranges in settlements for first, _ in ranges):
            return False
        for link, ranges in (*((None, ranges) for _, ranges in settlements), *links):
            for first, last in ranges:
                held = self._held(attachment, first, last, link)
                if _count(held) < last + 1 - first and not (
                    self._owned.has_gap and not self._void([(first, last)], held)
                ):
                    return False
        return True

    def commit(self, attachment: Attachment, parts: Sequence[Settlement]) -> int:
        """What a transaction settles of what its node holds; how much of it the log must hear of."""
        return sum([self._carry_out(attachment, part)[0] for part in parts])

    def _give_back(self, seqs: list[int], settlement: Settlement) -> int:
        """What links have held returns when that is committed; how many that are."""
        holding, ring = self._owned.queue.holding, self._owned.queue.ring
        assert holding is not None, "there are links"
        counts, upto = settlement.outcome == SETTLE_REQUEUE_COUNTED, settlement.count
        counted = [seq for seq in seqs if counts and ring.delivery_count(seq) <= upto]
        uncounted = [seq for seq in seqs if seq not in set(counted)] if counted else seqs
        holding.give_back(counted, Modification(True, settlement.link, settlement.change))
        holding.give_back(uncounted, Modification(False, settlement.link, settlement.change))
        return len(seqs)

    def _carry_out(self, attachment: Attachment, settlement: Settlement) -> tuple[int, Sequence[Range]]:
        """Of how many of these messages the log must hear, and ranges of those that leave the queue; of one that was
        acknowledged in part none.

        A message that counts more deliveries than it came with was counted by an owner before, who died with the
        answer: it returns as it is.
        """
        queue, ring, holder = self._owned.queue, self._owned.queue.ring, attachment.holder
        outcome, link, change, changed = settlement.outcome, settlement.link, settlement.change, 0
        taken: list[Range] = []
        for first, last in settlement.ranges:
            if outcome == SETTLE_ACK:
                count = ring.settle_held(first, last, holder)
                changed += count
                if count == last + 1 - first:
                    taken.append((first, last))
                continue
            if outcome == SETTLE_LEFT:
                ring.requeue_held(first, last, holder, False)
                continue
            if settlement.withdraws and queue.holding is not None and queue.host.recovery.withdraws:
                if ring.link_place(settlement.withdraws) == holder:
                    changed += queue.holding.withdraw(settlement.withdraws, first, last)
            elif outcome != SETTLE_REJECT and queue.holding is not None:
                changed += self._give_back(ring.take_linked(first, last, holder), settlement)
            seqs = ring.take_held(first, last, holder)
            taken += ranges_of(seqs)
            for seq in seqs:
                counted = outcome == SETTLE_REQUEUE_COUNTED and ring.delivery_count(seq) <= settlement.count
                changed += outcome == SETTLE_REJECT or counted or bool(change)
                if outcome == SETTLE_REJECT:
                    queue.reject(seq, change)
                elif link or change:
                    queue.modify(seq, Modification(counted, link, change))
                else:
                    queue.requeue(seq, counted)
        return changed, taken


def _count(ranges: Sequence[Range]) -> int:
    return sum(last + 1 - first for first, last in ranges)
