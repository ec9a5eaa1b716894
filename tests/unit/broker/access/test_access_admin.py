"""Declarations, purges and deletions by a user without a connection: no protocol is needed for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.wire.amqp091.methods import QueueDeclare
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.node.node_cluster import Cluster


class Question:
    """Waits for its answer for ever, or until the test takes that back."""

    def __init__(self) -> None:
        self.wanted = True
        self.refused: list[str] = []

    def ask(self, queue: Any, withdraw: Any = None, instead: Any = None) -> None:
        pass

    def awaits(self) -> bool:
        return self.wanted

    def refuse(self, error: Any) -> None:
        self.refused.append(error.kind)

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        return then


def admin_of(node: Any, user: str = "guest") -> Admin:
    access = Authorization(node, "tool-1", user, AccountRights(node.map, user))
    access.vhost = node.vhosts["/"]
    return Admin(access)


def declare(admin: Admin, name: str, question: Question, heard: list[Any], **arguments: Any) -> None:
    command = admin.declare_queue(name, arguments, durable=True, auto_delete=False, exclusive=False, server_named=False)
    admin.order_queue(command, question, lambda ready, consumers: heard.append((ready, consumers)))


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_queue_from_its_declaration_to_its_end(nodes: int) -> None:
    world: Any = World() if nodes == 1 else Cluster("a", "b", "c")["b"]
    admin, question = admin_of(world.node), Question()
    heard: list[Any] = []
    declare(admin, "q", question, heard)
    world.turn()
    admin.order(admin.bind("amq.fanout", "q", "queue", "", {}), question, lambda applied: heard.append(applied.ok))
    world.turn()
    client = world.client()
    client.publish("amq.fanout", "", b"one")
    client.publish("amq.fanout", "", b"two")
    declare(admin, "q", question, heard)
    world.turn()
    assert heard == [(0, 0), True, (2, 0)]
    admin.purge_queue("q", question, heard.append)
    world.turn()
    queue = admin.may_delete_queue("q")
    assert queue is not None
    admin.delete_queue(queue, question, heard.append, if_unused=True, if_empty=True)
    world.turn()
    assert heard[3:] == [2, 0]
    assert admin.may_delete_queue("q") is None
    assert question.refused == []


def test_what_the_wiring_refuses_is_refused_to_the_question() -> None:
    world = World()
    admin, question, heard = admin_of(world.node), Question(), []
    declare(admin, "q", question, heard)
    declare(admin, "q", question, heard, **{"x-max-length": 5})
    world.turn()
    assert (question.refused, heard) == (["precondition_failed"], [(0, 0)])
    queue = admin.may_delete_queue("q")
    world.client().publish("", "q", b"there")
    admin.delete_queue(queue, question, heard.append, if_unused=False, if_empty=True)
    assert question.refused == ["precondition_failed"] * 2
    assert world.queue("q").ring.ready == 1


def test_an_answer_that_nobody_wants_changes_nothing_more() -> None:
    world = World()
    admin, question, heard = admin_of(world.node), Question(), []
    declare(admin, "q", question, heard)
    world.turn()
    world.wiring_waits = True
    admin.delete_queue(world.queue("q"), question, heard.append, if_unused=False, if_empty=False)
    question.wanted = False
    world.wiring_waits = False
    world.turn()
    assert heard == [(0, 0)]


def test_rights_are_asked_before_anything_is_ordered() -> None:
    world = World()
    world.command(c.SetPermission(user="eve", vhost="/", configure="mine", write="", read=""))
    admin, question, heard = admin_of(world.node, "eve"), Question(), []
    with pytest.raises(Refusal, match="configure access to queue 'q'"):
        declare(admin, "q", question, heard)
    with pytest.raises(Refusal, match="write access to queue 'mine'"):
        admin.bind("amq.fanout", "mine", "queue", "", {})
    with pytest.raises(Refusal, match="read access to queue 'mine'"):
        admin.purge_queue("mine", question, heard.append)
    declare(admin, "mine", question, heard)
    world.turn()
    assert heard == [(0, 0)]


def test_an_exclusive_queue_is_its_connections_own() -> None:
    world = World()
    world.client().say(QueueDeclare(queue="own", exclusive=True))
    with pytest.raises(Refusal) as refused:
        admin_of(world.node).may_delete_queue("own")
    assert refused.value.kind == "resource_locked"
