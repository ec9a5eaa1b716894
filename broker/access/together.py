"""Parts of one transaction in several queues: all of them happen, or none.

Theory. A queue refuses its part for two reasons: a message finds no room, or its node does not hold any more what it
settles. So each queue that could refuse is asked before anything happens (`QueueHandle.judge`). What has said yes does
not judge the room again: the part comes after a hop, and its queue may be a little longer than its limit then.

What a node holds can change after the question, when a link goes on elsewhere. So where queues are elsewhere the one
that settles goes first, and alone: its commit is the decision. The others only publish, they have been asked, and this
node repeats each part until it is committed.

    asked --one says no, or nobody answers in time--> nothing has happened
      |-- all say yes --> what settles is committed --refused--> nothing has happened
                                 |-- the rest is committed --> done

Queues of this node are asked and told in one turn, so all parts stand in one group. With several queues elsewhere that
settle, a link that goes on elsewhere within the hop between yes and commit leaves the others' parts done. A cluster
below feature level 6 asks nobody.

Parts come to their queues a hop or more after the discharge. Whoever commits keeps back until `handed` what the same
session sends later.

Numbered messages (`producers`) that a queue has need no room there: the question says their numbers, so the same
transaction again brings what is missing. Where nothing has happened the queues note that they have refused the numbers
(`refuse_numbers`), in their order behind what was sent before: otherwise these would be taken for known behind a later
one, and confirmed for nothing. Nobody is answered before that is committed. Below feature level 7 queues elsewhere
do not read the numbers: then nobody is asked about such a transaction, and each queue decides for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.handle import CommitPart, QueueHandle
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.levels import ASKED_BY_NUMBER, ASKED_COMMITS

Numbers = dict[QueueHandle, list[tuple[bytes, int]]]
"""Of messages that do not come: queue to (producer, number)."""

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node

JUDGED_MS: Final = 20_000
"""So long queues may take to say whether they take their parts."""
SILENT: Final = "does not answer"


class Together:
    """One such commit. `may_go_on()`: why not, or "", asked when all queues have said yes. `done(ticket, begun)`:
    rejected, or all is durable; not `begun`: no queue has done anything, and what it would have settled is as it
    was. `handed()`: once, when all queues have their parts, or get none."""

    __slots__ = (
        "_asked", "_decides_first", "_handed", "_is_numbered", "_may_go_on", "_node", "_parts", "_ticket", "_waits",
        "begun", "due_ms", "is_handed",
    )  # fmt: skip

    def __init__(
        self, node: Node, parts: dict[QueueHandle, CommitPart], may_go_on: Callable[[], str],
        done: Callable[[Ticket, bool], None], handed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._node = node
        self._parts = parts
        self._may_go_on = may_go_on
        self._handed = handed
        self._is_numbered = any(named is not None for part in parts.values() for _, named in part.publishes)
        self._ticket = Ticket(1, 1, lambda ticket: done(ticket, self.begun))
        self._decides_first = True
        self._asked: frozenset[QueueHandle] = frozenset()
        self._waits: dict[QueueHandle, None] = {}
        self.begun = False
        self.is_handed = False
        """All queues have their parts, or get none."""
        self.due_ms = node.now_ms + JUDGED_MS

    def begin(self) -> None:
        """`done` may be called within this."""
        elsewhere = any(queue.is_elsewhere for queue in self._parts)
        needed = ASKED_BY_NUMBER if self._is_numbered else ASKED_COMMITS
        is_told = not elsewhere or self._node.map.level >= needed
        self._decides_first = is_told or not self._is_numbered
        decides = [queue for queue, part in self._parts.items() if part.decides]
        alone = elsewhere and len(decides) == 1 and bool(self._parts[decides[0]].publishes)
        is_divisible = len(self._parts) > 1 or any(part.decides and not part.publishes for part in self._parts.values())
        asked = dict(self._parts) if is_divisible and is_told else {}
        if alone and asked:
            del asked[decides[0]]  # its commit is the decision, and the whole part is carried out or nothing of it
        self._asked = frozenset(asked)
        self._waits = dict.fromkeys(asked)
        for queue, part in asked.items():
            queue.judge(part, self._node.now_ms, partial(self._judged, queue))
            if self.is_over:
                return
        if not asked:
            self._decide()

    @property
    def is_over(self) -> bool:
        """It was refused, or given up."""
        return self._ticket.rejected or self._ticket.done

    def overdue(self, now_ms: int) -> bool:
        """Looks at the time; whether that is over for this one."""
        if not self.begun and not self.is_over and now_ms >= self.due_ms:
            self._refuse(next(iter(self._waits)).name, SILENT)
        return self.begun or self.is_over

    def give_up(self) -> None:
        """Nothing happens, and nobody hears of it, unless it has begun."""
        if not self.begun:
            self._ticket.on_done = lambda _: None
            self._refuse("", "")

    def _refuse(self, queue: str, why: str) -> None:
        if not self.is_over:
            self._ticket.reject(queue, why)
            self._end_with(self._parts)

    def _judged(self, queue: QueueHandle, why: str) -> None:
        if self.is_over or self._waits.pop(queue, self) is self:
            return
        if why:
            self._refuse(queue.name, why)
        elif not self._waits:
            self._decide()

    def _decide(self) -> None:
        if why := self._may_go_on():
            self._refuse("", why)
            return
        self.begun = True
        first = {queue: part for queue, part in self._parts.items() if part.decides and queue.is_elsewhere}
        rest = {queue: part for queue, part in self._parts.items() if queue not in first}
        for queue, part in self._parts.items():
            part.judged = queue in self._asked
        if first and rest and self._decides_first:
            decision = Ticket(1, 1, lambda ticket: self._decided(ticket, rest))
            self._commit(first, decision)
            decision.pass_()
        else:
            self._hand_out(self._parts)

    def _decided(self, decision: Ticket, rest: dict[QueueHandle, CommitPart]) -> None:
        if decision.rejected:
            self._ticket.rejected, self._ticket.refused = True, decision.refused
            for queue, part in rest.items():
                for one in part.settles:
                    queue.requeue(one.seq, False)  # it decides nothing: all of these return, whatever becomes of it
            self._end_with(rest)
            return
        self._hand_out(rest)

    def _end_with(self, parts: dict[QueueHandle, CommitPart]) -> None:
        """Nothing of these happens."""
        numbers = {queue: [named for _, named in part.publishes if named is not None] for queue, part in parts.items()}
        self._ticket.hold()
        refuse_numbers(self._node, numbers, self._ticket.pass_)
        self._ticket.pass_()
        self._all_have_theirs()

    def _hand_out(self, parts: dict[QueueHandle, CommitPart]) -> None:
        """The last of them."""
        self._commit(parts, self._ticket)
        self._node.barrier(self._ticket)
        self._all_have_theirs()

    def _all_have_theirs(self) -> None:
        self.is_handed = True
        self._handed()

    def _commit(self, parts: dict[QueueHandle, CommitPart], ticket: Ticket) -> None:
        for queue, part in parts.items():
            if queue.ring.journaled:
                self._node.published(sum(message.size for messages, _ in part.publishes for message in messages))
            queue.commit(part, ticket, self._node.now_ms)


def refuse_numbers(node: Node, numbers: Numbers, then: Callable[[], None]) -> None:
    """Their messages do not come; `then()` when the queues have committed that. Below the feature level at which parts
    are asked about an owner elsewhere might take it for a part of messages."""
    ticket = Ticket(1, 1, lambda _: then())
    for queue, named in numbers.items():
        if named and (not queue.is_elsewhere or node.map.level >= ASKED_COMMITS):
            ticket.hold()
            queue.refuse_numbers(named, ticket.pass_)
    ticket.pass_()
