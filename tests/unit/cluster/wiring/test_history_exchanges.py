"""The map's part of exchanges that keep their recent messages."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.exchange_rules import HISTORY, declaration
from clusterbroker.cluster.wiring.histories import LENGTH, history_queue
from clusterbroker.cluster.wiring.levels import RECENT_HISTORY, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.queue_rules import NAME_BYTES_MAX


def declare(name: str = "x", **arguments: object) -> c.AnyCommand:
    said = {key.replace("_", "-"): value for key, value in arguments.items()}
    return declaration(HISTORY)(vhost="/", name=name, type=HISTORY, durable=True, arguments=said)


def folded(*commands: c.AnyCommand) -> ClusterMap:
    world = ClusterMap()
    for index, command in enumerate((c.AddVhost(name="/"), *commands), 1):
        if (error := world.apply(index, command).error) is not None:
            raise error
    return world


def test_its_queue_begins_and_ends_with_it() -> None:
    world = folded(declare(x_recent_history_length=3))
    queue = world.queue("/", history_queue("x"))
    assert queue is not None
    assert (queue.recalls, queue.durable, queue.arguments["x-max-length"]) == ("x", True, 3)
    assert folded(declare(), c.DeleteExchange(vhost="/", name="x")).queue("/", history_queue("x")) is None


def test_without_a_length_it_keeps_what_the_plug_in_keeps() -> None:
    queue = folded(declare()).queue("/", history_queue("x"))
    assert queue is not None
    assert queue.arguments["x-max-length"] == LENGTH == 20


def test_its_queue_is_closed() -> None:
    world = folded(declare())
    bind = c.Bind(vhost="/", source="x", destination=history_queue("x"), destination_kind="queue")
    assert isinstance(world.apply(9, bind).error, AccessRefused)
    queue = world.queue("/", history_queue("x"))
    assert queue is not None
    assert not world.apply(10, c.DeleteQueue(vhost="/", name=queue.name, queue_id=queue.queue_id)).result


def test_a_long_name_has_a_queue_too() -> None:
    names = {history_queue("x" * 254 + letter) for letter in "ab"}
    assert len(names) == 2
    assert max(len(name) for name in names) <= NAME_BYTES_MAX


def test_another_type_is_no_business_of_the_command() -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type"):
        folded(c.DeclareHistoryExchange(vhost="/", name="x", type="fanout"))


def test_a_cluster_needs_the_level() -> None:
    with pytest.raises(PreconditionFailed, match="feature level 6"):
        check_ordered(declare(), RECENT_HISTORY - 1)
    check_ordered(declare(), RECENT_HISTORY)
