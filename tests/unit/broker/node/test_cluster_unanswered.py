"""Who asks for a queue that nobody owns, or whose owner says nothing, is told so, and does not wait for ever."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access.questions import LOCKED_MS, OWNERLESS_MS
from clusterbroker.broker.queues.handle import UNANSWERED_MS
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, confirming, count, declared, drained, gone, three

QUESTIONS = [
    m.QueueDeclare(queue="q", passive=True),
    m.QueueDeclare(queue="q", durable=True, arguments={"x-replicas": 1}),
    m.BasicConsume(queue="q"),
    m.BasicGet(queue="q"),
]


def ownerless(**arguments: Any) -> tuple[Cluster, str, Client]:
    """Three nodes without the one that had the only copy of q; the lost node; a client elsewhere."""
    cluster = three()
    owner = declared(cluster, "q", x_replicas=1, **arguments)
    confirming(cluster, away(cluster, "q")[0]).publish("", "q", b"x")
    client = cluster[away(cluster, "q")[0]].client()
    cluster.kill(owner)
    assert cluster.queue("q").owner is None
    return cluster, owner, client


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.NAME)
def test_a_queue_without_an_owner_is_404(question: Any) -> None:
    cluster, owner, client = ownerless()
    assert client.say(question) == []
    cluster.wait(OWNERLESS_MS - 500)
    assert client.say() == [], "it may still come"
    cluster.wait(1000)
    (closed,) = client.say()
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, question.CLASS_ID, question.METHOD_ID)
    home = f"home node '{owner}' of durable queue 'q' in vhost '/' is down or inaccessible"
    assert closed.reply_text == f"NOT_FOUND - {home}"
    assert client.ended is None
    client.say(m.ChannelCloseOk())
    cluster.restart(owner)
    cluster.wait(2000)
    again = cluster[owner].client()
    assert bodies([again.ask(m.BasicGet(queue="q"))]) == [b"x"], "nothing that was asked for in vain took it"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.NAME)
def test_an_owner_that_is_back_in_time_answers(question: Any) -> None:
    cluster, owner, client = ownerless()
    assert client.say(question) == []
    cluster.wait(OWNERLESS_MS - 3000)
    cluster.restart(owner)
    cluster.wait(10_000)
    (answer, *_) = client.say()
    assert not isinstance(answer, m.ChannelClose | m.ConnectionClose), answer


LASTING = [m.QueuePurge(queue="q"), m.QueueDelete(queue="q", if_unused=True)]


@pytest.mark.parametrize("question", LASTING, ids=lambda question: question.NAME)
def test_what_would_be_carried_out_later_is_refused_at_once(question: Any) -> None:
    cluster, owner, client = ownerless()
    closed = client.ask(question)
    assert (type(closed), closed.reply_code) == (m.ChannelClose, 404)
    cluster.restart(owner)
    cluster.wait(2000)
    assert bodies([cluster[owner].client().ask(m.BasicGet(queue="q"))]) == [b"x"]


def test_an_owner_that_does_not_answer_is_541() -> None:
    cluster = three()
    owner = declared(cluster, "q")
    asker = away(cluster, "q")[0]
    client = cluster[asker].client()
    for other in "abc":
        if other != owner:
            cluster.unlink(owner, other)
    assert client.say(m.BasicGet(queue="q")) == []
    cluster.wait(UNANSWERED_MS - 1000)
    assert client.say() == []
    cluster.wait(2000)
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 541)
    assert closed.reply_text == "INTERNAL_ERROR - timed out waiting for the owner of queue 'q' in vhost '/'"


def dying(question: Any) -> tuple[Cluster, str, Client]:
    """As `ownerless`, but the client has asked when the owner was dead and nobody knew it yet."""
    cluster = three()
    owner = declared(cluster, "q", x_replicas=1)
    client = cluster[away(cluster, "q")[0]].client()
    cluster.kill(owner, failed=False)
    assert client.say(question) == []
    cluster.order(c.FailNode(node=NodeId(owner), incarnation=Incarnation(cluster[owner].incarnation)))
    cluster.turn()
    return cluster, owner, client


def test_a_deletion_without_conditions_does_not_wait_for_an_owner_that_is_lost_meanwhile() -> None:
    cluster, _, client = dying(m.QueueDelete(queue="q"))
    assert client.say() == [m.QueueDeleteOk(0)]
    assert gone(cluster, "q")


@pytest.mark.parametrize("question", LASTING, ids=lambda question: question.NAME)
def test_what_was_given_up_with_541_does_not_take_what_is_published_afterwards(question: Any) -> None:
    cluster, owner, client = dying(question)
    cluster.wait(UNANSWERED_MS + 1000, 500)
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 541)
    again = confirming(cluster, away_from(owner))
    assert again.publish("", "q", b"later") == []
    cluster.restart(owner)
    cluster.wait(4000)
    assert again.hear() == [m.BasicAck(1, True)]
    assert drained(cluster, "q") == [b"later"]


@pytest.mark.parametrize("question", LASTING, ids=lambda question: question.NAME)
def test_an_owner_that_was_asked_before_it_opened_does_not_do_later_what_was_given_up_with_541(question: Any) -> None:
    cluster = three()
    owner = declared(cluster, "q")
    asker, other = away(cluster, "q")
    client = cluster[asker].client()
    role = cluster[owner].node.role
    assert role is not None
    role.lease(False)  # it has its links, and is asked, but may not answer
    assert client.say(question) == []
    cluster.wait(UNANSWERED_MS + 1000, 500)
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 541)
    again = confirming(cluster, other)
    assert again.publish("", "q", b"later") == [m.BasicAck(1, True)]
    role.lease(True)
    cluster.wait(8000)
    assert not gone(cluster, "q")
    assert drained(cluster, "q", asker) == [b"later"]


@pytest.mark.parametrize("passive", [False, True])
def test_a_queue_that_ends_with_its_node_while_it_is_declared_again(passive: bool) -> None:
    """A client that was on the lost node comes back sooner than the loss is known."""
    cluster = three()
    cluster["a"].client().ask(m.QueueDeclare(queue="q"))
    assert cluster.queue("q").owner == "a"
    client = cluster["b"].client()
    cluster.kill("a", failed=False)
    assert client.say(m.QueueDeclare(queue="q", passive=passive)) == []
    cluster.order(c.FailNode(node=NodeId("a"), incarnation=Incarnation(cluster["a"].incarnation)))
    cluster.turn()
    (answer,) = client.say()
    if passive:
        assert (answer.reply_code, answer.reply_text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")
    else:
        assert answer == m.QueueDeclareOk("q", 0, 0)
        assert cluster.queue("q").owner == "b"
        client.publish("", "q", b"x")
        assert bodies([client.ask(m.BasicGet(queue="q"))]) == [b"x"]


def test_an_exclusive_queue_is_declared_again_by_a_client_that_comes_from_a_lost_node() -> None:
    """Sooner than the loss is known: 405 would tell it that somebody else has the queue."""
    cluster = three()
    cluster["a"].client().ask(m.QueueDeclare(queue="mine", exclusive=True))
    client = cluster["b"].client()
    cluster.kill("a", failed=False)
    assert client.say(m.QueueDeclare(queue="mine", exclusive=True)) == []
    cluster.wait(1800)
    cluster.order(c.FailNode(node=NodeId("a"), incarnation=Incarnation(cluster["a"].incarnation)))
    cluster.turn()
    assert client.say() == [m.QueueDeclareOk("mine", 0, 0)]
    assert cluster.queue("mine").owner == "b"


def test_an_exclusive_queue_of_a_node_that_lives_is_locked_at_once_and_of_one_that_is_silent_after_a_while() -> None:
    cluster = three()
    cluster["a"].client().ask(m.QueueDeclare(queue="mine", exclusive=True))
    declare = m.QueueDeclare(queue="mine", exclusive=True)
    assert cluster["b"].client().code(declare) == 405
    client, gone, closing = (cluster["b"].client() for _ in range(3))
    cluster.unlink("a", "b")
    cluster.unlink("a", "c")  # or it would be asked through that one
    for one in (client, gone, closing):
        assert one.say(declare) == []
    gone.leave()
    closing.say(m.ChannelClose())
    cluster.wait(LOCKED_MS - 500)
    assert client.say() == []
    cluster.wait(1000)
    (closed,) = client.say()
    assert closed.reply_code == 405
    assert closing.say()[-1] == m.ChannelCloseOk()
    cluster.relink()
    cluster.turn()
    assert client.say() == []


def away_from(owner: str) -> str:
    return next(name for name in "abc" if name != owner)


@pytest.mark.parametrize("leaves", [False, True], ids=["404", "connection lost"])
def test_a_consumer_that_nobody_waits_for_any_more_does_not_end_an_auto_delete_queue(leaves: bool) -> None:
    cluster = three()
    declare = m.QueueDeclare(queue="q", durable=True, auto_delete=True, arguments={"x-replicas": 1})
    cluster["a"].client().ask(declare)
    owner = str(cluster.queue("q").owner)
    confirming(cluster, away_from(owner)).publish("", "q", b"x")
    client = cluster[away_from(owner)].client()
    cluster.kill(owner)
    assert client.say(m.BasicConsume(queue="q")) == []
    if leaves:
        client.leave()
    else:
        cluster.wait(OWNERLESS_MS + 500)
        assert client.say()[0].reply_code == 404
    cluster.restart(owner)
    cluster.wait(2000)
    assert not gone(cluster, "q")
    assert count(cluster, "q") == 1


def test_a_channel_that_is_closed_while_it_waits_is_closed_once() -> None:
    cluster = Cluster("a", "b", "c", consumer_timeout_ms=5000)
    owner = declared(cluster, "q", x_replicas=1)
    declared(cluster, "p", away_from(owner))
    client = cluster[away_from(owner)].client()
    client.publish("", "p", b"x")
    client.ask(m.BasicGet(queue="p"))
    cluster.kill(owner)
    assert client.say(m.BasicGet(queue="q")) == []
    cluster.wait(6000)
    (closed,) = client.say(m.ChannelCloseOk())
    assert closed.reply_code == 406, "it held a message for too long"
    assert client.say(m.ChannelOpen()) == []
    cluster.wait(OWNERLESS_MS)
    assert client.say() == [m.ChannelOpenOk()]


def test_what_was_asked_in_vain_is_forgotten() -> None:
    cluster, owner, _ = ownerless()
    site = cluster[away_from(owner)]
    role = site.node.role
    assert role is not None
    questions = role.remote_queues.queues[cluster.queue("q").queue_id]._questions
    for _ in range(20):
        client = site.client()
        assert client.say(m.BasicGet(queue="q")) == []
        client.leave()
        cluster.wait(10_000, 1000)
    assert len(questions) <= UNANSWERED_MS // 10_000 + 1
    cluster.wait(UNANSWERED_MS, 1000)
    cluster.restart(owner)
    cluster.wait(2000)
    (got,) = site.client().say(m.BasicGet(queue="q"))
    assert got.method.message_count == 0
    assert bodies([got]) == [b"x"]
    assert not questions
