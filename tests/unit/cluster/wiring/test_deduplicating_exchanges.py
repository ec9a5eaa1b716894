"""The map's part of exchanges that deduplicate."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.deduplication import CACHE_SIZE_MAX, bounds_of, cache_queue
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.exchange_rules import DEDUPLICATING, declaration
from clusterbroker.cluster.wiring.levels import DEDUPLICATING_EXCHANGES, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap


def declare(**arguments: Any) -> c.AnyCommand:
    said = {key.replace("_", "-"): value for key, value in arguments.items()}
    return declaration(DEDUPLICATING)(vhost="/", name="x", type=DEDUPLICATING, durable=True, arguments=said)


def folded(*commands: c.AnyCommand) -> ClusterMap:
    world = ClusterMap()
    for index, command in enumerate((c.AddVhost(name="/"), *commands), 1):
        if (error := world.apply(index, command).error) is not None:
            raise error
    return world


def queue_of(*commands: c.AnyCommand) -> Queue | None:
    return folded(*commands).queue("/", cache_queue("x"))


def test_its_queue_begins_and_ends_with_it() -> None:
    queue = queue_of(declare(x_cache_size=3, x_cache_ttl=1000))
    assert queue is not None
    assert (queue.compares, queue.part_of, queue.durable, bounds_of(queue.arguments)) == ("x", "x", True, (3, 1000))
    assert queue_of(declare(x_cache_size=3), c.DeleteExchange(vhost="/", name="x")) is None


def test_numbers_may_be_texts_as_clients_of_the_plug_in_send_them() -> None:
    queue = queue_of(declare(x_cache_size="5", x_cache_ttl="70", x_cache_persistence="disk"))
    assert queue is not None
    assert bounds_of(queue.arguments) == (5, 70)


@pytest.mark.parametrize("size", [None, 0, -1, True, "", "many", "5 ", 1.5, CACHE_SIZE_MAX + 1])
def test_a_size_is_needed(size: Any) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-cache-size'"):
        folded(declare(**({} if size is None else {"x_cache_size": size})))


@pytest.mark.parametrize("argument", [{"x_cache_ttl": 0}, {"x_cache_ttl": "soon"}, {"x_cache_persistence": "ram"}])
def test_the_other_arguments_have_their_forms(argument: Any) -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-cache-"):
        folded(declare(x_cache_size=1, **argument))


def test_a_declaration_again_says_the_same() -> None:
    folded(declare(x_cache_size=1), declare(x_cache_size=1))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-cache-size'"):
        folded(declare(x_cache_size=1), declare(x_cache_size=2))


def test_another_type_is_no_business_of_the_command() -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type"):
        folded(c.DeclareDeduplicatingExchange(vhost="/", name="x", type="fanout", arguments={"x-cache-size": 1}))


def test_a_cluster_needs_the_level() -> None:
    with pytest.raises(PreconditionFailed, match="feature level 7"):
        check_ordered(declare(x_cache_size=1), DEDUPLICATING_EXCHANGES - 1)
    check_ordered(declare(x_cache_size=1), DEDUPLICATING_EXCHANGES)
