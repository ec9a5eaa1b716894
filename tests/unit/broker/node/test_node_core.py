"""The node's turn: the agenda ends, sleepers wake, alarms block, groups hold what belongs together."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node import core
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import GroupWriter
from tests.unit.broker.fronts.amqp091.harness import HEADER, Client, World, bodies


def test_an_idle_node_wants_nothing() -> None:
    world = World()
    world.client().declare("q")
    node = world.node
    assert not node.busy
    assert node.next_wake_ms is None
    assert (node.writes, node.sending, node.proposals, node.loads, node.checks) == ({}, {}, [], [], [])


def test_the_agenda_ends_though_queues_feed_each_other() -> None:
    world = World()
    client = world.client()
    for number in range(20):
        client.declare(f"q{number}", x_message_ttl=0, x_dead_letter_exchange="all")
    client.say(m.ExchangeDeclare(exchange="all", type="fanout"))
    for number in range(20):
        client.say(m.QueueBind(queue=f"q{number}", exchange="all", routing_key=str(number)))
    for number in range(3, 20):
        client.say(m.QueueUnbind(queue=f"q{number}", exchange="all", routing_key=str(number)))
    client.publish("", "q7", b"1")
    world.wait(50)
    assert not world.node.busy
    assert sum(queue.ring.ready for queue in world.node.queues.values()) == 0


def test_wakes_come_once_and_the_earliest_first() -> None:
    world = World()
    client = world.client()
    client.declare("late", x_message_ttl=5000)
    client.declare("early", x_message_ttl=1000)
    client.publish("", "late", b"1")
    client.publish("", "early", b"1")
    begin = world.now_ms
    assert world.node.next_wake_ms == begin + 1001
    client.say(m.QueuePurge(queue="early"))
    client.say(m.QueueDelete(queue="early"))
    assert world.node.next_wake_ms == begin + 5001, "a deleted queue is not woken"
    world.wait(6000)
    assert world.queue("late").ring.ready == 0
    assert world.node.next_wake_ms is None


def test_a_password_that_is_known_at_once_cuts_no_death_in_two() -> None:
    """What comes between the turn and the group marks queues; a group must not hold one half of what they did."""
    world = World()
    setup = world.client()
    setup.declare("dead")
    setup.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    setup.declare("busy")
    setup.ask(m.ConfirmSelect())
    world.disk_waits = True
    setup.publish("", "busy", b"keeps the disk at work")
    setup.publish("", "q", b"waits for the next group")
    world.complete()
    hasty = Client(world)
    hasty.raw(HEADER)
    out = hasty._out
    for channel, method in (
        (0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
        (0, m.ConnectionTuneOk(2047, 131072, 0)),
        (0, m.ConnectionOpen("/")),
        (1, m.ChannelOpen()),
        (1, m.BasicGet(queue="q")),
        (1, m.BasicReject(1, False)),
    ):
        out.method(channel, m.encode(method))
    hasty.raw(bytes(out.take()))
    world._turn()  # one turn of the loop: the password is answered between the turn and the group
    assert hasty.hear()[-1].body == b"waits for the next group"
    world.complete()
    world._turn()
    assert m.BasicAck(2, True) in setup.hear()
    world.crash()
    assert [world.queue(name).ring.ready for name in ("q", "dead")] == [0, 1]


def test_a_barrier_passes_with_the_group_that_holds_all_before_it() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    passed: list[Ticket] = []
    world.node.barrier(Ticket(1, 1, passed.append))
    world.turn()
    assert len(passed) == 1, "nothing was under way"
    world.disk_waits = True
    client.publish("", "q", b"1")
    world.node.barrier(Ticket(2, 2, passed.append))
    client.publish("", "q", b"2")
    assert len(passed) == 1
    world.complete()
    assert len(passed) == 1, "the group under way began before it"
    world.turn()
    world.complete()
    assert [ticket.first for ticket in passed] == [1, 2]


class Patient:
    """A node on which much is published, and one group under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
        monkeypatch.setattr(core, "PATIENCE_BYTES_PER_MS", 0)
        self.world = world = World()
        self.client = client = world.client(channels=2)
        client.declare("dead")
        client.declare("put")
        client.declare("q", **arguments)
        client.consume("q")
        world.wait(100)
        world.disk_waits = True
        client.publish("", "q", b"first", channel=2)
        assert world.node._patient
        client.hear()


