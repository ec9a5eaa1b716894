"""What is decided of deliveries in doubt, row by row of the table in `resuming`."""

from __future__ import annotations

import pytest

from clusterbroker.amqp10.client.errors import ProtocolError
from clusterbroker.amqp10.client.links import SenderLink, Terms
from clusterbroker.amqp10.client.resuming import (
    OwnMap,
    PeerMap,
    Series,
    State,
    own_map,
    peer_map,
    plan_receiver,
    plan_sender,
)
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Modified, Received, Released, Source, Target
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.broker.wire.numbers import UInt64

HERE: dict[bytes, State] = {
    b"decided": None, b"part": None, b"begun": None, b"absent": None, b"over": Accepted(), b"settled": Accepted(),
}  # fmt: skip
THERE: dict[bytes, State] = {
    b"decided": Released(), b"part": Received(1, 7), b"begun": None, b"over": Accepted(), b"strange": None,
}  # fmt: skip


def test_a_sender_goes_on_from_both_maps() -> None:
    plan = plan_sender(OwnMap(HERE, False), PeerMap(THERE, False))
    assert plan.outcomes == {b"decided": Released()}
    assert plan.settle == (b"over",)
    assert plan.forget == (b"settled",)
    assert plan.resume == ((b"part", Received(1, 7)), (b"begun", None))
    assert plan.again == (b"absent",)
    assert not plan.is_partial


def test_of_an_incomplete_map_nothing_is_concluded_that_it_does_not_say() -> None:
    plan = plan_sender(OwnMap(HERE, False), PeerMap(THERE, True))
    assert (plan.forget, plan.again, plan.is_partial) == ((), (), True)
    assert plan_sender(OwnMap(HERE, True), PeerMap(THERE, False)).is_partial
    waits = plan_receiver(OwnMap(HERE, False), PeerMap(THERE, True))
    assert (waits.settled, waits.lost, waits.is_partial) == ((), (b"decided",), True)


def test_a_receiver_waits_for_what_both_have() -> None:
    plan = plan_receiver(OwnMap(HERE, False), PeerMap(THERE, False))
    assert plan.awaited == {b"part", b"begun", b"over"}
    assert plan.settled == (b"settled",)
    assert plan.lost == (b"decided", b"absent")


def test_an_outcome_that_the_peer_did_not_take_is_lost() -> None:
    own: dict[bytes, State] = {b"1": Accepted(), b"2": Modified(delivery_failed=True), b"3": Accepted()}
    peer: dict[bytes, State] = {b"1": Modified(delivery_failed=True), b"2": Modified(delivery_failed=True), b"3": None}
    plan = plan_receiver(OwnMap(own, False), PeerMap(peer, True))
    assert (plan.awaited, plan.settled, plan.lost, plan.is_partial) == ({b"2", b"3"}, (), (b"1",), True)


def test_another_modification_is_not_ours() -> None:
    """The peer took the delivery back: it comes again without our annotations, perhaps to us."""
    failed = Modified(delivery_failed=True)
    own: dict[bytes, State] = {
        b"1": Modified(delivery_failed=True, undeliverable_here=True), b"2": Modified(),
        b"3": Modified(delivery_failed=True, message_annotations={Symbol("x-opt-why"): "bad"}),
    }  # fmt: skip
    plan = plan_receiver(OwnMap(own, False), PeerMap(dict.fromkeys(own, failed), True))
    assert (plan.awaited, plan.lost) == (set(), (b"1", b"2", b"3"))
    plan = plan_receiver(OwnMap(own, False), PeerMap(dict(own), True))
    assert (plan.awaited, plan.lost) == (set(own), ())


def test_a_map_fits_its_frame() -> None:
    states = [(b"%04d" % number, Accepted() if number % 2 else None) for number in range(100)]
    assert own_map(states, 10_000) == (dict(states), False)
    cut = own_map(states, 200)
    assert cut.incomplete
    assert list(cut.states.items()) == states[: len(cut.states)]
    assert 10 < len(cut.states) < 20


@pytest.mark.parametrize("entries", [{"text": None}, {b"t": 1}, {b"t": Described(UInt64(0x28), [])}])
def test_a_map_of_something_else_is_refused(entries: dict[object, object]) -> None:
    with pytest.raises(ProtocolError):
        peer_map(entries, False)


def test_deliveries_take_turns_in_a_map_that_holds_not_all() -> None:
    """Those that were named in vain come last, until all have been."""
    series = Series()
    states: list[tuple[bytes, State]] = [(b"%04d" % number, None) for number in range(30)]
    named: set[bytes] = set()
    while len(named) < len(states):
        own = series.name(states, 200)
        assert own.incomplete
        assert not named or own.states.keys() - named
        named |= own.states.keys()
        series.took((), progress=False)
    series.name(states, 200)
    with pytest.raises(ProtocolError, match="none of the deliveries in doubt"):
        series.took((), progress=False)
    series.took((), progress=True)
    assert list(series.name(states, 1 << 20).states) == [tag for tag, _ in states]
    with pytest.raises(ProtocolError):
        series.took((), progress=False)


def test_a_series_waits_for_what_its_pair_of_maps_decides() -> None:
    series = Series()
    series.name([(b"1", None), (b"2", None)], 20)
    series.took({b"1"}, progress=False)
    assert not series.is_over
    series.settled(b"1")
    assert series.is_over
    series.detached()
    assert not series.is_over


def test_what_a_series_has_decided_stays_so_until_it_is_over() -> None:
    """Also when a connection is lost within it."""
    series = Series()
    series.never_arrived({b"1"})
    series.detached()
    assert series.has_decided(b"1")
    series.completed()
    assert not series.has_decided(b"1")


def sender_in_doubt(*tags: bytes) -> SenderLink:
    link = SenderLink(Terms("s", Source(), Target(address="x"), recoverable=True))
    for tag in tags:
        link.restore(tag, b"", None)
    return link


def room_for(link: SenderLink, count: int) -> int:
    return next(size for size in range(1000) if len(link.map(size).states) == count)


def test_what_was_not_sent_again_is_in_doubt_as_before() -> None:
    """The peer of an exchange has none of them in its map, whatever its queues have."""
    link = sender_in_doubt(b"1", b"2")
    assert link.map(1000).states.keys() == {b"1", b"2"}
    link.resume(PeerMap({}, False))
    sent = link.queue[0]
    link.credit, sent.begun, sent.doubt = 1, True, True
    link.sent(sent)
    link.lost()
    assert link.map(1000).states.keys() == {b"1", b"2"}


def test_the_rest_of_a_map_has_none_of_its_first_part() -> None:
    link = sender_in_doubt(b"1", b"2", b"3")
    size = room_for(link, 1)
    [first] = link.series.own.states
    link.resume(PeerMap({}, False))
    link.lost()
    [second] = link.map(size).states
    link.resume(PeerMap({}, False))
    link.lost()
    [third] = link.map(size).states
    assert {first, second, third} == {b"1", b"2", b"3"}
    assert not link.series.own.incomplete
    link.resume(PeerMap({}, False))
    assert [each.tag for each in link.queue] == [b"1", b"2", b"3"], "sent again in their order"
    link.lost()
    assert link.map(1000).states.keys() == {b"1", b"2", b"3"}, "the series is over, and they were not sent"
