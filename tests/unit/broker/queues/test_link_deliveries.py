"""What a queue knows of the deliveries of recoverable links, and that its log knows the same."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from clusterbroker.broker.queues import link_deliveries
from clusterbroker.broker.queues.attributes import LINK_DELIVERY, LINK_NAME_BYTES
from clusterbroker.broker.queues.link_deliveries import AskedTags, LinkDeliveries, Tagged, value_of
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.journal.record import GroupWriter, SegmentUse
from tests.model.ring import Ring as ModelRing

LINK, OTHER = 7, 8


@pytest.fixture(params=[Ring, ModelRing], ids=["compiled", "model"])
def ring(request: pytest.FixtureRequest) -> Any:
    ring = request.param(1, True, 0, SegmentUse())
    ring.replicated = True
    return ring


def tagged(number: int, *tags: bytes, attach: int = 1, link: int = LINK, again: tuple[bytes, ...] = ()) -> Tagged:
    return Tagged(link, attach, number, list(tags), frozenset(again))


def state(ring: Any) -> list[tuple[tuple[int, bytes], int]]:
    return LINK_DELIVERY.of(ring.attributes)


def test_what_is_noted_is_known_and_stands_in_the_log(ring: Any) -> None:
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a", b"b"))
    assert deliveries.known(LINK, 1, (b"b", b"c", b"a")) == [b"b", b"a"]
    assert deliveries.known(OTHER, 1, (b"a",)) == []
    assert state(ring) == [((LINK, b"a"), value_of(1, 0)), ((LINK, b"b"), value_of(1, 1))]
    assert ring.emitted_attributes() == {}, "before its group"
    ring.write(GroupWriter(1, 0))
    assert ring.emitted_attributes() == ring.attributes
    assert LinkDeliveries(ring).all(LINK, 1) == [b"a", b"b"]


def test_a_tag_that_is_used_again_is_of_its_last_delivery(ring: Any) -> None:
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a", b"b"))
    deliveries.note(tagged(2, b"a"))
    assert len(deliveries) == 2
    assert deliveries.all(LINK, 1) == [b"b", b"a"]
    deliveries.forget(LINK, value_of(1, 1), [b"a", b"b", b"never"])
    assert deliveries.all(LINK, 1) == [b"a"], "what was said of the first delivery leaves the second alone"
    assert state(ring) == [((LINK, b"a"), value_of(1, 2))]


def test_what_comes_again_and_is_known_is_not_stored(ring: Any) -> None:
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a"))
    assert deliveries.new(tagged(0, b"a", attach=2), 1) is None, "a new delivery of an old tag"
    assert deliveries.new(tagged(0, b"c", attach=2, again=(b"c",)), 1) is None
    again = tagged(0, b"b", b"a", b"c", attach=2, again=(b"a", b"b"))
    assert deliveries.new(again, 1) == [0, 2]
    deliveries.note(again, [0, 2])
    assert deliveries.all(LINK, 1) == [b"a", b"b", b"c"]
    assert deliveries.new(again, 2) == [1, 2], "of a life before nothing counts"


def test_only_what_the_client_may_ask_for_is_kept_of_earlier_attaches(ring: Any) -> None:
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a", b"b", b"c"))
    deliveries.note(tagged(0, b"c", b"d", attach=2))
    deliveries.note(tagged(0, b"a", link=OTHER))
    deliveries.keep(LINK, 2, [b"b", b"never"])
    assert deliveries.all(LINK, 1) == [b"b", b"c", b"d"]
    deliveries.drop(LINK)
    assert deliveries.links == [OTHER]
    assert [name for name, _ in state(ring)] == [(OTHER, b"a")]
    assert len(deliveries) == 1


def test_an_answer_has_what_is_asked_for_first(ring: Any) -> None:
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a", b"b", b"c"))
    assert deliveries.answer(AskedTags(LINK, 2, (b"c", b"x")), 1) == [b"c"]
    assert deliveries.answer(AskedTags(LINK, 2, (b"c", b"x"), True), 1) == [b"c", b"a", b"b"]


def test_there_is_room_for_so_many_bytes(ring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_deliveries, "LINK_NAMES_BYTES_MAX", 3 * LINK_NAME_BYTES + 6)
    deliveries = LinkDeliveries(ring)
    deliveries.note(tagged(0, b"a", b"b"))
    assert [deliveries.has_room(tags) for tags in ([b"c"], [b"cc"], [b"c", b"d"])] == [True, False, False]
    deliveries.note(tagged(2, b"a"))  # another delivery of the tag: the name is there already
    assert deliveries.has_room([b"c"])
    deliveries.forget(LINK, value_of(1, 1), [b"b"])
    assert deliveries.has_room([b"c", b"d"])
    assert LinkDeliveries(ring).bytes_held == deliveries.bytes_held == LINK_NAME_BYTES + 2, "as its log says"


def test_names_take_about_the_memory_that_is_counted() -> None:
    ring, count = Ring(1, True, 0, SegmentUse()), 10_000
    ring.replicated = True
    deliveries = LinkDeliveries(ring)
    tracemalloc.start()
    try:
        deliveries.note(tagged(0, *(number.to_bytes(32, "big") for number in range(count))))
        ring.write(GroupWriter(1, 0))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * deliveries.bytes_held <= taken <= 1.5 * deliveries.bytes_held
