"""The map's part of exchanges that choose a destination."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.exchange_rules import CHOOSING, declaration
from clusterbroker.cluster.wiring.levels import CHOOSING_EXCHANGES, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap


def folded(*commands: c.AnyCommand) -> ClusterMap:
    world = ClusterMap()
    for index, command in enumerate((c.AddVhost(name="/"), *commands), 1):
        if (error := world.apply(index, command).error) is not None:
            raise error
    return world


@pytest.mark.parametrize("kind", CHOOSING)
def test_each_type_is_declared_by_its_own_command(kind: str) -> None:
    command = declaration(kind)(vhost="/", name="x", type=kind)
    found = folded(command).exchange("/", "x")
    assert found is not None
    assert found.type == kind


@pytest.mark.parametrize("kind", CHOOSING)
def test_the_command_of_an_older_release_refuses_them_as_ever(kind: str) -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type"):
        folded(c.DeclareExchange(vhost="/", name="x", type=kind))


def test_another_type_is_no_business_of_the_command() -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type"):
        folded(c.DeclareChoosingExchange(vhost="/", name="x", type="direct"))


def test_a_declaration_again_must_say_the_same() -> None:
    command = declaration("x-random")(vhost="/", name="x", type="x-random")
    folded(command, command)
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type'"):
        folded(command, c.DeclareChoosingExchange(vhost="/", name="x", type="x-modulus-hash"))


def test_a_cluster_needs_the_level() -> None:
    command = declaration("x-random")(vhost="/", name="x", type="x-random")
    with pytest.raises(PreconditionFailed, match="feature level 5"):
        check_ordered(command, CHOOSING_EXCHANGES - 1)
    check_ordered(command, CHOOSING_EXCHANGES)


def test_bindings_of_a_local_exchange() -> None:
    made = declaration("x-local-random")(vhost="/", name="x", type="x-local-random")
    queue = c.DeclareQueue(vhost="/", name="q", durable=True)

    def bind(destination: str, kind: str, key: str = "") -> c.Bind:
        return c.Bind(vhost="/", source="x", destination=destination, destination_kind=kind, routing_key=key)

    folded(made, queue, bind("q", "queue"))
    with pytest.raises(PreconditionFailed, match="key not permitted"):
        folded(made, queue, bind("q", "queue", "k"))
    with pytest.raises(PreconditionFailed, match="queues only"):
        folded(made, queue, bind("amq.fanout", "exchange"))


@pytest.mark.parametrize("kind", ["direct", "x-random", "x-delayed-message"])
def test_a_pools_exchange_is_closed_to_every_declaration(kind: str) -> None:
    pool = c.DeclarePool(vhost="/", name="jobs")
    arguments = {"x-delayed-type": "direct"} if kind == "x-delayed-message" else {}
    command = declaration(kind)(vhost="/", name="jobs", type=kind, arguments=arguments)
    with pytest.raises(AccessRefused):
        folded(pool, command)


def test_an_import_may_not_touch_what_is_a_pools() -> None:
    world = folded(c.DeclarePool(vhost="/", name="jobs"))
    queue = c.DeclareQueue(vhost="/", name="jobs-req-k", durable=True)
    changing, refused = world.tried([queue], 10)
    assert not changing
    assert [error.text for error in refused], "it is told, and not passed over"
