"""The time line: who owned what since when and why, what befell members, what was not seen, and its bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.management import moves, timeline
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.paging import Wish, answer
from clusterbroker.broker.management.timeline import Moved, Timeline
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.broker.management.set_up import NOW_MS, Place, everything, queue, user

NAMES = tuple(NodeId(f"n{number}") for number in (1, 2, 3))


def founded(place: Place | None = None) -> Place:
    """Three members, and `orders`, which n1 owns."""
    place = place or Place()
    place.must(user("guest", "administrator"), everything("guest"), user("man", "management"), everything("man"))
    for name in NAMES:
        place.must(c.AddMember(name=name, address="127.0.0.1:1"), registered(name))
    place.must(queue("orders", arguments={"x-queue-leader-locator": "client-local"}))
    assert orders(place).owner == "n1"
    return place


def registered(name: NodeId, incarnation: int = 1) -> c.RegisterNode:
    return c.RegisterNode(node=name, disk_id=f"d-{name}", incarnation=Incarnation(incarnation), address="127.0.0.1:1")


def failed(name: str, incarnation: int = 1) -> c.FailNode:
    return c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation))


def drained(name: str, draining: bool = True, leaving: bool = False) -> c.DrainNode:
    return c.DrainNode(node=NodeId(name), draining=draining, leaving=leaving)


def orders(place: Place) -> Queue:
    found = place.replica.map.queue("/", "orders")
    assert found is not None
    return found


def moved(place: Place, to: str) -> c.TransferOwner:
    now = orders(place)
    assert now.owner is not None
    return c.TransferOwner(
        node=now.owner, incarnation=now.incarnation, queue_id=now.queue_id, epoch=now.epoch, version=now.version,
        to=NodeId(to),
    )  # fmt: skip


def told(place: Place, who: str = "guest", name: str | None = None) -> list[dict[str, Any]]:
    reading = place.reading(who)
    listing = moves.listing(reading) if name is None else moves.of_queue(reading, "/", name)
    found = answer(listing, Wish())
    assert isinstance(found, list)
    return found


def ways(place: Place) -> list[tuple[Any, Any, str]]:
    """What the queue went through, the oldest first."""
    return [(e["from"], e["to"], e["why"]) for e in reversed(told(place, name="orders")) if e["kind"] == "move"]


def test_each_way_to_another_owner_has_its_reason() -> None:
    place = founded()
    place.must(moved(place, "n2"))
    place.must(drained("n2"), moved(place, "n3"))
    place.must(drained("n2", draining=False))
    place.must(failed("n3"))
    after = orders(place).owner
    assert after is not None
    place.must(c.ForceOwner(queue_id=orders(place).queue_id, node=NodeId("n2")))
    assert ways(place) == [
        ("n1", "n2", "moved"), ("n2", "n3", "drained"), ("n3", after, "failed"), (after, "n2", "forced"),
    ]  # fmt: skip


def test_a_queue_that_nobody_can_own_waits_for_who_returns() -> None:
    place = founded()
    for name in ("n2", "n3"):
        place.must(failed(name))
    place.must(failed("n1"))
    assert ways(place) == [("n1", None, "failed")]
    place.must(registered(NodeId("n1"), 2))
    assert ways(place)[1:] == [(None, "n1", "returned")]
    place.must(registered(NodeId("n1"), 3))
    assert ways(place)[2:] == [("n1", "n1", "returned")]  # the same owner, in a new epoch


def test_an_entry_says_when_where_and_what() -> None:
    place = founded()
    place.now_ms += 1_500
    place.must(moved(place, "n2"))
    assert told(place, name="orders")[0] == {
        "number": 7, "at": "2026-11-21T19:50:41.500+00:00", "at_ms": NOW_MS + 1_500, "index": place.replica.map.applied,
        "kind": "move", "vhost": "/", "queue": "orders", "from": "n1", "to": "n2", "epoch": 2, "why": "moved",
    }  # fmt: skip


def test_what_befalls_members_is_told_in_words() -> None:
    place = founded()
    already = len(told(place))
    place.must(failed("n3"), registered(NodeId("n3"), 2), registered(NodeId("n3"), 3))
    place.must(drained("n3"), drained("n3", leaving=True), drained("n3", draining=False))
    place.must(failed("n3", 3), c.ForgetNode(node=NodeId("n3")))
    found = [event for event in told(place)[:-already] if event["kind"] == "member"]
    assert [event["what"] for event in reversed(found)] == [
        "down", "up", "restarted", "draining", "leaving", "undrained", "down", "forgotten",
    ]  # fmt: skip
    assert {event["member"] for event in found} == {"n3"}


def test_a_member_that_goes_by_itself_left() -> None:
    place = founded()
    place.must(drained("n3", leaving=True), c.ForgetNode(node=NodeId("n3"), leaves=True, accept_fewer=True))
    assert [event.get("what") for event in told(place)[:2]] == ["left", "leaving"]


def test_a_feature_level_is_told_when_it_is_raised_and_after_a_gap() -> None:
    place, other = founded(), founded()
    members = tuple((name, Incarnation(1)) for name in NAMES)
    place.must(c.RaiseLevel(level=LEVEL, members=members))
    assert told(place)[0] == {
        "number": told(place)[1]["number"] + 1, "at": told(place)[1]["at"], "at_ms": NOW_MS,
        "index": place.replica.map.applied, "kind": "level", "level": LEVEL, "what": f"feature level {LEVEL}",
    }  # fmt: skip
    assert "level" not in {event["kind"] for event in told(place, "man")}, "who may not see nodes"
    assert "level" not in {event["kind"] for event in told(place, name="orders")}
    other.replica.restored(place.replica.map.snapshot(), NOW_MS + 60_000)
    assert [event["kind"] for event in told(other)[:2]] == ["level", "record"]


def test_the_beginning_is_the_last_entry_and_says_since_when() -> None:
    place = founded(Place())
    fresh = Place()
    fresh.replica.restored(place.replica.map.snapshot(), NOW_MS + 7)
    [only] = told(fresh)
    assert (only["kind"], only["what"], only["at_ms"]) == ("record", "began", NOW_MS + 7)
    assert only["index"] == place.replica.map.applied
    fresh.must(failed("n2"))
    assert [event["kind"] for event in told(fresh)] == ["member", "record"]
    assert told(fresh)[0]["what"] == "down", "members that were there already have not joined now"


def test_what_was_not_heard_is_told_as_unseen_after_a_gap() -> None:
    place, other = founded(), founded()
    heard = len(told(place))
    other.must(moved(other, "n2"), failed("n3"), c.DrainNode(node=NodeId("n1")))
    place.replica.restored(other.replica.map.snapshot(), NOW_MS + 60_000)
    found = told(place)[:-heard]
    assert [(e["kind"], e.get("why") or e["what"]) for e in reversed(found)] == [
        ("record", "gap"), ("member", "draining"), ("member", "down"), ("move", "unseen"),
    ]  # fmt: skip
    assert (found[0]["from"], found[0]["to"], found[0]["at_ms"]) == ("n1", "n2", NOW_MS + 60_000)
    assert [event["kind"] for event in told(place, name="orders")] == ["move", "record", "record"]


def test_a_line_that_was_lost_and_missed_nothing_leaves_no_gap() -> None:
    place = founded()
    before = told(place)
    place.replica.restored(place.replica.map.snapshot(), NOW_MS + 60_000)
    assert told(place) == before


def test_who_sees_what() -> None:
    place = founded()
    place.must(c.AddVhost(name="other"), everything("guest", "other"))
    place.must(queue("hidden", "other", arguments={"x-queue-leader-locator": "client-local"}))
    place.must(failed("n1"))
    kinds = [(event["kind"], event.get("queue")) for event in told(place)]
    assert ("move", "hidden") in kinds
    assert ("member", None) in kinds
    assert [(event["kind"], event.get("queue")) for event in told(place, "man")] == [
        ("move", "orders"), ("record", None),
    ]  # fmt: skip


def test_what_a_member_leaves_behind_is_one_entry_when_grouped() -> None:
    place = founded()
    for number in range(9):
        place.must(queue(f"q{number}", arguments={"x-queue-leader-locator": "client-local"}))
    place.must(failed("n1"))
    place.now_ms += 500
    place.must(moved(place, "n2" if orders(place).owner == "n3" else "n3"))
    whole = [event for event in told(place) if event["kind"] == "move"]
    grouped = answer(moves.listing(place.reading(grouped="true")), Wish())
    assert isinstance(grouped, list)
    ways_of = {(event["from"], event["to"], event["why"]) for event in whole}
    found = [event for event in grouped if event["kind"] == "moves"]
    assert {(event["from"], event["to"], event["why"]) for event in found} == ways_of
    assert sum(event["count"] for event in found) == len(whole) == 11
    assert all(len(event["examples"]) == min(event["count"], 5) for event in found)
    assert [event["at_ms"] for event in found] == [NOW_MS + 500, NOW_MS, NOW_MS]
    assert [event for event in grouped if event["kind"] == "member"] == [
        event for event in told(place) if event["kind"] == "member"
    ]


def test_what_is_apart_in_time_is_apart_in_groups() -> None:
    place = founded()
    for to in ("n2", "n1", "n2", "n1"):
        place.now_ms += 800
        place.must(moved(place, to))
    at_s = [
        [(move.at_ms - NOW_MS) / 1000 for move in (group.newest, group.oldest)]
        for group in moves.groups(place.replica.timeline.moves())
    ]
    assert at_s == [[3.2, 3.2], [2.4, 2.4], [1.6, 1.6], [0.8, 0.8]], "1.6 s between moves of one way"


def test_a_queue_of_another_life_has_its_own_past() -> None:
    place = founded()
    place.must(moved(place, "n2"))
    place.must(c.DeleteQueue(vhost="/", name="orders", queue_id=orders(place).queue_id), queue("orders"))
    assert [event["kind"] for event in told(place, name="orders")] == ["record"]
    assert any(event.get("queue") == "orders" for event in told(place))
    with pytest.raises(Refused):
        told(place, name="none")


STEPS = st.lists(st.integers(0, 4), max_size=60)


@given(STEPS)
def test_bounds_hold_and_the_rest_is_whole(steps: list[int]) -> None:
    """Against a plain list: of each queue the last so many, of all the last so many of these."""
    most, most_of_one = timeline.MOVES_MAX, timeline.QUEUE_MAX
    timeline.MOVES_MAX, timeline.QUEUE_MAX = 8, 3  # type: ignore[misc]
    try:
        line = Timeline()
        line.began(ClusterMap(), NOW_MS)
        plain: list[tuple[int, int]] = []
        for number, queue_id in enumerate(steps, 1):
            entity = Queue(
                vhost="/", name=f"q{queue_id}", queue_id=QueueId(queue_id), durable=True, auto_delete=False,
                exclusive_owner=None, arguments={}, owner=NodeId("n1"),
            )  # fmt: skip
            line._move(entity, None, "moved", LogIndex(number), NOW_MS + number)
            plain.append((number, queue_id))
            of_it = [entry for entry in plain if entry[1] == queue_id]
            if len(of_it) > 3:
                plain.remove(of_it[0])
            del plain[:-8]
            kept = [(move.index, move.queue_id) for move in line.moves()]
            assert kept == plain[::-1]
            for one in range(5):
                mine = list(line.moves_of(one))
                assert [move.index for move in mine] == [index for index, of in reversed(plain) if of == one]
                known_since = line.since_of(one).index
                missing = {i for i, of in enumerate(steps[:number], 1) if of == one} - {move.index for move in mine}
                assert all(index <= known_since for index in missing), "what was dropped is not younger than `since`"
        assert all(isinstance(move, Moved) for move in line.moves())
    finally:
        timeline.MOVES_MAX, timeline.QUEUE_MAX = most, most_of_one  # type: ignore[misc]


def test_a_cursor_reaches_where_the_record_begins() -> None:
    place = Place()
    place.must(user("guest", "administrator"))
    place.replica.timeline.began(place.replica.map, NOW_MS)
    member = NodeId("n2")
    place.must(c.AddMember(name=member, address="x:1"))
    reading, cursor = place.reading(), ""
    found: list[int] = []
    while cursor is not None:
        part = answer(moves.listing(reading), Wish(cursor=cursor, page_size=1))
        found += [one["number"] for one in part["items"]]  # type: ignore[call-overload,index]
        cursor = part["next"]  # type: ignore[call-overload]
    assert found == [1, 0]
