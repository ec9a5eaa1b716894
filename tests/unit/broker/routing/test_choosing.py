"""One destination of several: by chance, by a number, by the keys."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.choosing import EVERY, Draws, by_modulus, numbered, one_of
from clusterbroker.broker.routing.router import Router

QUEUES = [Destination(name) for name in "abcd"]


def test_draws_are_even() -> None:
    draws = Draws()
    counts = Counter(draws(4) for _ in range(8000))
    assert set(counts) == {0, 1, 2, 3}
    assert all(1800 < count < 2200 for count in counts.values())


@given(st.permutations(QUEUES), st.binary(min_size=1, max_size=20), st.integers(0, 2**62))
def test_a_number_chooses_the_same_whatever_the_order(shuffled: list[Destination], producer: bytes, seq: int) -> None:
    number = numbered(producer, seq)
    assert one_of(shuffled, number, Draws()) == one_of(QUEUES, number, Draws())


def test_numbers_reach_all() -> None:
    counts = Counter(next(iter(one_of(QUEUES, numbered(b"p", seq), Draws()))) for seq in range(4000))
    assert all(800 < counts[queue] < 1200 for queue in QUEUES)


def test_a_question_gets_all() -> None:
    assert list(one_of(QUEUES, EVERY, Draws())) == QUEUES


def test_keys_choose_and_copies_count() -> None:
    assert by_modulus(QUEUES, ("k",)) == by_modulus(QUEUES, ("k",))
    assert len({by_modulus(QUEUES, ("k", f"{copy}")) for copy in range(100)}) == 4


def router_of(kind: str, here: str) -> Router[str]:
    router: Router[str] = Router(lambda name: name, is_here=lambda queue: queue in here)
    router.add_exchange("x", kind)
    for queue in QUEUES:
        router.add_queue(queue.name)
        router.bind(Binding("x", queue))
    return router


def test_a_local_exchange_takes_queues_that_are_here() -> None:
    router = router_of("x-local-random", "bd")
    counts = Counter(router.route("x", f"{i}").queues for i in range(200))
    assert set(counts) == {("b",), ("d",)}


def test_a_local_exchange_without_queues_here_leads_nowhere() -> None:
    assert router_of("x-local-random", "").route("x", "k").queues == ()


def test_what_has_a_number_goes_by_it_wherever_queues_are() -> None:
    number = numbered(b"p", 7)
    routes = {router_of("x-local-random", here).route("x", "", number=number).queues for here in ("", "a", "bcd")}
    assert len(routes) == 1
    assert routes != {()}


def test_nothing_chosen_by_chance_is_remembered() -> None:
    router = router_of("x-random", "abcd")
    assert router.route("x", "k").uncacheable
    assert len({router.route("x", "k").queues for _ in range(100)}) == 4


def test_a_question_about_a_way_is_told_all_queues() -> None:
    assert router_of("x-random", "abcd").reach("x", "k", number=EVERY).queues == ("a", "b", "c", "d")


def test_a_modulus_follows_its_bindings() -> None:
    router = router_of("x-modulus-hash", "abcd")
    before = {key: router.route("x", key).queues for key in ("k", "l", "m", "n", "o", "p")}
    assert before == {key: router.route("x", key).queues for key in before}
    for queue in QUEUES[1:]:
        router.unbind(Binding("x", queue))
    assert {router.route("x", key).queues for key in before} == {("a",)}
    router.unbind(Binding("x", QUEUES[0]))
    assert router.route("x", "k").queues == ()


def delayed_behind(kind: str) -> Router[str]:
    """E chooses (or not) between two delayed exchanges, each before a queue."""
    router: Router[str] = Router(lambda name: name)
    router.add_exchange("e", kind)
    for number in "12":
        router.add_exchange(f"d{number}", "fanout", delays=f"amq.delay.d{number}")
        router.add_queue(f"q{number}")
        router.bind(Binding("e", Destination(f"d{number}", is_exchange=True)))
        router.bind(Binding(f"d{number}", Destination(f"q{number}")))
    return router


def test_what_waited_at_a_chosen_exchange_goes_its_way_alone() -> None:
    router = delayed_behind("x-random")
    for seq in range(40):
        route = router.due("d1", "e", ("k",), dict, None, numbered(b"p", seq))
        assert route.queues == ("q1",)
        assert route.uncacheable, "chance has decided: nobody may remember it"


def test_what_waited_before_all_goes_to_all() -> None:
    route = delayed_behind("fanout").due("d1", "e", ("k",), dict)
    assert route.queues == ("q1", "q2")
    assert not route.uncacheable
