"""The owner's side alone, told by hand what the world does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.raft.raft_log import COMMAND_BYTES_MAX
from clusterbroker.cluster.wiring import commands
from clusterbroker.cluster.wiring.commands import ChangeInSync
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.replication import offers
from clusterbroker.replication.errors import BadMessage
from clusterbroker.replication.messages import (
    AHEAD,
    LATER,
    Append,
    AppendAck,
    SyncDone,
    SyncOffer,
    SyncOver,
    SyncRefused,
    SyncWant,
)
from clusterbroker.replication.primary import Primary
from clusterbroker.replication.refusals import DOUBT_MS
from tests.property.replication_parts import Ring

NOTHING = memoryview(b"")


class Host:
    """Writes down what the core wants."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.heard: list[tuple[Any, ...]] = []
        self.changes: list[Any] = []
        self.commands: list[ChangeInSync] = []

    def send(self, peer: str, head: Any, payload: Any = ()) -> None:
        self.sent.append((peer, head))

    def change_in_sync(self, changes: Any, done: Any) -> None:
        self.changes.extend(changes)
        self.commands.append(ChangeInSync(node=NodeId("a"), incarnation=Incarnation(1), changes=changes))

    def transfer_owner(self, *order: Any) -> None:
        self.heard.append(("transfer", *order[:4]))
        self.done = order[4]

    def load(self, *ask: Any) -> None:
        self.heard.append(("load", *ask[:2]))

    def stumbled(self, _queue_id: int, error: Exception) -> None:
        raise error

    def link_stumbled(self, _peer: str, error: Exception) -> None:
        raise error

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.heard.append((name, *arguments))

    def take(self, kind: type) -> list[tuple[str, Any]]:
        found = [(peer, head) for peer, head in self.sent if isinstance(head, kind)]
        self.sent = [entry for entry in self.sent if entry not in found]
        return found


def entity(**fields: Any) -> Queue:
    queue = Queue(
        vhost="/", name="q", queue_id=1, durable=True, auto_delete=False, exclusive_owner=None, arguments={},
        owner="a", epoch=3, replicas=("a", "b", "c"), in_sync=("a", "b"),
    )  # type: ignore[arg-type]  # fmt: skip
    return msgspec.structs.replace(queue, **fields)


@pytest.fixture
def host() -> Host:
    return Host()


def owner(host: Host, synced: str = "b", minimum: int = 2, **options: Any) -> Primary:
    """The owner of queue 1, linked to b and c, of which these are synced."""
    primary = Primary(host, "a")  # type: ignore[arg-type]
    primary.members_changed({"a": (1, True), "b": (1, True), "c": (5, True)}, 0)
    for peer in "bc":
        primary.linked(peer, 0)
    primary.take_over(entity(), Ring(), minimum, 0, **options)
    for peer, offer in host.take(SyncOffer):
        if peer in synced:
            primary.received(peer, SyncDone(1, 3, offer.sync), NOTHING, 1)
    return primary


def test_nothing_is_written_before_every_member_has_what_was_taken_over(host: Host) -> None:
    primary = owner(host, synced="c")
    assert not primary.may_write(1)
    assert ("first_sync_complete", 1) not in host.heard
    assert owner(host, synced="b").may_write(1)
    assert ("first_sync_complete", 1) in host.heard


def test_what_was_taken_over_must_be_durable_here(host: Host) -> None:
    primary = owner(host, after_group=7)
    assert not primary.may_write(1)
    primary.group_durable(7, 2)
    assert primary.may_write(1)


def test_the_group_that_it_waits_for_may_not_have_been_cut_yet(host: Host) -> None:
    """The beginning of a copy waits in a portion: what was taken over is durable with that group, and at once."""
    primary = owner(host, after_group=7)
    primary.take_over(entity(queue_id=2, in_sync=("a",)), Ring(), 1, 1)
    primary.group_cut(7, [(2, b"records")], 10)
    primary.group_durable(7, 11)
    assert ("committed", 2, 7) in host.heard
    assert ("first_sync_complete", 1) in host.heard, "the look every 50 ms is not needed for it"


