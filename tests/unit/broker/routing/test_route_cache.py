from clusterbroker.broker.routing.route_cache import RouteCache


def test_what_was_put_is_found_until_cleared() -> None:
    cache: RouteCache[str] = RouteCache(100)
    cache.put(("x", "k"), "route", 10)
    assert cache.get(("x", "k")) == "route"
    assert cache.get(("x", "other")) is None
    cache.clear()
    assert cache.get(("x", "k")) is None
    assert cache.size_bytes() == 0


def test_a_flood_of_new_keys_is_bounded_and_spares_the_key_in_use() -> None:
    cache: RouteCache[str] = RouteCache(1_000)
    cache.put(("x", "hot"), "hot", 10)
    for number in range(10_000):
        cache.put(("x", f"stranger-{number}"), "cold", 10)
        if number % 50 == 0:
            assert cache.get(("x", "hot")) == "hot"
        assert cache.size_bytes() <= 2_000
    assert len(cache) <= 200
    assert cache.get(("x", "stranger-0")) is None


def test_what_is_too_large_is_not_kept() -> None:
    cache: RouteCache[str] = RouteCache(100)
    cache.put(("x", "small"), "small", 90)
    cache.put(("x", "large"), "large", 101)
    assert cache.get(("x", "large")) is None
    assert cache.get(("x", "small")) == "small"


def test_replacing_an_entry_counts_it_once() -> None:
    cache: RouteCache[str] = RouteCache(100)
    for size_bytes in (10, 60, 30):
        cache.put(("x", "k"), str(size_bytes), size_bytes)
    assert cache.get(("x", "k")) == "30"
    assert cache.size_bytes() == 30
