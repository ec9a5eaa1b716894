"""Bugs that are put into what holds messages for links, one at a time: each must be found by a checker of `held_lives`
(docs/mutations.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from clusterbroker.broker.access import together
from clusterbroker.broker.node.link_recovery import LinkRecovery
from clusterbroker.broker.queues.link_holding import Assigned, Holding
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.selecting import Selecting
from clusterbroker.broker.remote import attachment
from clusterbroker.broker.remote.attachment import Attachment
from clusterbroker.broker.remote.link_side import LinkSide
from clusterbroker.broker.remote.messages import SETTLE_REQUEUE
from clusterbroker.broker.remote.settlements import Settlements
from clusterbroker.broker.remote.settling import Settling

Patch = Callable[[pytest.MonkeyPatch], None]


def _forgets_what_links_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "resume_lease", lambda _queue, _now_ms: None)


def _sent_before_the_log(patch: pytest.MonkeyPatch) -> None:
    def take(assigned: Assigned) -> bytes:
        pieces = b"".join(piece for _, piece in assigned._pieces)
        assigned.clear()
        return pieces

    patch.setattr(Assigned, "is_due", property(bool))
    patch.setattr(Assigned, "take", take)


def _returns_before_the_log(patch: pytest.MonkeyPatch) -> None:
    def give_back(holding: Holding, seqs: list[int], modification: Modification) -> None:
        for seq in seqs:
            holding._queue.dispatch.modify(seq, modification)

    patch.setattr(Holding, "give_back", give_back)


def _obeys_any_attach(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LinkRecovery, "since", lambda *_: 1)
    patch.setattr(Holding, "fence", lambda *_: None)


def _passes_over_what_it_has_settled(patch: pytest.MonkeyPatch) -> None:
    add_ranges = Settlements.add_ranges

    def add(settlements: Settlements, ranges: Any, outcome: int) -> None:
        add_ranges(settlements, () if outcome == SETTLE_REQUEUE else ranges, outcome)

    patch.setattr(Settlements, "add_ranges", add)


def _ended_links_hold_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holding, "end", lambda *_: None)


def _returns_without_a_flag(patch: pytest.MonkeyPatch) -> None:
    def turn(holding: Holding, now_ms: int) -> None:
        done = holding._queue.ring.groups_committed
        while holding._returning and holding._returning[0][0] <= done:
            for seq in holding._returning.popleft()[1]:
                holding._queue.ring.put_back(seq)
        rest(holding, now_ms)

    rest = Holding.turn
    patch.setattr(Holding, "turn", turn)


def _answered_before_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attachment, "settled", lambda attachment: attachment.settlement)


def _a_lost_consumer_gives_up(patch: pytest.MonkeyPatch) -> None:
    def suspend(holding: Holding, member: Any, link: int) -> None:
        holding._begin_anew(link)
        rest(holding, member, link)

    rest = Holding.suspend
    patch.setattr(Holding, "suspend", suspend)


def _outcomes_end_with_their_consumer(patch: pytest.MonkeyPatch) -> None:
    def suspend(holding: Holding, member: Any, link: int) -> None:
        holding._queue.ring.attach_link(link, 0)
        rest(holding, member, link)

    rest = Holding.suspend
    patch.setattr(Holding, "suspend", suspend)
    patch.setattr(LinkSide, "silent_links", lambda _: ())


def _void_is_answered_as_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settling, "_void", lambda *_: ())


def _excluded_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Selecting, "_note", lambda *_: None)


def _filters_of_others_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachment, "filter_of_head", lambda _: None)


def _halves_of_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settling, "holds_all", lambda *_: True)


def _any_link_will_do(patch: pytest.MonkeyPatch) -> None:
    held = Settling._held
    patch.setattr(Settling, "_held", lambda settling, node, first, last, *_: held(settling, node, first, last, None))


def _nobody_is_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(together, "ASKED_COMMITS", 1 << 30)


def _overtakes_what_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attachment.RemoteSubscription, "wait", lambda _: None)


class Bug(NamedTuple):
    """One of them. `seed`: of a life that finds it; `choosy`, `patient`, `apart`, `alone`, `alarmed`: such a one
    does."""

    what: str
    seed: int
    put_in: Patch
    choosy: bool = False
    patient: bool = False
    apart: bool = False
    alone: bool = False
    alarmed: bool = False


BUGS: Final = {
    "forgets_what_links_hold": Bug("a new owner does not read what links hold", 1, _forgets_what_links_hold),
    "sent_before_the_log": Bug("a delivery is sent before its group is committed", 48, _sent_before_the_log),
    "returns_before_the_log": Bug(
        "what a link gives back is handed out at once", 10, _returns_before_the_log, choosy=True
    ),
    "obeys_any_attach": Bug("an older attach counts", 0, _obeys_any_attach),
    "ended_links_hold_on": Bug("an ended link keeps what it held", 0, _ended_links_hold_on),
    "returns_without_a_flag": Bug("what returns is not marked", 0, _returns_without_a_flag),
    "answered_before_the_log": Bug("a settlement is answered before it is committed", 73, _answered_before_the_log),
    "excluded_in_memory_alone": Bug("the next owner has no exclusions", 10, _excluded_in_memory_alone, choosy=True),
    "filters_of_others_are_lost": Bug(
        "a link at another node has no filter", 1, _filters_of_others_are_lost, choosy=True
    ),
    "outcomes_end_with_their_consumer": Bug(
        "an owner does not know whose outcomes come behind a consumer's end",
        65,
        _outcomes_end_with_their_consumer,
        patient=True,
    ),
    "void_is_answered_as_done": Bug(
        "what could not be settled is answered as settled", 40, _void_is_answered_as_done, patient=True
    ),
    "halves_of_commits": Bug(
        "a transaction is carried out whose node does not hold what it settles", 37, _halves_of_commits, patient=True
    ),
    "any_link_will_do": Bug(
        "a transaction takes what came to another link of its node", 101518, _any_link_will_do, alarmed=True
    ),
    "nobody_is_asked": Bug(
        "queues are not asked before a transaction over several of them is carried out",
        12,
        _nobody_is_asked,
        apart=True,
    ),
    "overtakes_what_is_sent_again": Bug(
        "what is new comes before what is read and sent again", 14, _overtakes_what_is_sent_again, alone=True
    ),
    "passes_over_what_it_has_settled": Bug(
        "a delivery whose acknowledgement is void is passed over", 42893, _passes_over_what_it_has_settled
    ),
    "a_lost_consumer_gives_up": Bug("what a link holds returns with its consumer", 0, _a_lost_consumer_gives_up),
}
