from collections.abc import Mapping

import pytest

from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.router import Router


def same(name: str) -> str:
    return name


def to_queue(source: str, queue: str, key: str = "", arguments: Mapping[str, object] | None = None) -> Binding:
    return Binding(source, Destination(queue), key, arguments or {})


def to_exchange(source: str, target: str, key: str = "") -> Binding:
    return Binding(source, Destination(target, is_exchange=True), key)


@pytest.fixture
def router() -> Router[str]:
    made: Router[str] = Router(same)
    for queue in ("a", "b", "c"):
        made.add_queue(queue)
    return made


def test_the_default_exchange_reaches_every_queue_by_name(router: Router[str]) -> None:
    assert router.route("", "b").queues == ("b",)
    assert router.route("", "b").targets == ("b",)
    unroutable = router.route("", "nobody")
    assert unroutable.queues == ()
    assert unroutable.found_exchange
    assert router.route("", "c", cc_keys=("a", "c", "nobody")).queues == ("a", "c")


def test_a_new_queue_is_seen_although_its_absence_was_cached(router: Router[str]) -> None:
    assert router.route("", "new").queues == ()
    router.add_queue("new")
    assert router.route("", "new").queues == ("new",)
    router.remove_queue("new")
    assert router.route("", "new").queues == ()


def test_a_missing_exchange_is_said_and_not_remembered(router: Router[str]) -> None:
    route = router.route("x", "k")
    assert not route.found_exchange
    assert route.queues == ()
    router.add_exchange("x", "direct")
    assert router.route("x", "k").found_exchange


def test_queues_are_sorted_and_named_once(router: Router[str]) -> None:
    router.add_exchange("x", "topic")
    for queue, key in [("c", "#"), ("a", "k.*"), ("a", "*.k"), ("b", "k.k"), ("c", "k.#")]:
        router.bind(to_queue("x", queue, key))
    assert router.route("x", "k.k").queues == ("a", "b", "c")


def test_every_change_of_the_wiring_empties_the_cache(router: Router[str]) -> None:
    generations = [router.generation]

    def check(expected: tuple[str, ...]) -> None:
        assert router.generation > generations[-1]
        generations.append(router.generation)
        assert router.route("x", "k").queues == expected
        assert router.route("x", "k") is router.route("x", "k")

    router.add_exchange("x", "direct")
    check(())
    router.bind(to_queue("x", "a", "k"))
    check(("a",))
    router.add_exchange("alternate", "fanout")
    check(("a",))
    router.bind(to_queue("alternate", "c"))
    router.set_alternate("x", "alternate")
    check(("a",))
    router.unbind(to_queue("x", "a", "k"))
    check(("c",))
    router.remove_exchange("alternate")
    check(())
    router.bind(to_queue("x", "b", "k"))
    check(("b",))
    router.remove_queue("b")
    check(())


def test_exchange_to_exchange_bindings_may_form_circles(router: Router[str]) -> None:
    for name in ("x", "y", "z"):
        router.add_exchange(name, "fanout")
    router.bind(to_exchange("x", "y"))
    router.bind(to_exchange("y", "z"))
    router.bind(to_exchange("z", "x"))
    router.bind(to_exchange("x", "x"))
    router.bind(to_queue("z", "a"))
    router.bind(to_queue("y", "a"))
    router.bind(to_queue("x", "b"))
    for name in ("x", "y", "z"):
        assert router.route(name, "k").queues == ("a", "b")


def test_the_key_travels_with_the_message_to_the_next_exchange(router: Router[str]) -> None:
    router.add_exchange("x", "topic")
    router.add_exchange("y", "direct")
    router.bind(to_exchange("x", "y", "log.#"))
    router.bind(to_queue("y", "a", "log.error"))
    router.bind(to_queue("y", "b", "error"))
    assert router.route("x", "log.error").queues == ("a",)
    assert router.route("x", "error").queues == ()


def test_alternates_are_followed_in_a_chain_with_a_guard(router: Router[str]) -> None:
    router.add_exchange("x", "direct", alternate="y")
    router.add_exchange("y", "direct", alternate="z")
    router.add_exchange("z", "direct", alternate="x")
    assert router.route("x", "k").queues == ()
    router.bind(to_queue("z", "c", "k"))
    assert router.route("x", "k").queues == ("c",)
    router.bind(to_queue("x", "a", "k"))
    assert router.route("x", "k").queues == ("a",)
    assert router.route("x", "other").queues == ()


def test_an_alternate_that_does_not_exist_is_as_none(router: Router[str]) -> None:
    router.add_exchange("x", "direct", alternate="gone")
    route = router.route("x", "k")
    assert route.queues == ()
    assert route.found_exchange