def test_a_group_is_committed_when_disk_and_members_have_it(host: Host) -> None:
    primary = owner(host, synced="bc")
    primary.group_cut(1, [(1, b"records")], 10)
    assert sorted(peer for peer, _ in host.take(Append)) == ["b", "c"]
    assert not primary.may_write(1)
    primary.received("b", AppendAck(1), NOTHING, 11)
    assert ("committed", 1, 1) not in host.heard
    primary.group_durable(1, 12)
    assert ("committed", 1, 1) in host.heard, "c is no member"


def test_a_proposed_addition_is_waited_for_until_the_version_rises(host: Host) -> None:
    primary = owner(host, synced="bc")
    primary.tick(100)
    assert [(c.in_sync, c.incarnations) for c in host.changes] == [(("a", "b", "c"), (1, 1, 5))]
    primary.group_cut(1, [(1, b"records")], 101)
    primary.received("b", AppendAck(1), NOTHING, 102)
    primary.group_durable(1, 102)
    assert ("committed", 1, 1) not in host.heard
    primary.entity_changed(entity(version=2), 2, 103)
    assert ("committed", 1, 1) in host.heard


def test_a_member_without_a_link_leaves_after_300_ms_and_never_below_the_minimum(host: Host) -> None:
    primary = owner(host)
    primary.unlinked("b", 1000)
    primary.tick(1200)
    assert host.changes == []
    primary.tick(1300)
    primary.tick(1310)
    assert host.changes == [], "a alone would be fewer than two"
    primary.entity_changed(entity(), 1, 1400)
    primary.tick(1410)
    assert [c.in_sync for c in host.changes] == [("a",)]
    assert not primary.may_write(99)


def test_a_member_that_owes_for_too_long_leaves(host: Host) -> None:
    primary = owner(host, minimum=1)
    primary.group_cut(1, [(1, b"records")], 10)
    primary.tick(1509)
    assert not host.changes
    primary.tick(1559)
    primary.tick(1570)
    assert [c.in_sync for c in host.changes] == [("a",)]


def test_the_in_sync_sets_of_many_queues_change_in_commands_that_the_wiring_log_takes(host: Host) -> None:
    """A peer's link went, and its owner's 10,000 queues stood still: one command for all of them was too long."""
    names = tuple(f"{letter * 50}.example.org" for letter in "abc")
    primary = Primary(host, names[0])  # type: ignore[arg-type]
    primary.members_changed(dict.fromkeys(names, (1, True)), 0)
    for peer in names[1:]:
        primary.linked(peer, 0)
    for number in range(1, 10_001):
        queue = entity(queue_id=number, owner=names[0], replicas=names, in_sync=names)
        primary.take_over(queue, Ring(), 2, 0)
    primary.unlinked(names[2], 1000)
    primary.tick(1300)
    primary.tick(1305)
    assert sorted(change.queue_id for change in host.changes) == list(range(1, 10_001))
    assert {change.in_sync for change in host.changes} == {names[:2]}
    assert max(len(commands.encode(command)) for command in host.commands) < COMMAND_BYTES_MAX


@pytest.mark.long
def test_offers_with_very_many_producers_do_not_fill_the_link(host: Host) -> None:
    """256 queues with 10,000 named publishers each were hundreds of megabytes in one link, and at the backup."""
    primary = Primary(host, "a")  # type: ignore[arg-type]
    primary.members_changed({"a": (1, True), "b": (1, True)}, 0)
    primary.linked("b", 0)
    crowd = {b"publisher %06d of one that has a long name" % number: number for number in range(10_000)}
    for number in range(1, 257):
        ring = Ring()
        ring.attributes = crowd
        ring.write()
        primary.take_over(entity(queue_id=number, replicas=("a", "b")), ring, 1, 0)
    seen: list[int] = []
    while offered := [head for _, head in host.take(SyncOffer)]:
        assert sum(len(msgspec.msgpack.encode(offer)) for offer in offered) < 10 << 20
        seen += [offer.queue_id for offer in offered]
        for offer in offered:
            primary.received("b", SyncDone(offer.queue_id, 3, offer.sync), NOTHING, 1)
    assert sorted(seen) == list(range(1, 257))


