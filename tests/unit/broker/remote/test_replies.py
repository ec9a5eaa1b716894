"""Direct replies to clients of other nodes: they find their node by their key, and no other start of it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.remote.replies import Replies
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies


class Nodes:
    """Worlds that reach each other."""

    def __init__(self, **incarnations: int) -> None:
        self.alive: dict[str, int | None] = dict(incarnations)
        self.cut = False
        self.deaf = False
        self.worlds: dict[str, World] = {}
        for name in incarnations:
            world = self.worlds[name] = World(name=name)
            end = self.End(self, name)
            world.node.replies = Replies(end, self.alive.get)

    class End:
        """Where one node's frames go."""

        def __init__(self, nodes: Nodes, name: str) -> None:
            self.nodes = nodes
            self.name = name

        @property
        def reply_targets(self) -> Any:
            return self.nodes.worlds[self.name].node.reply_targets

        def send(self, node: str, head: Any, payload: Any = ()) -> bool:
            if self.nodes.cut:
                return False
            replies = self.nodes.worlds[node].node.replies
            assert replies is not None
            if not self.nodes.deaf:
                replies.handlers[type(head)](self.name, head, memoryview(b"".join(payload)))
            return True


def asked(nodes: Nodes) -> tuple[Any, Any, str]:
    """A requester at node "a-1", a server at "b", and the reply key in the request that the server got."""
    requester = nodes.worlds["a-1"].client()
    requester.consume("amq.rabbitmq.reply-to", tag="replies", no_ack=True)
    requester.declare("requests")
    requester.publish("", "requests", b"request", reply_to="amq.rabbitmq.reply-to")
    (request,) = requester.consume("requests", channel=1, tag="loop")
    server = nodes.worlds["b"].client()
    return requester, server, request.properties.reply_to


def test_a_reply_reaches_the_requester_at_its_node() -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    requester, server, key = asked(nodes)
    assert key.startswith("amq.rabbitmq.reply-to.a-1-1-")
    assert server.ask(m.QueueDeclare(queue=key, passive=True)) == m.QueueDeclareOk(key, 0, 1)
    assert server.publish("", key, b"reply", mandatory=True) == []
    nodes.worlds["a-1"].turn()
    assert bodies(requester.hear()) == [b"reply"]


def test_a_reply_that_can_reach_nobody_is_returned() -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    requester, server, key = asked(nodes)
    nodes.cut = True
    assert len(server.publish("", key, b"no link", mandatory=True)) == 1
    nodes.cut = False
    nodes.alive["a-1"] = 2
    assert len(server.publish("", key, b"of an older start", mandatory=True)) == 1
    nodes.alive["a-1"] = None
    assert len(server.publish("", key, b"no node", mandatory=True)) == 1
    assert len(server.publish("", "amq.rabbitmq.reply-to.nonsense", b"no key", mandatory=True)) == 1
    nodes.worlds["a-1"].turn()
    assert bodies(requester.hear()) == []
    assert server.ask(m.QueueDeclare(queue=key, passive=True)).reply_code == 404


def test_a_requester_that_left_loses_its_reply() -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    requester, server, key = asked(nodes)
    requester.leave()
    assert server.publish("", key, b"late", mandatory=True) == [], "only its own node knows"


def in_vhost_evil(world: World) -> Client:
    """A client that may only publish, and only in a vhost of its own."""
    world.command(c.AddVhost(name="evil"))
    world.command(c.SetPermission(user="eve", vhost="evil", configure="^$", write="^amq.default$", read="^$"))
    client = Client(world)
    client.enter("eve", "evil")
    client.say(m.ChannelOpen())
    return client


@pytest.mark.parametrize("at", ["a-1", "b"])
def test_a_key_is_one_of_its_vhost_only(at: str) -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    requester, server, key = asked(nodes)
    stranger = in_vhost_evil(nodes.worlds[at])
    stranger.publish("", key, b"forged")
    assert stranger.code(m.QueueDeclare(queue=key, passive=True)) == 404
    nodes.worlds["a-1"].turn()
    assert bodies(requester.hear()) == []
    server.publish("", key, b"reply")
    nodes.worlds["a-1"].turn()
    assert bodies(requester.hear()) == [b"reply"]


def test_whether_a_requester_is_there_its_node_is_asked() -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    requester, server, key = asked(nodes)
    probe = m.QueueDeclare(queue=key, passive=True)
    assert server.ask(probe) == m.QueueDeclareOk(key, 0, 1)
    assert requester.ask(probe) == m.QueueDeclareOk(key, 0, 1), "its own node"
    requester.say(m.BasicCancel("replies"))
    assert server.code(probe) == 404


def test_a_requester_that_cannot_be_reached_is_not_there() -> None:
    nodes = Nodes(**{"a-1": 1, "b": 1})
    _, server, key = asked(nodes)
    nodes.deaf = True
    probe = m.QueueDeclare(queue=key, passive=True)
    assert server.say(probe) == []
    nodes.worlds["b"].node.replies.unlinked("a-1")
    assert [heard.reply_code for heard in server.say()] == [404]
    nodes.cut = True
    assert nodes.worlds["b"].client().code(probe) == 404


def test_a_key_that_is_no_text_reaches_nobody() -> None:
    """It names a living node; the bytes behind are no UTF-8, and no link could carry them."""
    nodes = Nodes(**{"a-1": 1, "b": 1})
    _, _, key = asked(nodes)
    replies = nodes.worlds["b"].node.replies
    assert replies is not None
    for serial in ("\udcff", "\ud800", "1\udc80"):
        assert not replies.send("/", key.rpartition("-")[0] + "-" + serial, None)  # type: ignore[arg-type]
