"""When ownership moves although nobody failed."""

from __future__ import annotations

from clusterbroker.broker.remote.locality import LOOK_MS
from clusterbroker.broker.remote.locality_rotation import (
    LOCALITY_AFTER_MS,
    LOCALITY_EVERY_MS,
    Interest,
    Locality,
    Rotation,
)
from tests.unit.broker.remote.owner_support import Stage, head

ALL = ("a", "b", "c")


def everywhere(credit: int = 5) -> dict[str, Interest]:
    return {node: Interest(1, credit) for node in ALL}


def test_the_token_goes_round_in_circular_order_of_names() -> None:
    assert Rotation("a", 1000, 0).decide(1000, everywhere(), ALL, True) == ("b", 2000)
    assert Rotation("b", 1000, 0).decide(1000, everywhere(), ALL, True)[0] == "c"
    assert Rotation("c", 1000, 0).decide(1000, everywhere(), ALL, True)[0] == "a"


def test_it_stays_for_the_hold_time() -> None:
    assert Rotation("a", 1000, 500).decide(1499, everywhere(), ALL, True) == (None, 1500)


def test_a_node_without_interest_or_not_in_sync_never_gets_it() -> None:
    rotation = Rotation("a", 1000, 0)
    wishes = {"a": Interest(1, 1), "b": Interest(1, 0), "c": Interest(2, 9)}
    assert rotation.decide(5000, wishes, ("a", "b"), True) == (None, 0)
    assert rotation.decide(5000, wishes, ALL, True)[0] == "c"


def test_an_owner_without_consumers_passes_it_at_once() -> None:
    assert Rotation("b", 1000, 0).decide(1, {"a": Interest(1, 1)}, ALL, False)[0] == "a"


def test_an_idle_queue_stays() -> None:
    rotation = Rotation("a", 1000, 0)
    assert rotation.decide(5000, everywhere(), ALL, False) == (None, 0)
    assert rotation.decide(5001, everywhere(), ALL, True)[0] == "b"


def test_locality_needs_ten_seconds_and_rests_for_thirty() -> None:
    locality = Locality("a", 0)
    wishes = {"b": Interest(4, 80), "c": Interest(1, 20)}
    start = LOCALITY_EVERY_MS
    assert locality.decide(start, wishes, ALL) == (None, start + LOCALITY_AFTER_MS)
    assert locality.decide(start + LOCALITY_AFTER_MS - 1, wishes, ALL)[0] is None
    assert locality.decide(start + LOCALITY_AFTER_MS, wishes, ALL)[0] == "b"
    assert locality.decide(start + LOCALITY_AFTER_MS + 1, wishes, ALL)[0] is None


def test_locality_begins_anew_when_the_pull_ends() -> None:
    locality = Locality("a", -LOCALITY_EVERY_MS)
    strong, weak = {"b": Interest(1, 80), "c": Interest(1, 20)}, {"b": Interest(1, 79), "c": Interest(1, 21)}
    locality.decide(0, strong, ALL)
    assert locality.decide(9000, weak, ALL) == (None, 0)
    assert locality.decide(10_000, strong, ALL)[0] is None


def test_locality_never_leaves_an_owner_with_consumers_or_joins_a_node_without_a_copy() -> None:
    locality = Locality("a", -LOCALITY_EVERY_MS)
    for now_ms in (0, 20_000):
        assert locality.decide(now_ms, {"a": Interest(1, 1), "b": Interest(9, 900)}, ALL)[0] is None
        assert locality.decide(now_ms, {"b": Interest(9, 900)}, ("a", "c"))[0] is None


def test_a_rotating_owner_serves_its_own_node_and_hands_over() -> None:
    stage = Stage(ownership="rotating", ownership_hold_ms=500)
    stage.attach("a", consumers=[head()])
    stage.attach("c", consumers=[head()])
    stage.publish("a", 1, b"1", b"2")
    stage.commit()
    assert (stage.bodies_at("a"), stage.bodies_at("c")) == ([b"1", b"2"], [])
    assert stage.transfers == []
    stage.turn(500)
    assert stage.transfers == ["c"]


def test_a_node_that_waits_for_the_token_no_more_is_handed_what_is_ready() -> None:
    """Seed 5000667 of the simulation: it drained, and what had come before that was handed to nobody until the next
    message came."""
    stage = Stage(ownership="rotating", ownership_hold_ms=500)
    stage.attach("c", consumers=[head()])
    stage.publish("c", 1, b"1", b"2")
    stage.commit()
    assert (stage.bodies_at("c"), set(stage.transfers)) == ([], {"c"}), "it cannot be handed over now"
    stage.in_sync_names = ("a", "b")
    stage.queue.ring.mark()
    stage.turn()
    stage.commit()
    assert stage.bodies_at("c") == [b"1", b"2"]


def test_a_shared_queue_moves_to_its_consumers() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.turn(LOCALITY_AFTER_MS)
    stage.turn(LOCALITY_EVERY_MS)
    assert stage.transfers == ["b"]


def test_an_owner_with_a_consumer_of_its_own_is_not_woken_to_look() -> None:
    stage = Stage()
    for node in ALL:
        stage.attach(node, consumers=[head()])
    stage.wakes.clear()
    for first in range(1, 4):
        stage.publish("a", first, b"x")
        stage.commit()
        stage.turn(1)
    assert stage.wakes == []


def test_a_pull_is_looked_at_again_when_it_is_due_and_not_with_each_message() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.turn(LOCALITY_EVERY_MS)
    due_ms = stage.now_ms + LOCALITY_AFTER_MS
    stage.wakes.clear()
    for first in range(1, 4):
        stage.publish("b", first, b"x")
        stage.turn(1)
    assert set(stage.wakes) == {due_ms}
    stage.turn(LOOK_MS)
    stage.publish("b", 4, b"x")
    assert set(stage.wakes) == {due_ms}


def test_a_consumer_of_the_owners_node_ends_the_pull() -> None:
    stage = Stage()
    stage.attach("b", consumers=[head()])
    stage.turn(LOCALITY_EVERY_MS)
    stage.turn(LOCALITY_AFTER_MS - 1000)
    stage.attach("a", consumers=[head()])
    stage.turn(1)
    stage.cancel("a", 1)
    stage.turn(1000)
    stage.turn(LOCALITY_AFTER_MS - 1000)
    assert stage.transfers == []
    stage.turn(1000)
    assert stage.transfers == ["b"]
