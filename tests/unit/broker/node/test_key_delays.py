"""Delays in routing keys at one node whose clock the test moves: what waits, how it comes, and how the queue ends."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access.together import JUDGED_MS
from clusterbroker.broker.delay.key_delays import IDLE_MS, UNROUTED_MS, KeyDelayQueue
from clusterbroker.broker.node.renewals import keep_delays
from clusterbroker.broker.queues.handle import CommitPart
from clusterbroker.broker.queues.ticket import FULL, Ticket
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import Message
from tests.unit.broker.fronts.amqp091.harness import Client, World, bodies

ENTRY, DELIVERY = "celery_delayed_27", "celery_delayed_delivery"
QUEUE = f"amq.delay.{ENTRY}"
BITS = {"delay-bits": 28, "delay-exchange": DELIVERY}


def calculate_routing_key(delay_s: int, key: str) -> str:
    """As Kombu does it."""
    return ".".join(f"{delay_s:028b}") + f".{key}"


def put_policy(world: World, name: str = "bits", **definition: Any) -> None:
    world.command(
        c.PutPolicy(vhost="/", name=name, pattern=f"^{ENTRY}$", definition=definition or BITS, apply_to="exchanges")
    )
    keep(world)


def keep(world: World) -> bool:
    return bool(world.command(c.KeepDelays(vhost="/", exchange=ENTRY)).result)


def wire(client: Client) -> None:
    """As Celery does it, with the two lowest levels of its 28, and a queue that gets what goes by the exchange's own
    bindings."""
    for exchange in (ENTRY, "celery_delayed_1", "celery_delayed_0", DELIVERY):
        client.ask(m.ExchangeDeclare(0, exchange, "topic", durable=True))
    for queue in ("tasks", "bound"):
        client.declare(queue)
    client.ask(m.QueueBind(0, "tasks", DELIVERY, "#.tasks"))
    client.ask(m.QueueBind(0, "bound", ENTRY, "#"))


@pytest.fixture
def world() -> World:
    made = World()
    wire(made.client())
    put_policy(made)
    return made


def publish(client: Client, delay_s: int, body: bytes, **headers: Any) -> list[Any]:
    """What was heard then."""
    key = calculate_routing_key(delay_s, "tasks")
    return client.publish(ENTRY, key, body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def waiting(world: World) -> KeyDelayQueue:
    queue = world.queue(QUEUE)
    assert isinstance(queue, KeyDelayQueue)
    return queue


def confirming(world: World) -> Client:
    client = world.client()
    client.ask(m.ConfirmSelect())
    return client


def test_it_waits_once_and_comes_as_from_the_lowest_level(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    for delay_s in (4, 2, 1, 3):
        publish(client, delay_s, b"%d" % delay_s)
    assert waiting(world).ring.ready == 4
    assert world.queue("bound").ring.ready == 0
    world.wait(999)
    assert bodies(client.hear()) == []
    for delay_s, exchange in ((1, DELIVERY), (2, "celery_delayed_0"), (3, DELIVERY), (4, "celery_delayed_1")):
        world.wait(1000)
        [came] = client.hear()
        assert came.body == b"%d" % delay_s
        assert came.method.exchange == exchange
        assert came.method.routing_key == calculate_routing_key(delay_s, "tasks")
        assert not came.method.redelivered
    assert waiting(world).ring.ready == 0


def test_headers_of_delays_mean_nothing_and_stay(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    said = {"x-delay": 9000, "x-deliver-at": 1, "x-delay-key": "same", "task": "add"}
    for body in (b"1", b"2"):
        publish(client, 1, body, **said)
    world.wait(1001)
    assert [(one.body, one.properties.headers) for one in client.hear()] == [(b"1", said), (b"2", said)]


@pytest.mark.parametrize(
    "key",
    [
        "0." * 28 + "tasks",  # no delay
        "1." * 27 + "tasks",  # too few bits
        "1." * 27 + "2.tasks",
        "1." * 27 + "1",
        "1." * 28,
        "tasks",
        "",
    ],
)
def test_other_keys_go_by_the_bindings(world: World, key: str) -> None:
    client = world.client()
    client.publish(ENTRY, key, b"x")
    assert world.queue("bound").ring.ready == 1
    assert waiting(world).ring.ready == 0


def test_copies_go_by_the_bindings(world: World) -> None:
    client = world.client()
    client.publish(ENTRY, calculate_routing_key(1, "tasks"), b"x", headers={"CC": ["other"]})
    assert world.queue("bound").ring.ready == 1
    assert waiting(world).ring.ready == 0


def test_it_is_not_returned_whatever_is_bound_behind_it(world: World) -> None:
    client = world.client()
    client.ask(m.QueueUnbind(0, "tasks", DELIVERY, "#.tasks"))
    assert client.publish(ENTRY, calculate_routing_key(1, "tasks"), b"x", mandatory=True) == []
    assert waiting(world).ring.ready == 1


def test_what_finds_no_queue_when_it_is_due_stays_until_there_is_one(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    client.ask(m.QueueUnbind(0, "tasks", DELIVERY, "#.tasks"))
    publish(client, 1, b"x")
    world.wait(1001)
    assert waiting(world).ring.ready == 1
    client.ask(m.QueueBind(0, "tasks", DELIVERY, "#.tasks"))
    world.wait(UNROUTED_MS)
    assert bodies(client.hear()) == [b"x"]


def test_a_target_that_leads_back_is_no_circle(world: World) -> None:
    client = world.client()
    client.ask(m.ExchangeBind(0, ENTRY, DELIVERY, "#"))
    client.consume("tasks", no_ack=True)
    publish(client, 1, b"x")
    world.wait(1001)
    assert bodies(client.hear()) == [b"x"]
    world.wait(5000)
    assert client.hear() == []
    assert waiting(world).ring.ready == 0


def test_behind_another_exchange_it_waits_too(world: World) -> None:
    client = world.client()
    client.ask(m.ExchangeDeclare(0, "front", "fanout", durable=True))
    client.ask(m.ExchangeBind(0, ENTRY, "front", ""))
    client.consume("tasks", no_ack=True)
    for delay_s in (1, 2):  # a fanout's way is remembered for all keys, unless a key matters behind it
        client.publish("front", calculate_routing_key(delay_s, "tasks"), b"%d" % delay_s)
    client.publish("front", "tasks", b"now")
    assert waiting(world).ring.ready == 2
    assert world.queue("bound").ring.ready == 1
    world.wait(2001)
    assert bodies(client.hear()) == [b"1", b"2"]


def test_a_transaction_and_a_restart(world: World) -> None:
    client = world.client()
    client.ask(m.TxSelect())
    publish(client, 1, b"dropped")
    client.ask(m.TxRollback())
    publish(client, 2, b"kept", x_delay_key="k")
    client.ask(m.TxCommit())
    world.checkpoint()
    publish(confirming(world), 3, b"last")
    world.crash()
    client = world.client()
    client.consume("tasks", no_ack=True)
    world.wait(2001)
    assert bodies(client.hear()) == [b"kept"]
    publish(client, 1, b"new")
    world.wait(1001)
    assert sorted(bodies(client.hear())) == [b"last", b"new"]


def test_without_the_policy_nothing_new_waits_and_nothing_is_lost(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    publish(client, 30, b"waits")
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    publish(client, 1, b"bound")
    assert world.queue("bound").ring.ready == 1
    world.wait(29_000)
    assert waiting(world).ring.ready == 1
    world.wait(1001)
    assert bodies(client.hear()) == [b"waits"]
    world.wait(IDLE_MS - 1000)
    waiting(world)
    world.wait(2000)
    assert QUEUE not in world.node.vhosts["/"].queues
    publish(client, 1, b"bound")
    assert world.queue("bound").ring.ready == 2


def test_another_policy_begins_when_the_old_queue_has_ended(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    publish(client, 5, b"old")
    put_policy(world, **{"delay-bits": 3, "delay-exchange": "celery_delayed_0"})
    assert not keep(world)
    client.publish(ENTRY, "0.0.1.tasks", b"bound")
    publish(client, 1, b"bound")
    assert world.queue("bound").ring.ready == 2
    world.wait(5001)
    assert bodies(client.hear()) == [b"old"]
    world.wait(IDLE_MS + 1000)
    assert keep(world)
    client.ask(m.QueueBind(0, "tasks", "celery_delayed_0", "#.tasks"))
    client.publish(ENTRY, "0.0.1.tasks", b"new")
    world.wait(1001)
    [came] = client.hear()
    assert (came.body, came.method.exchange) == (b"new", "celery_delayed_0")


def test_a_queue_that_is_wanted_again_stays(world: World) -> None:
    client = confirming(world)
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    world.wait(IDLE_MS - 1000)
    put_policy(world)
    world.wait(3 * IDLE_MS)
    publish(client, 1, b"x")
    assert waiting(world).ring.ready == 1


def test_an_order_to_end_that_comes_too_late_ends_nothing(world: World) -> None:
    """While it is under way the queue takes nothing: what is confirmed must not be in a queue that ends."""
    client = confirming(world)
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    world.wiring_waits = True
    world.wait(IDLE_MS + 1)
    assert waiting(world).rejects
    put_policy(world)
    assert any(isinstance(one, m.BasicNack) for one in publish(client, 1, b"refused"))
    world.wiring_waits = False
    world.answer_proposals()
    assert not waiting(world).rejects
    publish(client, 1, b"taken")
    assert waiting(world).ring.ready == 1


def test_what_waits_outlives_its_exchange(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    publish(client, 2, b"x")
    client.ask(m.ExchangeDelete(0, ENTRY))
    world.wait(2001)
    assert bodies(client.hear()) == [b"x"]
    world.wait(IDLE_MS + 1000)
    assert QUEUE not in world.node.vhosts["/"].queues


def test_one_of_two_targets_that_refuses_gets_it_later(world: World) -> None:
    client = world.client()
    client.ask(m.QueueDeclare(0, "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    client.ask(m.QueueBind(0, "full", DELIVERY, "#.tasks"))
    client.publish("", "full", b"first")
    client.consume("tasks", no_ack=True)
    publish(client, 1, b"x", task="add", x_delay=7)
    world.wait(1001)
    assert bodies(client.hear()) == [b"x"]
    client.ask(m.QueuePurge(0, "full"))
    world.wait(10_000)
    [came] = client.consume("full", "other", no_ack=True)
    assert came.body == b"x"
    assert came.method.exchange == DELIVERY
    assert came.properties.headers == {"task": "add", "x-delay": 7}


def test_a_number_comes_once_however_often_it_is_sent(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    for _ in range(2):
        publish(client, 1, b"x", x_producer="p", x_seq=1)
    assert waiting(world).ring.ready == 1
    world.wait(1001)
    assert bodies(client.hear()) == [b"x"]
    publish(client, 1, b"x", x_producer="p", x_seq=1)
    assert waiting(world).ring.ready == 0


def test_what_was_on_its_way_and_finds_no_queue_any_more_waits_anew(world: World) -> None:
    """The node ends when a due message is held for its queue, which does not know it."""
    publish(confirming(world), 1, b"x")
    world.disk_waits = True
    world.wait(1001)
    assert list(waiting(world).ring.dead())
    world.command(c.Unbind(vhost="/", source=DELIVERY, destination="tasks", routing_key="#.tasks"))
    world.disk_waits = False
    world.crash(kept=1)
    assert QUEUE in world.node.vhosts["/"].queues
    world.wait(1)
    queue = waiting(world)
    assert not list(queue.ring.dead())
    assert queue.ring.ready == 1
    client = world.client()
    client.ask(m.QueueBind(0, "tasks", DELIVERY, "#.tasks"))
    client.consume("tasks", no_ack=True)
    world.wait(UNROUTED_MS + 1)
    assert bodies(client.hear()) == [b"x"]


def test_what_was_staged_before_its_queue_ended_goes_the_way_of_now(world: World) -> None:
    """The policy has gone between publish and commit, and with it the queue."""
    client = world.client()
    client.ask(m.TxSelect())
    publish(client, 1, b"staged")
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    world.wait(IDLE_MS + 1000)
    assert QUEUE not in world.node.vhosts["/"].queues
    assert client.ask(m.TxCommit()) == m.TxCommitOk()
    assert world.queue("bound").ring.ready == 1


def test_what_was_staged_and_has_no_exchange_any_more_is_refused(world: World) -> None:
    client, other = world.client(), world.client()
    client.ask(m.TxSelect())
    publish(client, 1, b"staged")
    other.ask(m.ExchangeDelete(0, ENTRY))
    world.wait(IDLE_MS + 1000)
    assert client.code(m.TxCommit()) == 541


def part_of(*bodies: bytes) -> CommitPart:
    part = CommitPart()
    key = calculate_routing_key(100, "tasks").encode()
    address = bytes([len(ENTRY), *ENTRY.encode(), len(key), *key])
    part.publishes.append(([Message(address, b"\0\0" + body, 2) for body in bodies], None))
    return part


def test_a_queue_that_has_agreed_to_a_part_waits_for_it(world: World) -> None:
    """A commit over several queues takes up to JUDGED_MS until its parts are handed out."""
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    world.wait(IDLE_MS - 1)
    answers: list[str] = []
    waiting(world).judge(part_of(b"x"), world.now_ms, answers.append)
    assert answers == [""]
    world.wait(JUDGED_MS)
    assert not waiting(world).rejects
    tickets: list[Ticket] = []
    ticket = Ticket(1, 1, tickets.append)
    part = part_of(b"x")
    part.judged = True
    waiting(world).commit(part, ticket, world.now_ms)
    assert not ticket.rejected
    assert waiting(world).ring.ready == 1


def test_a_part_that_comes_after_the_order_to_end_is_refused_whatever_was_agreed(world: World) -> None:
    world.command(c.DeletePolicy(vhost="/", name="bits"))
    world.wiring_waits = True
    world.wait(IDLE_MS + 1)
    answers: list[str] = []
    queue = waiting(world)
    queue.judge(part_of(b"x"), world.now_ms, answers.append)
    assert answers == [FULL]
    for ends in (False, True):
        if ends:
            world.wiring_waits = False
            world.answer_proposals()
            assert queue.deleted
        ticket = Ticket(1, 1, lambda _: None)
        part = part_of(b"x")
        part.judged = True
        queue.commit(part, ticket, world.now_ms)
        assert ticket.rejected


def test_what_waits_for_one_queue_goes_with_it(world: World) -> None:
    """The other queue has it. Else it would wait for ever, and keep a new policy waiting."""
    client = world.client()
    client.ask(m.QueueDeclare(0, "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    client.ask(m.QueueBind(0, "full", DELIVERY, "#.tasks"))
    client.publish("", "full", b"first")
    client.consume("tasks", no_ack=True)
    publish(client, 1, b"x")
    world.wait(1001)
    assert bodies(client.hear()) == [b"x"]
    assert waiting(world).ring.ready == 1
    client.ask(m.QueueDelete(0, "full"))
    world.wait(UNROUTED_MS + 1000)
    assert waiting(world).is_empty
    assert client.hear() == []


def test_no_publisher_says_which_queues_get_it(world: World) -> None:
    client = world.client()
    client.consume("tasks", no_ack=True)
    publish(client, 1, b"x", x_delay_to=["elsewhere"], task="add")
    world.wait(1001)
    [came] = client.hear()
    assert (came.body, came.properties.headers) == (b"x", {"task": "add"})


def test_a_node_that_is_behind_its_map_reads_keys_by_the_queue_that_it_has(world: World) -> None:
    """The map has the next queue of the same name already, with bits of its own; this node's face is of the one before:
    by its bits the key of the new policy would be no delay at all."""
    queue = waiting(world)
    wiring = world.wiring.map
    for command in (
        c.PutPolicy(vhost="/", name="bits", pattern=f"^{ENTRY}$", apply_to="exchanges",
                    definition={"delay-bits": 3, "delay-exchange": DELIVERY}),
        c.EndDelays(queue_id=queue.entity.queue_id, epoch=Epoch(queue.entity.epoch)),
        c.KeepDelays(vhost="/", exchange=ENTRY),
    ):  # fmt: skip
        applied = wiring.apply(type(wiring.applied)(wiring.applied + 1), command)
        assert applied.ok, applied.error
    vhost = world.node.vhosts["/"]
    keep_delays(world.node, vhost, ENTRY)
    route = vhost.router.route(ENTRY, "0.1.1.tasks", dict)
    assert [target.name for target in route.targets] == ["bound"]