def test_patience_leaves_out_what_is_about_to_be_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Patient(monkeypatch)
    world, client = patient.world, patient.client
    client.ask(m.ConfirmSelect(), 2)
    while not world.journal.idle:
        world.commit()
    assert client.publish("", "q", b"second", channel=2) == []
    client.say(m.BasicAck(0, True))
    assert client.hear(2) == [m.BasicAck(1, True)]
    while not world.journal.idle:
        world.commit()
    world.crash()
    assert world.queue("q").ring.ready == 0


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    world, client = (patient := Patient(monkeypatch)).world, patient.client
    client.ask(m.ConfirmSelect(), 2)
    client.publish("", "q", b"second", channel=2)
    world.disk_waits = False
    world.wait(30)
    assert client.hear(2) == [m.BasicAck(1, True)]


def test_a_patient_group_that_holds_nothing_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It woke its queues, they asked for a group, it held nothing: the loop span until they were old enough."""
    world, client = (patient := Patient(monkeypatch)).world, patient.client
    client.publish("", "q", b"second", channel=2)
    while not world.journal.idle:
        world.commit()
    assert world.node.writes
    assert not world.node.busy
    writer = GroupWriter(1, 0)
    group = world.node.write_group(writer, world.now_ms)
    assert writer.records == 0
    world.node.group_committed(group, world.now_ms)
    assert not world.node.busy


@pytest.mark.parametrize("what", ["transaction", "death"])
def test_patience_never_cuts_in_two_what_belongs_together(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"} if what == "death" else {}
    world, client = (patient := Patient(monkeypatch, **arguments)).world, patient.client
    while not world.journal.idle:
        world.commit()
    other = world.client()
    other.consume("dead", tag="a")
    other.consume("put", tag="b")
    world.wait(30)
    while not world.journal.idle:
        world.commit()
    world.wait(10)
    while not world.journal.idle:
        world.commit()
    assert world.node._patient
    if what == "death":
        client.say(m.BasicReject(1, False))
        heir = "dead"
    else:
        other.say(m.TxSelect())
        client.ask(m.ChannelClose(), 2)
        client.ask(m.ChannelOpen(), 2)
        client.say(m.TxSelect())
        client.publish("", "put", b"moved")
        client.say(m.BasicAck(1), m.TxCommit())
        heir = "put"
    assert not world.journal.idle
    world.crash(1)
    assert [world.queue(name).ring.ready for name in ("q", heir)] == [0, 1]


def test_publishers_wait_while_the_journal_cannot_keep_up() -> None:
    world = World(unwritten_bytes_max=10_000)
    speaker, listener = world.client(), world.client()
    speaker.declare("q")
    world.disk_waits = True
    speaker.publish("", "q", bytes(100))
    speaker.publish("", "q", bytes(12_000))
    assert world.node.throttled
    assert (speaker.connection.reading, listener.connection.reading) == (False, True)
    assert speaker.hear(0) == [], "it is back pressure of the socket only"
    newcomer = world.client()
    newcomer.publish("", "q", b"1")
    assert not newcomer.connection.reading
    world.commit()
    assert world.node.throttled is False or not world.journal.idle
    while not world.journal.idle:
        world.commit()
    assert speaker.connection.reading
    assert newcomer.connection.reading


def test_an_alarm_blocks_and_unblocks() -> None:
    world = World()
    client = world.client()
    client.publish("", "q", b"1")
    world.node.set_alarm("disk", True)
    world.node.set_alarm("disk", True)
    world.turn()
    client.hear(0)
    client.raw(client.content("", "q", b"2"))
    assert client.unsent
    world.node.set_alarm("disk", False)
    world.turn()
    assert client.unsent == b""
    assert client.hear(0) == [m.ConnectionUnblocked()]


def test_a_checkpoint_holds_what_changed_and_recovery_needs_no_more() -> None:
    world = World(segment_bytes=2000)
    client = world.client()
    client.declare("q")
    client.declare("idle")
    client.publish("", "idle", b"rests")
    for round_ in range(12):
        client.publish("", "q", *[b"%d.%d" % (round_, n) for n in range(5)])
        (got, *_) = client.say(m.BasicGet(queue="q", no_ack=True))
        assert got.body == b"%d.%d" % divmod(round_, 5)
        if round_ % 3 == 2:
            world.checkpoint()
    assert len(world.journal.segments) > 3
    world.crash()
    client = world.client()
    assert bodies(client.consume("q"))[0] == b"2.2"
    assert world.queue("q").ring.unacked == 48
    assert world.queue("idle").ring.ready == 1
    client.say(m.BasicAck(0, True), m.QueuePurge(queue="idle"))
    world.checkpoint()
    world.checkpoint()
    assert list(world.journal.segments) == [world.journal.end.segment], "nothing lives in the others"


@pytest.mark.parametrize("kept", [0, 1])
def test_a_checkpoint_keeps_what_is_settled_and_not_yet_written_so(kept: int) -> None:
    """It is taken before the group of the same turn, which a crash may take away."""
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.publish("", "q", b"1")
    client.consume("q")
    world.disk_waits = world.checkpoint_due = True
    client.say(m.BasicReject(1, False))
    world.journal.complete_checkpoint()
    assert world.journal.unsynced == 1
    world.crash(kept)
    assert [world.queue(name).ring.ready for name in ("q", "dead")] == [1 - kept, kept]


def test_transient_things_end_with_the_node() -> None:
    world = World()
    client = world.client()
    client.say(m.QueueDeclare(queue="passing"))
    client.declare("q")
    client.publish("", "q", b"transient", transient=True)
    client.publish("", "q", b"persistent")
    world.crash()
    assert list(world.node.vhosts["/"].queues) == ["q"]
    assert bodies(world.client().consume("q")) == [b"persistent"]


def test_names_are_given_once() -> None:
    world = World()
    names = {world.node.unique() for _ in range(3)} | {world.node.connection_id() for _ in range(3)}
    world.crash()
    names |= {world.node.unique() for _ in range(3)} | {world.node.connection_id() for _ in range(3)}
    assert len(names) == 12


def test_a_mistake_while_dead_lettering_does_not_end_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.story.forgives = True
    client = world.client()
    client.declare("dead")
    client.declare("q", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.publish("", "q", b"1")

    def fails(self: Queue, message: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "accept_dead_letter", fails)
        world.wait(20)
    ((queue, seq, error),) = world.story.mistakes
    assert (queue, seq, type(error)) == ("q", 1, ZeroDivisionError)
    client.publish("", "q", b"2")
    world.wait(20)
    assert world.queue("dead").ring.ready == 0
    world.command(c.PauseQueue(vhost="/", name="q", paused=False))
    world.wait(20)
    assert world.queue("dead").ring.ready == 2


def test_a_policy_reaches_exchanges() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="x"), m.ExchangeDeclare(exchange="rest", type="fanout"))
    client.say(m.QueueBind(queue="q", exchange="rest"))
    client.publish("x", "nowhere", b"1")
    definition = {"alternate-exchange": "rest"}
    world.command(c.PutPolicy(vhost="/", name="p", pattern="^x$", definition=definition, apply_to="exchanges"))
    client.publish("x", "nowhere", b"2")
    assert bodies(client.consume("q")) == [b"2"]