def test_a_peer_that_is_quick_again_joins_for_all_its_queues(host: Host) -> None:
    """Seed 277768354 of the simulation: one queue had looked at the peer first, and the others never heard."""
    primary = owner(host, minimum=1)
    other = {"queue_id": 2, "name": "other", "replicas": ("a", "b")}
    primary.take_over(entity(**other), Ring(), 1, 1)
    for peer, offer in host.take(SyncOffer):
        primary.received(peer, SyncDone(offer.queue_id, 3, offer.sync), NOTHING, 1)
    primary.group_cut(1, [(1, b"records"), (2, b"records")], 10)
    primary.tick(1559)
    primary.tick(1570)
    assert [(c.queue_id, c.in_sync) for c in host.changes] == [(1, ("a",)), (2, ("a",))]
    primary.received("b", AppendAck(1), NOTHING, 1580)
    primary.entity_changed(entity(in_sync=("a",), replicas=("a", "b"), version=2), 1, 1590)
    primary.entity_changed(entity(**other, in_sync=("a",), version=2), 1, 1590)
    host.changes.clear()
    for now_ms in (1650, 1660, 3550):  # the last one 30 ms too early
        primary.tick(now_ms)
    assert not host.changes
    primary.entity_changed(entity(**other, in_sync=("a",), version=2), 1, 3582)
    primary.tick(3590)
    primary.tick(3600)
    primary.tick(3605)
    assert sorted((c.queue_id, c.in_sync) for c in host.changes) == [(1, ("a", "b")), (2, ("a", "b"))]


def test_an_addition_that_cannot_succeed_is_cancelled_by_the_old_set(host: Host) -> None:
    primary = owner(host, synced="bc")
    primary.tick(100)
    primary.members_changed({"a": (1, True), "b": (1, True), "c": (5, False)}, 200)
    primary.tick(1101)
    primary.tick(1110)
    assert [c.in_sync for c in host.changes] == [("a", "b", "c"), ("a", "b")]


def test_an_acknowledgement_of_what_was_never_sent_ends_the_link(host: Host) -> None:
    with pytest.raises(BadMessage, match="group 9 was acknowledged, but 0"):
        owner(host).received("b", AppendAck(9), NOTHING, 5)


def test_refused_parts_do_not_count_and_are_synced_again(host: Host) -> None:
    primary = owner(host)
    primary.group_cut(1, [(1, b"records")], 10)
    primary.group_durable(1, 11)
    primary.received("b", AppendAck(1, ((1, 3),)), NOTHING, 12)
    assert ("committed", 1, 1) not in host.heard
    ((_, offer),) = [entry for entry in host.take(SyncOffer) if entry[0] == "b"]
    primary.received("b", SyncDone(1, 3, offer.sync), NOTHING, 13)
    assert ("committed", 1, 1) in host.heard


def test_who_asks_for_a_bucket_of_a_sync_that_ended_is_told_so(host: Host) -> None:
    primary = owner(host, synced="b")
    old, new = 2, 3
    primary.members_changed({"a": (1, True), "b": (1, True), "c": (6, True)}, 5)
    assert [(peer, offer.sync) for peer, offer in host.take(SyncOffer)] == [("c", new)], "c lives another life"
    primary.received("c", SyncWant(1, 3, old, 0, ()), NOTHING, 6)
    assert host.take(SyncOver) == [("c", SyncOver(1, 3, old))]
    primary.received("c", SyncWant(1, 3, new, 0, ()), NOTHING, 6)
    primary.received("c", SyncDone(1, 3, old), NOTHING, 6)
    assert not host.take(SyncOver), "the one is under way, and who is done waits for nothing"