def test_being_bound_to_an_exchange_that_finds_nothing_is_an_answer(router: Router[str]) -> None:
    """RabbitMQ asks the alternate of the exchange that matched nothing, here y's and not x's."""
    router.add_exchange("x", "fanout", alternate="caught")
    router.add_exchange("y", "direct")
    router.add_exchange("caught", "fanout")
    router.bind(to_queue("caught", "c"))
    router.bind(to_exchange("x", "y"))
    assert router.route("x", "k").queues == ()
    router.set_alternate("y", "caught")
    assert router.route("x", "k").queues == ("c",)


def test_the_alternate_is_asked_only_when_no_key_matches(router: Router[str]) -> None:
    router.add_exchange("x", "direct", alternate="caught")
    router.add_exchange("caught", "fanout")
    router.bind(to_queue("caught", "c"))
    router.bind(to_queue("x", "a", "k"))
    assert router.route("x", "none", cc_keys=("k",)).queues == ("a",)
    assert router.route("x", "none", cc_keys=("neither",)).queues == ("c",)
    assert router.route("x", "none").queues == ("c",)


def test_routes_with_copies_do_not_poison_the_cache(router: Router[str]) -> None:
    router.add_exchange("x", "direct")
    router.bind(to_queue("x", "a", "k"))
    router.bind(to_queue("x", "b", "copy"))
    assert router.route("x", "k").queues == ("a",)
    assert router.route("x", "k", cc_keys=("copy",)).queues == ("a", "b")
    assert router.route("x", "k").queues == ("a",)


def test_a_fanout_is_remembered_once_for_all_keys(router: Router[str]) -> None:
    router.add_exchange("x", "fanout")
    router.bind(to_queue("x", "a"))
    first = router.route("x", "k1")
    assert router.route("x", "k2") is first
    # behind it something that reads keys: not any more
    router.add_exchange("y", "direct")
    router.bind(to_exchange("x", "y"))
    router.bind(to_queue("y", "b", "k2"))
    assert router.route("x", "k1").queues == ("a",)
    assert router.route("x", "k2").queues == ("a", "b")


def test_a_direct_exchange_before_a_fanout_still_reads_keys(router: Router[str]) -> None:
    router.add_exchange("x", "direct")
    router.add_exchange("y", "fanout")
    router.bind(to_exchange("x", "y", "k"))
    router.bind(to_queue("y", "a"))
    assert router.route("x", "k").queues == ("a",)
    assert router.route("x", "other").queues == ()


def test_headers_are_read_once_and_only_when_needed(router: Router[str]) -> None:
    reads: list[int] = []

    def headers() -> Mapping[str, object]:
        reads.append(1)
        return {"kind": "pdf"}

    router.add_exchange("x", "direct")
    router.add_exchange("h", "headers")
    router.add_exchange("i", "headers")
    router.bind(to_queue("x", "a", "k"))
    assert router.route("x", "k", headers).queues == ("a",)
    assert reads == []
    router.bind(to_exchange("x", "h", "k"))
    router.bind(to_exchange("x", "i", "k"))
    router.bind(to_queue("h", "b", "", {"kind": "pdf"}))
    router.bind(to_queue("i", "c", "", {"kind": "text"}))
    route = router.route("x", "k", headers)
    assert route.queues == ("a", "b")
    assert route.uncacheable
    assert reads == [1]
    assert router.route("x", "k", lambda: {"kind": "text"}).queues == ("a", "c")
    assert router.route("x", "k", lambda: None).queues == ("a",)
    assert router.route("x", "k").queues == ("a",)


def test_hashing_by_property(router: Router[str]) -> None:
    router.add_exchange("x", "x-consistent-hash", {"hash-property": "correlation_id"})
    for queue in ("a", "b", "c"):
        router.bind(to_queue("x", queue, "1"))
    found = {
        router.route("x", "same key", property_of=lambda _, number=number: f"id-{number}").queues
        for number in range(100)
    }
    assert found == {("a",), ("b",), ("c",)}


def test_internal_exchanges_are_marked_but_routed(router: Router[str]) -> None:
    router.add_exchange("x", "fanout", internal=True)
    router.add_exchange("y", "fanout")
    router.bind(to_queue("x", "a"))
    router.bind(to_exchange("y", "x"))
    assert router.route("x", "k").internal
    assert router.route("x", "k").queues == ("a",)
    assert not router.route("y", "k").internal
    assert not router.route("", "a").internal


