"""A mistake of ours in a queue's work costs the queue its turn, one in an answer the client, one in a frame the link:
the node goes on, nothing is lost, and an operator has the queue try again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from clusterbroker.broker.content.formats import Basic
from clusterbroker.broker.fronts.amqp091.channel import Channel
from clusterbroker.broker.node.mistakes import ALERT
from clusterbroker.broker.node.watching import Firehose
from clusterbroker.broker.queues.dead_lettering.replicated import ReplicatedDeadLetters
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.remote.ingest import Ingest
from clusterbroker.broker.remote.replies import Replies
from clusterbroker.broker.transactions.mover import Mover
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring_log import unlogged
from clusterbroker.journal.layout import PERSISTENT
from clusterbroker.journal.record import Message
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.node.places import declared, drained
from tests.unit.broker.node.test_inspecting import run
from tests.unit.broker.transactions.stager import Stager

DLX = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "grave"}
POISON = b"poison"


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """What the broker cannot decode any more, whatever the reason: headers with this word. Call it to mend that."""

    def mistaken(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(raw: bytes, *more: Any) -> Any:
            if POISON in raw:
                raise ValueError("cannot be read")
            return read(raw, *more)

        return reading

    patch, annotated = pytest.MonkeyPatch(), mistaken(Basic().annotated)
    patch.setattr(Basic, "annotated", lambda _, *given: annotated(*given))
    dying = mistaken(codec.decode)
    patch.setattr("clusterbroker.broker.node.dead_letters.properties_of", lambda message: dying(message.header))
    yield patch.undo  # type: ignore[misc]
    patch.undo()


def world_of(**options: Any) -> World:
    world = World(**options)
    world.story.forgives = True
    return world


def poison(client: Client, queue: str = "q", **more: Any) -> None:
    client.publish("", queue, b"1", headers={"BCC": ["nobody"], "mine": POISON.decode()}, **more)


def resume(world: Any, queue: str = "q") -> None:
    order = world.order if isinstance(world, Cluster) else world.command
    order(c.PauseQueue(vhost="/", name=queue, paused=False))
    world.turn()


def is_aside(site: Any, queue: str = "q", seq: int | None = 1) -> None:
    ((name, told, _),) = site.story.mistakes
    assert (name, told) == (queue, told if seq is None else seq)
    (alert,) = site.node.alerts
    assert (alert.kind, alert.subject) == (ALERT, f"{queue} (/)")
    assert f"clusterbroker queues resume '{queue}'" in alert.text
    assert site.node.map.queue("/", queue).paused, "for its next owner as well"


def test_a_message_that_cannot_be_shown_stays_in_its_place(poisoned: Callable[[], None]) -> None:
    world = world_of()
    alice, bob = world.client(), world.client()
    alice.ask(m.ConfirmSelect())
    alice.declare("q")
    alice.declare("other")
    alice.publish("", "q", b"0")
    poison(alice)
    alice.publish("", "q", b"2")
    assert bodies(bob.consume("q")) == [b"0"], "what came before it is delivered"
    is_aside(world, seq=2)
    assert [said.delivery_tag for said in alice.publish("", "q", b"3")] == [4], "what it takes is safe"
    assert bob.say(m.BasicAck(1, False)) == []
    assert world.queue("q").ring.acked == 1
    alice.publish("", "other", b"x")
    assert isinstance(alice.ask(m.BasicGet(queue="other", no_ack=True)), Content), "the node goes on"
    assert alice.ask(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    resume(world)
    assert len(world.story.mistakes) == 2, "it is tried again, and stumbles again"
    assert world.node.map.queue("/", "q").paused
    poisoned()
    resume(world)
    assert bodies(bob.hear()) == [b"1", b"2", b"3"]
    assert not len(world.node.alerts)


@pytest.mark.parametrize("journaled", [True, False])
def test_a_message_of_a_format_of_a_later_release_stays_in_its_place(journaled: bool) -> None:
    world = world_of(journaled=journaled)
    alice, bob = world.client(), world.client()
    alice.declare("q", durable=journaled)
    alice.publish("", "q", b"0", delivery_mode=2)
    later = Message(b"\x00\x01q", b"\x00\x00later", 2, PERSISTENT, format=7)
    world.queue("q").publish((later,), None, world.now_ms)
    world.turn()
    assert bodies(bob.consume("q", no_ack=True)) == [b"0"], "what came before it is delivered"
    is_aside(world, seq=2)
    assert "a message of format 7: this release cannot read it" in str(world.story.mistakes[0][2].__cause__)
    kept = world.queue("q").ring.message(2)
    assert kept is not None
    assert (kept.format, kept.payload, world.queue("q").ready) == (7, later.payload, 1)


def test_nor_by_a_get(poisoned: Callable[[], None]) -> None:
    world = world_of()
    alice = world.client()
    alice.declare("q")
    poison(alice)
    alice.say(m.BasicGet(queue="q"))
    assert [type(said) for said in alice.hear(0)] == [m.ConnectionClose], "who asked hears that it was our mistake"
    poisoned()
    resume(world)
    assert bodies([world.client().ask(m.BasicGet(queue="q"))]) == [b"1"]


@pytest.mark.parametrize("reason", ["expired", "maxlen", "rejected", "delivery_limit", "refused"])
def test_a_message_whose_letter_cannot_be_written_dies_later(reason: str, poisoned: Callable[[], None]) -> None:
    arguments: dict[str, Any] = {
        "expired": {"x_message_ttl": 10},
        "maxlen": {"x_max_length": 0},
        "delivery_limit": {"x_queue_type": "quorum", "x_delivery_limit": 0},
        "refused": {"x_max_length": 0, "x_overflow": "reject-publish-dlx"},
    }.get(reason, {})
    world = world_of()
    client = world.client()
    client.declare("grave")
    client.declare("q", **arguments, **DLX)
    client.publish("", "q", b"1", headers={"mine": POISON.decode()})
    if reason in ("rejected", "delivery_limit"):
        assert bodies(client.consume("q")) == [b"1"]
        client.say(m.BasicReject(1, reason == "delivery_limit"))
    world.wait(50)
    is_aside(world, seq=0 if reason == "refused" else 1)
    assert world.queue("grave").ring.ready == 0
    if reason not in ("refused", "rejected", "delivery_limit"):
        poisoned()
        world.crash()
        world.story.forgives = True
        client = world.client()
        resume(world)
        world.wait(50)
        assert bodies([client.ask(m.BasicGet(queue="grave"))]) == [b"1"], "a start finds it, too"
        return
    poisoned()
    resume(world)
    assert bodies([client.ask(m.BasicGet(queue="grave"))]) == [b"1"]


def test_a_start_survives_what_stands_in_the_journal(poisoned: Callable[[], None]) -> None:
    world = world_of()
    client = world.client()
    client.declare("grave")
    client.declare("q", x_message_ttl=10, **DLX)
    client.declare("other")
    client.publish("", "q", b"1", headers={"mine": POISON.decode()})
    client.publish("", "other", b"2")
    for _ in range(3):
        world.crash()
        world.story.forgives = True
        world.wait(100)
        assert world.node.map.queue("/", "q").paused
        assert world.queue("other").ring.ready == 1


def test_a_turn_that_raises_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    alice = world.client()
    alice.ask(m.ConfirmSelect())
    alice.declare("q")
    alice.declare("other")

    def fails(self: Queue, now_ms: int) -> None:
        if self.name == "q" and not self.paused:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "_serve", fails)
        alice.publish("", "q", b"1")
        alice.publish("", "other", b"2")
    is_aside(world, seq=0)
    assert [said for said in alice.say() if isinstance(said, m.ChannelClose)] == []
    resume(world)
    assert bodies(alice.consume("q")) == [b"1"]


def test_a_queue_whose_pause_never_came_into_the_wiring_is_resumed_as_well(poisoned: Callable[[], None]) -> None:
    """There was no majority just then. Before, to resume it was no change, so nothing came of it until a restart."""
    world = world_of()
    alice = world.client()
    alice.declare("grave")
    alice.declare("q", x_max_length=0, **DLX)
    world.wiring_waits = True
    poison(alice)
    ((command, done),) = [said for said in world.node.proposals if isinstance(said[0], c.PauseQueue)]
    world.node.proposals.remove((command, done))
    done(unlogged(command, Unavailable("no outcome in time")))
    world.wiring_waits = False
    world.turn()
    assert not world.node.map.queue("/", "q").paused
    assert [alert.kind for alert in world.node.alerts] == [ALERT]
    poisoned()
    resume(world)
    assert not len(world.node.alerts)
    assert bodies(alice.consume("grave")) == [b"1"]


def test_a_queue_that_is_set_aside_can_be_deleted(poisoned: Callable[[], None]) -> None:
    world = world_of()
    alice = world.client()
    alice.declare("grave")
    alice.declare("q", x_max_length=0, **DLX)
    poison(alice)
    assert len(world.node.alerts) == 1
    assert isinstance(alice.ask(m.QueueDelete(queue="q")), m.QueueDeleteOk)
    assert not len(world.node.alerts)
    assert world.node.effort.owed == 0


def test_a_lease_that_cannot_be_read(poisoned: Callable[[], None]) -> None:
    world = world_of()
    alice = world.client()
    alice.declare("q")
    poison(alice)
    reader = Reader(world.client())
    assert reader.take()["rows"] == 1
    code, text = reader.refused(x_stream_offset=1, x_stream_end=2)
    assert code == 404
    assert "may be repeated" in text
    is_aside(world)
    poisoned()
    resume(world)
    assert reader.read(1, 2) == [(1, b"1")]


# -- answers to channels


@contextmanager
def mistaken(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, when: Callable[..., bool]) -> Iterator[None]:
    real = getattr(kind, name)

    def fails(self: Any, *given: Any) -> Any:
        if when(self, *given):
            raise ZeroDivisionError
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, fails)
        yield


ANSWERED = {
    m.QueueDeclareOk: m.QueueDeclare(queue="new"),
    m.ExchangeDeclareOk: m.ExchangeDeclare(exchange="new"),
    m.BasicConsumeOk: m.BasicConsume(queue="q"),
    m.BasicGetEmpty: m.BasicGet(queue="q"),
    m.QueuePurgeOk: m.QueuePurge(queue="q"),
    m.QueueDeleteOk: m.QueueDelete(queue="q"),
    m.TxCommitOk: m.TxCommit(),
}


@pytest.mark.parametrize("answer", ANSWERED, ids=lambda answer: answer.NAME)
@pytest.mark.parametrize("clustered", [False, True])
def test_a_mistake_in_an_answer_costs_its_client(
    answer: type, clustered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world: Any = Cluster("a", "b", "c")["a"] if clustered else World()
    world.story.forgives = True
    alice, bob = world.client(), world.client()
    alice.declare("q")
    if answer is m.TxCommitOk:
        alice.ask(m.TxSelect())
        alice.publish("", "q", b"1")
    with mistaken(monkeypatch, Channel, "send", lambda _, method: isinstance(method, answer)):
        alice.say(ANSWERED[answer])
        if clustered:
            world.cluster.wait(1000)
    assert [type(error) for _, _, error in world.story.mistakes] == [ZeroDivisionError]
    (close,) = alice.hear(0)
    assert close.reply_code == 541
    assert isinstance(bob.ask(m.QueueDeclare(queue="mine")), m.QueueDeclareOk)
    assert not len(world.node.alerts), "no queue pays for it"


def test_a_client_that_goes_leaves_nothing_behind_whatever_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    alice = world.client(channels=2)
    alice.declare("q")
    alice.declare("p")
    alice.publish("", "q", b"1")
    alice.publish("", "p", b"2", b"3")
    assert bodies(alice.consume("q") + alice.consume("p", "other", channel=2)) == [b"1", b"2", b"3"]
    with mistaken(monkeypatch, Queue, "requeue", lambda queue, *_: queue.name == "q"):
        alice.leave()
    assert bodies(world.client().consume("p")) == [b"2", b"3"]
    is_aside(world, seq=0)
    assert not world.node.clients or alice.connection.id not in world.node.clients


# -- frames of other nodes


def cluster_of() -> tuple[Cluster, Site, Client]:
    cluster = Cluster("a", "b", "c")
    declared(cluster, "q", "a")
    declared(cluster, "other", "a")
    for site in cluster.sites.values():
        site.story.forgives = True
    client = cluster["b"].client()
    client.ask(m.ConfirmSelect())
    return cluster, cluster["a"], client


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_proxy_says_of_one_queue_costs_that_queue(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half carried out or not at all: it is said again when the queue tries again, and confirmed then."""
    cluster, owner, client = cluster_of()
    real = Ingest.publish

    def fails(self: Ingest, attachment: Any, *given: Any) -> None:
        if self._owned.queue.name == "q":
            if when == "after":
                real(self, attachment, *given)
            raise ZeroDivisionError
        real(self, attachment, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Ingest, "publish", fails)
        confirmed = client.publish("", "q", b"1")
        cluster.wait(1000)
        assert [said.delivery_tag for said in client.publish("", "other", b"2")] == [2]
    is_aside(owner, seq=0)
    assert not cluster.bad_frames
    resume(cluster)
    cluster.wait(1000)
    assert [said for said in (*confirmed, *client.hear(1)) if isinstance(said, m.BasicAck)]
    assert drained(cluster, "q") == [b"1"], "once"
    assert not len(owner.node.alerts)


