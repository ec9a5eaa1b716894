"""What incomplete maps of a link named until a complete one comes."""

from __future__ import annotations

from clusterbroker.broker.node.open_maps import TAGS_MAX, OpenMaps


def test_the_next_attach_has_it_once() -> None:
    maps = OpenMaps()
    maps.leave(7, {b"a", b"b"})
    maps.leave(8, {b"c"})
    assert maps.take(7) == {b"a", b"b"}
    assert maps.take(7) == frozenset()
    assert maps.take(8) == {b"c"}


def test_a_link_that_has_ended_named_nothing() -> None:
    maps = OpenMaps()
    maps.leave(7, {b"a"})
    maps.drop(7)
    maps.drop(7)
    assert maps.take(7) == frozenset()


def test_a_map_after_which_everything_came_leaves_nothing() -> None:
    maps = OpenMaps()
    maps.leave(7, {b"a"})
    maps.leave(7, ())
    assert maps.take(7) == frozenset()


def test_the_oldest_series_is_given_up_for_want_of_room() -> None:
    maps = OpenMaps()
    many = {number.to_bytes(4, "big") for number in range(TAGS_MAX // 2)}
    for link in (1, 2, 3):
        maps.leave(link, many)
    assert maps.take(1) == frozenset()
    maps.leave(4, many)
    assert (maps.take(2), maps.take(3), maps.take(4)) == (frozenset(), many, many)