def test_objects_are_resolved_and_missing_ones_are_not_remembered() -> None:
    objects: dict[str, list[str]] = {"a": ["queue a"]}
    router: Router[list[str]] = Router(objects.get)
    router.add_queue("a")
    router.add_queue("b")
    router.add_exchange("x", "fanout")
    router.bind(to_queue("x", "a"))
    router.bind(to_queue("x", "b"))
    early = router.route("x", "k")
    assert early.queues == ("a",)
    assert early.uncacheable
    objects["b"] = ["queue b"]
    route = router.route("x", "k")
    assert route.queues == ("a", "b")
    assert route.targets[1] is objects["b"]
    objects["a"] = ["queue a, reborn"]
    router.forget()
    assert router.route("x", "k").targets[0] is objects["a"]


def test_bindings_go_with_the_queue(router: Router[str]) -> None:
    router.add_exchange("x", "direct")
    router.add_exchange("y", "topic")
    gone = [to_queue("x", "a", "k"), to_queue("x", "a", "l"), to_queue("y", "a", "#")]
    for binding in [*gone, to_queue("x", "b", "k")]:
        router.bind(binding)
    assert router.remove_queue("a") == gone
    assert router.remove_queue("a") == []
    assert router.route("x", "k").queues == ("b",)
    router.add_queue("a")
    assert router.route("y", "k").queues == ()


def test_bindings_go_with_the_exchange(router: Router[str]) -> None:
    for name in ("x", "y"):
        router.add_exchange(name, "fanout")
    bindings = [to_queue("x", "a"), to_exchange("x", "x"), to_exchange("y", "x"), to_exchange("x", "y")]
    for binding in [*bindings, to_queue("y", "b")]:
        router.bind(binding)
    removed = router.remove_exchange("x")
    assert sorted(map(repr, removed)) == sorted(map(repr, bindings))
    assert router.route("y", "").queues == ("b",)
    assert router.remove_queue("a") == []
    assert not router.route("x", "k").found_exchange
    assert router.remove_exchange("x") == []


def test_questions(router: Router[str]) -> None:
    router.add_exchange("x", "topic")
    router.bind(to_queue("x", "b", "#"))
    assert router.exchange_type("x") == "topic"
    assert router.exchange_type("") == "direct"
    assert router.exchange_type("y") is None
    assert not router.bind(to_queue("x", "b", "#"))
    assert not router.unbind(to_queue("y", "b", "#"))


def test_a_key_flood_stays_within_the_bound() -> None:
    router: Router[str] = Router(same, cache_half_bytes_max=100_000)
    router.add_queue("q")
    router.add_exchange("x", "topic")
    router.bind(to_queue("x", "q", "#"))
    for number in range(3_000):
        assert router.route("x", f"random.{number}").queues == ("q",)
        assert router.route("", f"random.{number}").queues == ()
    assert router._cache.size_bytes() <= 200_000


def delaying(*delayed: str) -> Router[str]:
    """Delayed exchanges behind `both`, each with a queue of its own and `q`."""
    router: Router[str] = Router(lambda name: name, clock=lambda: 1000)
    router.add_exchange("both", "fanout")
    router.add_queue("q")
    for name in delayed:
        router.add_exchange(name, "direct", delays=f"wait.{name}")
        router.add_queue(f"own.{name}")
        router.bind(Binding("both", Destination(name, is_exchange=True), ""))
        for queue in ("q", f"own.{name}"):
            router.bind(Binding(name, Destination(queue), "k"))
    return router


def test_a_message_waits_once_at_the_first_delayed_exchange_by_name() -> None:
    router = delaying("b", "a")
    assert router.route("both", "k", lambda: {"x-delay": 5}).queues == ("wait.a",)
    assert router.route("both", "k", lambda: {"x-delay": 0}).queues == ("own.a", "own.b", "q")


def test_all_delayed_exchanges_that_it_meets_then_route_it_when_it_is_due() -> None:
    router = delaying("b", "a")
    assert router.due("a", "both", ("k",), dict).queues == ("own.a", "own.b", "q")
    assert router.due("a", "a", ("k",), dict).queues == ("own.a", "q")
    assert router.due("a", "gone", ("k",), dict).queues == ("own.a", "q"), "where it was published is no more"
    router.unbind(Binding("both", Destination("b", is_exchange=True), ""))
    assert router.due("a", "both", ("k",), dict).queues == ("own.a", "q")


def test_the_ways_of_a_delayed_exchange_are_known_by_the_key() -> None:
    router = delaying("a")
    ways = router.ways("a", "k")
    assert ways is not None
    now, waiting = ways
    assert (now.queues, waiting.queues) == (("own.a", "q"), ("wait.a",))
    assert waiting.leads_on is not None
    assert waiting.leads_on()
    assert router.ways("both", "k") is None
    lost = router.ways("a", "other")
    assert lost is not None
    assert lost[1].leads_on is not None
    assert not lost[1].leads_on()
    router.add_exchange("h", "headers", delays="wait.h")
    assert router.ways("h", "k") is None, "it depends on more"
