"""Single messages for a session that is no channel of 0-9-1, and questions of one that parks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterbroker.broker.access.authorization import Authorization
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.receiver import Got, get
from clusterbroker.broker.access.rights import AccountRights
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.handle import UNANSWERED_MS, QueueHandle
from clusterbroker.cluster.wiring.commands import SetPermission
from clusterbroker.journal.record import Message
from tests.unit.broker.fronts.amqp091.harness import World, bodies
from tests.unit.broker.node.node_cluster import Cluster


class Session:
    """Holds what it gets."""

    def __init__(self, world: World, user: str = "guest") -> None:
        node = world.node
        self.world = world
        self.access = Authorization(node, "session", user, AccountRights(node.map, user))
        self.access.vhost = node.vhosts["/"]
        self.counts = ChannelCounts()
        self.deadlines: list[Callable[[int], bool]] = []
        self.ending: str | None = None
        self.held: list[tuple[QueueHandle, int]] = []
        self.heard: list[Any] = []

    def hold(self, queue: QueueHandle, seq: int | None, message: Message) -> int:
        if seq is not None:
            self.held.append((queue, seq))
        return len(self.held)

    def get(self, name: str, settled: bool = False) -> list[Any]:
        self.heard.clear()
        get(self, name, Pending(self), self.heard.append, settled=settled)
        self.world.turn()
        return self.heard

    def refuse(self, error: Any) -> None:
        self.heard.append(error.kind)

    def crashed(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("far", [False, True])
def test_a_message_and_what_remains_or_nothing(far: bool) -> None:
    cluster = Cluster("a", "b", "c")
    rabbit = cluster["a"].client()
    rabbit.declare("q")
    for body in (b"1", b"2", b"3"):
        rabbit.publish("", "q", body)
    owner = cluster.queue("q").owner
    session = Session(cluster[next(name for name in "abc" if (name == owner) is not far)])
    (first,) = session.get("q")
    assert isinstance(first, Got)
    assert (first.message.body, first.redelivered, first.tag, first.remaining) == (b"1", False, 1, 2)
    (second,) = session.get("q", settled=True)
    assert (second.message.body, second.remaining, len(session.held)) == (b"2", 1, 1)
    ((queue, seq),) = session.held
    queue.requeue(seq, False)
    cluster.turn()
    assert [content.body for content in rabbit.consume("q")] == [b"1", b"3"]
    assert session.get("q") == [None]
    assert (session.counts.got, session.counts.get_no_ack, session.counts.get_empty) == (1, 1, 1)


def test_refusals_are_kinds() -> None:
    world = World()
    rabbit = world.client()
    rabbit.declare("s", x_queue_type="stream")
    rabbit.declare("single", x_queue_type="quorum", x_single_active_consumer=True)
    for name, kind in (("none", "not_found"), ("s", "not_implemented"), ("single", "resource_locked")):
        with pytest.raises(Refusal) as refused:
            Session(world).get(name)
        assert refused.value.kind == kind
    world.command(SetPermission(user="eve", vhost="/", configure="", write="", read=""))
    with pytest.raises(Refusal, match="read access to queue 's'"):
        Session(world, "eve").get("s")


def test_a_message_for_a_session_that_has_ended_goes_back() -> None:
    world = World()
    rabbit = world.client()
    rabbit.declare("q")
    rabbit.publish("", "q", b"1")
    session = Session(world)
    session.ending = "abort"
    assert session.get("q") == []
    assert bodies(rabbit.consume("q")) == [b"1"]


def test_a_question_without_an_answer_is_refused_in_time_or_withdrawn() -> None:
    world = World()
    world.client().declare("q")
    session, withdrawn = Session(world), []
    Pending(session).ask(world.queue("q"), lambda: withdrawn.append(1))
    (overdue,) = session.deadlines
    asked_ms = world.node.now_ms
    assert not overdue(asked_ms + UNANSWERED_MS - 1)
    assert overdue(asked_ms + UNANSWERED_MS)
    assert (session.heard, withdrawn) == (["internal_error"], [1])
    Pending(session).ask(world.queue("q"), lambda: withdrawn.append(1))
    session.ending = "abort"
    assert session.deadlines[1](asked_ms)
    assert withdrawn == [1, 1]
