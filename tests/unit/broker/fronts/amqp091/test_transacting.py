"""tx: what is staged is nowhere, what is committed is everywhere, durably, and after a crash all of it or none."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies


def transactional(world: World) -> Client:
    client = world.client()
    client.declare("take")
    client.declare("put")
    client.publish("", "take", b"1", b"2", b"3")
    client.ask(m.TxSelect())
    assert bodies(client.consume("take")) == [b"1", b"2", b"3"]
    return client


def counts(world: World, queue: str) -> tuple[int, int]:
    ring = world.queue(queue).ring
    return ring.ready, ring.unacked


def test_nothing_happens_before_the_commit_and_all_with_it() -> None:
    world = World()
    client = transactional(world)
    client.publish("", "put", b"moved")
    client.say(m.BasicAck(1))
    assert (counts(world, "take"), counts(world, "put")) == ((0, 3), (0, 0))
    assert client.ask(m.TxCommit()) == m.TxCommitOk()
    assert (counts(world, "take"), counts(world, "put")) == ((0, 2), (1, 0))


def test_commit_ok_waits_for_the_disk_and_later_methods_wait_for_it() -> None:
    world = World()
    client = transactional(world)
    world.disk_waits = True
    client.publish("", "put", b"moved")
    assert client.say(m.BasicAck(1), m.TxCommit(), m.BasicQos()) == []
    world.commit()
    assert client.hear() == [m.TxCommitOk(), m.BasicQosOk()]


def test_commit_ok_waits_for_the_group_after_the_one_under_way() -> None:
    world = World()
    client, other = transactional(world), world.client()
    world.disk_waits = True
    other.publish("", "put", b"under way")
    assert client.say(m.BasicAck(1), m.TxCommit()) == []
    world.complete()
    world.node.turn(world.now_ms)
    assert client.hear() == []
    world.turn()
    world.commit()
    assert client.hear() == [m.TxCommitOk()]


@pytest.mark.parametrize("survives", [0, 1])
@pytest.mark.parametrize("patience", [False, True])
def test_after_a_crash_a_transaction_is_whole(survives: int, patience: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if patience:
        monkeypatch.setattr("clusterbroker.broker.node.core.PATIENCE_BYTES_PER_MS", 0)
    world = World()
    client = transactional(world)
    other = world.client()
    other.consume("put")
    world.wait(100)
    world.disk_waits = True
    other.publish("", "take", b"more")  # much is published, and the queues have consumers
    while not world.journal.idle:
        world.commit()
    client.publish("", "put", b"moved")
    client.say(m.BasicAck(1), m.TxCommit())
    assert not world.journal.idle, "a transaction waits for no patience"
    world.crash(survives)
    assert world.queue("put").ring.ready == survives
    assert bodies(world.client().consume("take"))[: 1 - survives] == [b"1"][survives:]


def test_an_acknowledged_unwritten_half_is_held_for_the_other() -> None:
    """The message is settled before it was ever written: its publisher must not be told before the commit is safe."""
    world = World()
    publisher, mover = world.client(), world.client()
    for name in ("take", "put", "busy"):
        publisher.declare(name)
    world.disk_waits = True
    publisher.publish("", "busy", b"keeps the disk at work")
    publisher.ask(m.ConfirmSelect())
    publisher.publish("", "take", b"1")
    mover.ask(m.TxSelect())
    mover.consume("take")
    mover.publish("", "put", b"1")
    mover.say(m.BasicAck(1), m.TxCommit())
    assert (publisher.hear(), mover.hear()) == ([], [])
    world.commit()
    assert (publisher.hear(), mover.hear()) == ([], []), "the group under way held neither half"
    world.commit()
    assert (publisher.hear(), mover.hear()) == ([m.BasicAck(1, True)], [m.TxCommitOk()])
    world.crash()
    assert (counts(world, "take"), counts(world, "put")) == ((0, 0), (1, 0))


def test_rollback_forgets_publishes_and_returns_acknowledgements_without_requeueing() -> None:
    world = World()
    client = transactional(world)
    client.publish("", "put", b"never")
    assert client.say(m.BasicAck(2, True), m.TxRollback()) == [m.TxRollbackOk()]
    assert (counts(world, "take"), counts(world, "put")) == ((0, 3), (0, 0))
    assert client.say(m.BasicAck(1), m.BasicAck(3, True), m.TxCommit()) == [m.TxCommitOk()], "the tags live"
    assert counts(world, "take") == (0, 0)


def test_checks_are_immediate() -> None:
    world = World()
    client = transactional(world)
    assert client.code(m.BasicAck(9)) == 406
    client = transactional(World())
    client.say(m.BasicAck(1))
    assert client.code(m.BasicAck(1)) == 406, "it is staged already"
    client = transactional(World())
    assert client.publish("none", "", b"x")[0].reply_code == 404


def test_returns_come_before_commit_ok() -> None:
    client = transactional(World())
    assert client.publish("", "nobody", b"back", mandatory=True) == []
    returned, done = client.say(m.TxCommit())
    assert isinstance(returned, Content)
    assert done == m.TxCommitOk()


def test_outcomes() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.publish("", "q", b"0", b"1", b"2", b"3", b"4")
    client.ask(m.TxSelect())
    client.consume("q")
    client.say(m.BasicNack(2, False, True), m.BasicReject(3, False), m.BasicNack(4, False, False))
    assert (counts(world, "q"), counts(world, "dead")) == ((0, 5), (0, 0))
    heard = client.say(m.TxCommit())
    assert m.TxCommitOk() in heard
    assert [(said.body, said.method.redelivered) for said in heard if isinstance(said, Content)] == [(b"1", True)]
    assert counts(world, "dead") == (2, 0)


def test_what_returns_comes_before_what_is_published_with_it_also_in_a_queue_with_a_length() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_length=2)
    client.ask(m.TxSelect())
    world.client().publish("", "q", b"old")
    client.consume("q")
    client.publish("", "q", b"1", b"2", b"3")
    client.say(m.BasicReject(1, True))
    assert bodies(client.say(m.TxCommit())) == [b"old", b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["close", "leave", "error"])
def test_a_channel_that_ends_gives_back_what_was_staged(how: str) -> None:
    world = World()
    client = transactional(world)
    client.publish("", "put", b"never")
    client.say(m.BasicAck(2))
    if how == "leave":
        client.leave()
    else:
        client.say(m.ChannelClose() if how == "close" else m.BasicAck(77))
    assert (counts(world, "take"), counts(world, "put")) == ((3, 0), (0, 0))
    assert [said.method.redelivered for said in world.client().consume("take")] == [True] * 3


def test_a_commit_that_a_full_queue_refuses_ends_the_connection() -> None:
    world = World()
    client = transactional(world)
    client.declare("full", x_max_length=0, x_overflow="reject-publish")
    client.publish("", "full", b"x")
    client.say(m.TxCommit())
    assert client.hear(0)[-1].reply_code == 541


def test_an_empty_commit_needs_no_disk() -> None:
    world = World()
    client = world.client()
    world.disk_waits = True
    assert client.say(m.TxSelect(), m.TxCommit(), m.TxCommit()) == [m.TxSelectOk(), m.TxCommitOk(), m.TxCommitOk()]


def test_a_connection_that_is_lost_during_its_commit() -> None:
    world = World()
    client = transactional(world)
    world.disk_waits = True
    client.publish("", "put", b"moved")
    client.say(m.BasicAck(1), m.TxCommit())
    client.leave()
    world.commit()
    world.turn()
    assert (counts(world, "take"), counts(world, "put")) == ((2, 0), (1, 0)), "it was committed all the same"


def test_modes_exclude_each_other() -> None:
    client = World().client()
    assert client.code(m.TxCommit()) == 406
    client.say(m.ChannelCloseOk(), m.ChannelOpen())
    assert client.code(m.TxRollback()) == 406
    client.say(m.ChannelCloseOk(), m.ChannelOpen())
    client.say(m.TxSelect(), m.TxSelect())
    assert client.code(m.ConfirmSelect()) == 406


def test_a_direct_reply_goes_with_the_commit() -> None:
    world = World()
    requester, server = world.client(), world.client()
    requester.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    (key,) = world.node.reply_targets
    server.ask(m.TxSelect())
    server.publish("", key, b"taken back")
    server.ask(m.TxRollback())
    server.publish("", key, b"reply")
    assert bodies(requester.hear()) == []
    assert server.ask(m.TxCommit()) == m.TxCommitOk()
    assert bodies(requester.hear()) == [b"reply"]
    requester.say(m.BasicCancel("r"))
    requester.say(m.ChannelClose(200, ""))
    server.publish("", key, b"to nobody", mandatory=True)
    heard = server.say(m.TxCommit())
    assert [type(said) for said in heard] == [Content, m.TxCommitOk]


def test_who_publishes_one_by_one_to_one_queue_may_bring_as_much_as_a_transaction_holds() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.say(m.TxSelect())
    content = client.content("", "q", bytes(1000))
    for _ in range(28_000):
        client.raw(content)
    assert client.say(m.TxCommit()) == [m.TxCommitOk()]
    assert world.queue("q").ring.ready == 28_000
