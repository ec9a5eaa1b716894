"""Which answers must wait for the disk."""

from typing import Any

import pytest

from clusterbroker.cluster.ids import LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.durability import waits_for_disk
from clusterbroker.cluster.wiring.map import ClusterMap


@pytest.fixture
def view() -> ClusterMap:
    map_ = ClusterMap()
    for index, command in enumerate(
        (
            c.DeclareQueue(vhost="/", name="durable", durable=True),
            c.DeclareQueue(vhost="/", name="transient"),
            c.DeclareQueue(vhost="/", name="exclusive", exclusive=True, connection="c"),
            c.DeclareExchange(vhost="/", name="x", type="fanout"),
            c.Bind(vhost="/", source="amq.direct", destination="durable", routing_key="bound"),
        ),
        start=1,
    ):
        assert map_.apply(LogIndex(index), command).ok
    return map_


def bind(destination: str, source: str = "amq.direct", key: str = "", kind: type[Any] = c.Bind) -> Any:
    return kind(vhost="/", source=source, destination=destination, routing_key=key)


@pytest.mark.parametrize(
    "command, waits",
    [
        (c.DeclareQueue(vhost="/", name="new", durable=True), True),
        (c.DeclareQueue(vhost="/", name="new"), False),
        (c.DeclareQueue(vhost="/", name="new", durable=True, exclusive=True, connection="c"), False),
        (c.DeclareQueue(vhost="/", name="durable", durable=True), False),
        (c.DeclareExchange(vhost="/", name="new", type="fanout", durable=True), True),
        (c.DeclareExchange(vhost="/", name="new", type="fanout"), False),
        (c.DeclareExchange(vhost="/", name="amq.direct", type="direct", durable=True), False),
        (c.DeleteQueue(vhost="/", name="durable", queue_id=QueueId(1)), True),
        (c.DeleteQueue(vhost="/", name="transient", queue_id=QueueId(2)), False),
        (c.PauseQueue(vhost="/", name="durable"), True),
        (c.PauseQueue(vhost="/", name="durable", paused=False), False),
        (c.PauseQueue(vhost="/", name="transient"), False),
        (c.DeleteQueue(vhost="/", name="gone", queue_id=QueueId(99)), False),
        (c.DeleteExchange(vhost="/", name="amq.direct"), True),
        (c.DeleteExchange(vhost="/", name="x"), False),
        (bind("durable"), True),
        (bind("durable", key="bound"), False),
        (bind("transient"), False),
        (bind("exclusive"), False),
        (bind("durable", "x"), False),
        (bind("durable", kind=c.Unbind), False),
        (bind("durable", key="bound", kind=c.Unbind), True),
        (c.RemoveConnection(connection="c"), False),
        (c.ForgetTransient(node=NodeId("n")), False),
        (c.DeleteVhost(name="v"), True),
        (c.PutPolicy(vhost="/", name="p", pattern="", definition={}), True),
    ],
)
def test_waits(view: ClusterMap, command: c.AnyCommand, waits: bool) -> None:
    assert waits_for_disk(view, command) is waits
    if not waits:
        before = (
            [q for q in view.queues() if not q.transient],
            [b for b in view.bindings("/") if view.is_durable_binding(b)],
        )
        view.apply(LogIndex(view.applied + 1), command)
        after = (
            [q for q in view.queues() if not q.transient],
            [b for b in view.bindings("/") if view.is_durable_binding(b)],
        )
        assert after == before, "what does not wait leaves durable things alone"