def test_a_queue_that_is_set_aside_by_what_a_proxy_said_can_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _, client = cluster_of()
    with mistaken(monkeypatch, Ingest, "publish", lambda intake, *_: intake._owned.queue.name == "q"):
        client.publish("", "q", b"1")
    cluster["c"].client().say(m.QueueDelete(queue="q"))
    cluster.wait(1000)
    assert cluster["c"].map.queue("/", "q") is None


def test_letters_of_a_replicated_queue_wait_in_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b", "c")
    declared(cluster, "grave", "b")
    declared(cluster, "q", "a", x_message_ttl=50, **DLX)
    for site in cluster.sites.values():
        site.story.forgives = True
    client = cluster["b"].client()
    with mistaken(monkeypatch, ReplicatedDeadLetters, "_publish", lambda *_: True):
        client.publish("", "q", b"1", b"2", b"3")
        cluster.wait(1000)
    is_aside(cluster["a"])
    cluster.kill("a")
    cluster.wait(5000)
    resume(cluster)
    cluster.wait(5000)
    assert sorted(drained(cluster, "grave")) == [b"1", b"2", b"3"]


def test_a_frame_that_cannot_be_carried_out_costs_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, owner, client = cluster_of()
    asker = cluster["b"].client()
    asker.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    asker.publish("", "q", b"?", reply_to="amq.rabbitmq.reply-to")
    (asked,) = [said for said in owner.client().consume("q", no_ack=True) if isinstance(said, Content)]
    with mistaken(monkeypatch, Replies, "_target", lambda *_: True):
        owner.client().publish("", asked.properties.reply_to, b"!")
    assert [(who, type(error)) for who, _, error in cluster["b"].story.mistakes] == [("a", ZeroDivisionError)]
    assert [(node, peer) for node, peer, _ in cluster.bad_frames] == [("b", "a")]
    cluster.relink()
    cluster.wait(1000)
    assert [said.delivery_tag for said in client.publish("", "q", b"1")] == [1]