def doubting(host: Host, **fields: Any) -> Primary:
    """Owns queue 1 alone, from its disk, and c, which may not own it, has a group more."""
    primary = Primary(host, "a")  # type: ignore[arg-type]
    primary.members_changed({"a": (1, True), "b": (1, "b" in fields.pop("up", "b")), "c": (5, True)}, 0)
    for peer in "bc":
        primary.linked(peer, 0)
    alone = {"in_sync": ("a",), "eligible": ("b",), **fields}
    primary.take_over(entity(**alone), Ring(), 2, 0, unproven=True)
    later(host, primary, "c", 1)
    return primary


def later(host: Host, primary: Primary, node: str, now_ms: int) -> None:
    """It has a group more than its newest offer."""
    offer = [offer for peer, offer in host.take(SyncOffer) if peer == node][-1]
    assert offer.unproven
    primary.received(node, SyncRefused(1, 3, offer.sync, "more", LATER), NOTHING, now_ms)


def test_a_copy_that_has_more_and_may_not_own_the_queue_waits_for_one_that_may(host: Host) -> None:
    """Seed 20293 of the replication world: the owner's disk had lost a group, and what a copy had of it was cut, which
    joined then, while the copies that had it and might own the queue were away."""
    primary = doubting(host, up="")
    assert [event[1:] for event in host.heard if event[0] == "replication_event"] == [("in_doubt", 1, "c", "more")]
    primary.tick(1002)
    later(host, primary, "c", 1003)
    assert not host.changes
    primary.members_changed({"a": (1, True), "b": (2, True), "c": (5, True)}, 1100)
    ((_, offer),) = host.take(SyncOffer)
    primary.received("b", SyncDone(1, 3, offer.sync), NOTHING, 1110)
    primary.tick(1120)
    assert [change.in_sync for change in host.changes] == [("a", "b")], "b has no more: no disk went back"
    primary.tick(2100)
    ((peer, offer),) = host.take(SyncOffer)
    primary.received("c", SyncRefused(1, 3, offer.sync, "more", LATER), NOTHING, 2101)
    ((peer, offer),) = host.take(SyncOffer)
    assert (peer, offer.unproven) == ("c", False), "its group was never committed"


def test_the_copy_that_has_more_and_may_own_the_queue_leads_also_from_the_eligible_set(host: Host) -> None:
    primary = doubting(host, in_sync=("a",), eligible=("c",))
    ((_, queue_id, epoch, to, lacks, _),) = [event for event in host.heard if event[0] == "yield_to"]
    assert (queue_id, epoch, to, lacks) == (1, 3, "c", False)
    primary.tick(100)
    assert not host.changes, "until that is decided nobody joins"


@pytest.mark.parametrize("others", [(), ("b",)])
def test_who_stays_away_does_not_keep_a_queue_in_doubt_for_ever(host: Host, others: tuple[str, ...]) -> None:
    primary = doubting(host, eligible=others, up="")
    now_ms = 1
    while others and now_ms < DOUBT_MS:
        now_ms += 1001
        primary.tick(now_ms)
        later(host, primary, "c", now_ms)
    ((peer, offer),) = host.take(SyncOffer)
    assert (peer, offer.unproven) == ("c", False)
    primary.received("c", SyncDone(1, 3, offer.sync), NOTHING, now_ms)
    primary.tick(now_ms + 100)
    assert [change.in_sync for change in host.changes] == [("a", "c")]


def test_a_refused_offer_comes_again_a_second_later(host: Host) -> None:
    primary = owner(host, synced="")
    primary.received("c", SyncRefused(1, 3, 2, "damaged"), NOTHING, 10)
    primary.tick(900)
    assert not host.take(SyncOffer)
    primary.tick(1010)
    assert [peer for peer, _ in host.take(SyncOffer)] == ["c"]


def test_an_answer_about_a_queue_that_was_given_up_meanwhile_changes_nothing(host: Host) -> None:
    primary = owner(host, synced="")
    primary.received("b", SyncRefused(1, 3, 1, "it is ahead", AHEAD), NOTHING, 10)
    ((_, queue_id, _, to, _, answered),) = [entry for entry in host.heard if entry[0] == "yield_to"]
    assert (queue_id, to) == (1, "b")
    primary.give_up(1)
    answered(False)
    primary.tick(100)
    assert not host.changes


def test_that_an_heir_may_not_own_the_queue_is_no_leave_to_cut_the_others(host: Host) -> None:
    """It died before the wiring took it for the owner, and the other one has the same group. Before, every later offer
    said that the owner had all that was committed."""
    primary = owner(host, synced="", unproven=True)
    primary.received("b", SyncRefused(1, 3, 1, "it has one more", LATER), NOTHING, 10)
    ((*_, lacks, answered),) = [entry for entry in host.heard if entry[0] == "yield_to"]
    assert not lacks
    answered(False)
    host.take(SyncOffer)
    primary.tick(1010)
    ((peer, offer),) = host.take(SyncOffer)
    assert (peer, offer.unproven) == ("b", True)
    primary.unlinked("c", 1020)
    primary.linked("c", 1030)
    ((peer, offer),) = host.take(SyncOffer)
    assert (peer, offer.unproven) == ("c", True)


def test_durability_memory_waits_for_no_disk(host: Host) -> None:
    primary = owner(host, volatile=True, after_group=4)
    primary.group_cut(5, [(1, b"records")], 10)
    primary.received("b", AppendAck(5), NOTHING, 11)
    assert ("committed", 1, 5) in host.heard


def test_a_copy_that_nobody_waits_for_is_dropped_rather_than_buffered(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.replication.primary.OWED_BYTES_MAX", 10)
    monkeypatch.setattr(offers, "OWED_BYTES_LOW", 5)
    primary = owner(host, synced="bc")
    for group in (1, 2):
        primary.group_cut(group, [(1, b"a long record")], 10)
        primary.group_durable(group, 10)
        primary.received("b", AppendAck(group), NOTHING, 11)
    assert [peer for peer, _ in host.take(Append)] == ["b", "c", "b"]
    assert ("replication_event", "fell_behind", 1, "c", "too much is unacknowledged") in host.heard


def test_a_hand_over_waits_for_the_group_and_ends_after_three_seconds(host: Host) -> None:
    primary = owner(host)
    primary.group_cut(1, [(1, b"records")], 10)
    assert not primary.transfer(1, "c", 11), "c is not in sync"
    assert primary.transfer(1, "b", 11)
    assert host.heard[-1] == ("freeze", 1)
    primary.group_durable(1, 12)
    primary.received("b", AppendAck(1), NOTHING, 13)
    assert host.heard[-1] == ("transfer", 1, 3, 1, "b")
    assert not primary.may_write(1)
    primary.tick(3100)
    assert host.heard[-1] == ("thaw", 1)
    assert primary.may_write(1)


def under_load(primary: Primary, host: Host, until_ms: int, late_ms: int) -> int | None:
    """A group each ms, which b has at once and c after `late_ms`; when c was proposed for the in-sync set."""
    waiting: list[tuple[int, int]] = []
    group = 0
    for now_ms in range(10, until_ms):
        while waiting and waiting[0][0] <= now_ms:
            primary.received("c", AppendAck(waiting.pop(0)[1]), NOTHING, now_ms)
        if primary.may_write(1):
            group += 1
            primary.group_cut(group, [(1, b"records")], now_ms)
            primary.group_durable(group, now_ms)
            primary.received("b", AppendAck(group), NOTHING, now_ms)
            waiting.append((now_ms + late_ms, group))
        due_ms = primary.due_ms
        if now_ms % 50 == 0 or (due_ms is not None and due_ms <= now_ms):
            primary.tick(now_ms)
        if any("c" in change.in_sync for change in host.changes):
            return now_ms
    return None


def test_a_copy_whose_disk_is_slower_than_the_others_joins_a_queue_that_is_never_idle(host: Host) -> None:
    """It is always a few groups behind, for the others do not wait for it: once they have to, it has all of them."""
    primary = owner(host, synced="bc")
    assert under_load(primary, host, 3000, late_ms=20) is not None
    assert host.changes[0].in_sync == ("a", "b", "c")


def test_who_is_waited_for_and_then_stands_still_holds_nobody_up_for_longer_than_500_ms(host: Host) -> None:
    primary = owner(host, synced="bc")
    assert under_load(primary, host, 450, late_ms=10_000) is None
    assert not primary.may_write(1), "c is waited for"
    for now_ms in range(450, 601, 50):
        primary.tick(now_ms)
    assert primary.may_write(1)
    primary.group_cut(1000, [(1, b"records")], 610)
    primary.group_durable(1000, 610)
    primary.received("b", AppendAck(1000), NOTHING, 610)
    assert primary.may_write(1), "and not at once again"
    assert not host.changes


def test_whose_link_goes_is_waited_for_no_longer(host: Host) -> None:
    primary = owner(host, synced="bc")
    assert under_load(primary, host, 450, late_ms=10_000) is None
    assert not primary.may_write(1)
    primary.unlinked("c", 451)
    assert primary.may_write(1)


def test_while_a_member_is_away_its_thousands_of_queues_are_not_looked_at_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look, every 50 ms, asked for every queue that the dead member had a copy of what its in-sync set should be:
    with 10,000 queues that took half of the survivors' time, for as long as it was away."""
    looked: list[int] = []
    wish = Primary._wish
    monkeypatch.setattr(
        Primary, "_wish", lambda self, owned, now_ms: looked.append(owned.queue_id) or wish(self, owned, now_ms)
    )
    primary = owner(host)
    for queue_id in range(2, 500):
        primary.take_over(entity(queue_id=queue_id), Ring(), 2, 1)
    primary.unlinked("b", 10)
    for now_ms in range(20, 500, 10):
        primary.tick(now_ms)
    assert len(host.changes) == 0, "two must be in sync, and nobody else is"
    primary.members_changed({"a": (1, True), "b": (1, False), "c": (5, True)}, 500)
    for queue_id in range(1, 500):
        primary.entity_changed(entity(queue_id=queue_id, version=2, in_sync=("a",)), 1, 501)
    for now_ms in range(510, 2000, 10):
        primary.tick(now_ms)
    looked.clear()
    for now_ms in range(2000, 12_000, 50):
        primary.tick(now_ms)
    assert looked == []


def test_a_proposal_whose_fate_is_open_is_looked_at_when_it_is_due(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every look: a leader that has died orders nothing for a second, and the survivors have much to do."""
    looked: list[int] = []
    wish = Primary._wish
    monkeypatch.setattr(
        Primary, "_wish", lambda self, owned, now_ms: looked.append(now_ms) or wish(self, owned, now_ms)
    )
    primary = owner(host, synced="bc", minimum=1)
    primary.unlinked("c", 10)
    primary.unlinked("b", 10)
    for now_ms in range(20, 800, 10):
        primary.tick(now_ms)
    assert [change.in_sync for change in host.changes] == [("a",)]
    looked.clear()
    for now_ms in range(800, 1500, 10):
        primary.tick(now_ms)
    assert looked == []
    for now_ms in range(1500, 1900, 10):
        primary.tick(now_ms)
    assert len(host.changes) == 2, "it is proposed again a second later"


def test_a_queue_that_clients_wait_for_is_synced_before_thousands_of_others(host: Host) -> None:
    primary = owner(host)
    for queue_id in range(2, 2000):
        primary.take_over(entity(queue_id=queue_id), Ring(), 2, 1)
    offered = [head for peer, head in host.take(SyncOffer) if peer == "b"]
    assert len(offered) == offers.ACTIVE_MAX
    primary.hurry(1900, 2)
    primary.hurry(1900, 2)
    primary.received("b", SyncDone(offered[0].queue_id, 3, offered[0].sync), NOTHING, 3)
    ((_, offer),) = [found for found in host.take(SyncOffer) if found[0] == "b"]
    assert offer.queue_id == 1900
    primary.received("b", SyncDone(1900, 3, offer.sync), NOTHING, 4)
    assert primary.may_write(1900)
    ((_, offer),) = [found for found in host.take(SyncOffer) if found[0] == "b"]
    assert offer.queue_id not in (1, 1900)