def test_and_what_a_node_says_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, owner, _ = cluster_of()
    client = owner.client()
    client.ask(m.ConfirmSelect())
    first = True

    def once(*_: Any) -> bool:
        nonlocal first
        first, was = False, first
        return was

    role = owner.node.role
    assert role is not None
    handlers = role.hub.handlers
    for head, handler in [(head, handler) for head, handler in handlers.items() if head.__name__ == "Publish"]:

        def fails(*given: Any, handler: Any = handler) -> None:
            if once():
                raise ZeroDivisionError
            handler(*given)

        handlers[head] = fails
    confirmed = client.publish("", "q", b"1")
    cluster.wait(5000)
    assert [said.delivery_tag for said in (*confirmed, *client.hear(1))] == [1]
    assert drained(cluster, "q") == [b"1"]


# -- what else is at work in a turn


def test_a_firehose_that_raises_costs_what_it_had_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    world.command(c.AddVhost(name="/", tracing=True))
    alice = world.client()
    alice.declare("q")
    alice.declare("told")
    alice.ask(m.QueueBind(queue="told", exchange="amq.rabbitmq.trace", routing_key="#"))
    with mistaken(monkeypatch, Firehose, "_trace_of", lambda *_: True):
        alice.publish("", "q", b"1")
    assert [type(error) for _, _, error in world.story.mistakes] == [ZeroDivisionError]
    assert world.queue("q").ring.ready == 1
    alice.publish("", "q", b"2")
    assert world.queue("told").ring.ready == 1


def staged(world: World, *rows: bytes) -> Stager:
    """Rows for "q", over amq.topic, that are not committed yet."""
    world.client().declare("q")
    stager = Stager(world.client(channels=2))
    world.client().ask(m.QueueBind(queue="q", exchange="amq.topic", routing_key="k"))
    stager.declare("txn.s")
    stager.stage("txn.s", *rows)
    return stager


def resume_staged(world: World) -> None:
    world.command(c.PauseQueue(vhost="/", name="txn.s", paused=False, staging=True))
    world.wait(1000)


@pytest.mark.parametrize("step", ["_route", "_give_part", "_settle"])
def test_rows_that_cannot_be_moved_stay_where_they_are(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    stager = staged(world, b"1", b"2")
    with mistaken(monkeypatch, Mover, step, lambda *_: True):
        assert stager.commit("txn.s")["outcome"] == "committed"
        world.wait(100)
        (alert,) = world.node.alerts
        assert alert.subject == "staged rows of txn.s (/)"
        assert "clusterbroker queues resume --staged 'txn.s'" in alert.text
        assert world.queue("q").ring.ready == (2 if step == "_settle" else 0)
        world.crash()
        world.wait(1000)
        (alert,) = world.node.alerts
        assert "raised ZeroDivisionError" in alert.text, "it is known why also to another process"
        resume_staged(world)
        assert len(world.story.mistakes) == 2, "it is tried again"
    resume_staged(world)
    assert world.queue("q").ring.ready == 2
    assert not len(world.node.alerts)
    assert not world.node.map.staging_queues("/"), "the segment is over"


def test_a_row_that_is_stumbled_over_again_and_again_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    stager = staged(world, b"bad", b"2", b"3")
    with mistaken(monkeypatch, Mover, "_route", lambda _self, message, *_: message.body == b"bad"):
        stager.commit("txn.s")
        world.wait(100)
        assert run(world, "delete", "txn.s", seqs=(1,)).done == 1
        resume_staged(world)
        assert world.queue("q").ring.ready == 2
        assert not len(world.node.alerts)


def test_the_cause_of_a_pause_outlives_the_process(poisoned: Callable[[], None]) -> None:
    """The queue is paused after a restart as well: an operator sees why."""
    world = world_of()
    alice = world.client()
    alice.declare("q")
    poison(alice)
    world.client().consume("q")
    is_aside(world)
    world.crash()
    assert world.node.map.queue("/", "q").paused
    (alert,) = world.node.alerts
    assert (alert.kind, alert.subject) == (ALERT, "q (/)")
    assert "message 1 raised ValueError: cannot be read; see the log" in alert.text
    world.command(c.PauseQueue(vhost="/", name="q", paused=True))
    assert world.node.map.queue("/", "q").paused_why, "an operator's pause takes no cause away"
    poisoned()
    resume(world)
    assert not len(world.node.alerts)
    assert world.node.map.queue("/", "q").paused_why == ""
    assert bodies(world.client().consume("q")) == [b"1"]


def test_and_the_life_of_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, site, client = cluster_of()
    with mistaken(monkeypatch, Queue, "turn", lambda *_: True):
        client.publish("", "q", b"1")
        cluster.wait(100)
    assert [alert.kind for alert in site.node.alerts] == [ALERT]
    cluster.kill("a")
    cluster.wait(3000)
    heir = cluster[cluster["b"].node.map.queue("/", "q").owner]
    assert heir is not site
    (alert,) = [alert for alert in heir.node.alerts if alert.kind == ALERT]
    assert "ZeroDivisionError" in alert.text


def test_a_reply_to_that_is_no_text_costs_nobody_anything() -> None:
    """It names another member's requester but for its end, which is no UTF-8: the member that answered ended."""
    cluster = Cluster("a", "b", "c")
    other = cluster["b"].client()
    other.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    (key,) = cluster["b"].node.reply_targets
    declared(cluster, "mine", "a")
    client = cluster["a"].client()
    word = b'{"queue": "mine", "name": "n", "run": "r"}'
    for end in ("\udcff", "\udcc3("):
        assert client.publish("amq.lease", "take", word, reply_to=key.rpartition("-")[0] + "-" + end) == []
        cluster.wait(1000)
    assert client.ended is None
    assert not cluster.bad_frames


@pytest.mark.parametrize("clustered", [False, True])
def test_an_operator_takes_out_what_a_queue_stumbled_over(clustered: bool, poisoned: Callable[[], None]) -> None:
    site: Any = Cluster("a", "b", "c")["a"] if clustered else World()
    site.story.forgives = True
    alice = site.client()
    alice.declare("q")
    poison(alice)
    alice.publish("", "q", b"2")
    bob = site.client()
    assert bob.consume("q") == []
    is_aside(site)
    assert run(site, "delete", seqs=(1,)).done == 1
    resume(site.cluster if clustered else site)
    assert bodies(bob.hear()) == [b"2"]
    assert len(site.story.mistakes) == 1
