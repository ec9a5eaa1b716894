"""Delay queues with copies: the next owner goes on, at whichever step of what is due."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.delay.due_letters import HELD_BYTES, HELD_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster

DECLARE = m.ExchangeDeclare(
    0, "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
)  # fmt: skip
DELAY_QUEUE = "amq.delay.later"
COUNT = HELD_MAX // 4 + HELD_MAX // 3
"""More than are read at once, and less than are held."""


def wire(client: Client) -> None:
    client.ask(DECLARE)
    client.declare("q")
    client.ask(m.QueueBind(0, "q", "later", "k"))
    client.ask(m.ConfirmSelect())


def publish(client: Client, *delays: int) -> None:
    for number, delay in enumerate(delays):
        client.publish("later", "k", b"%d" % number, headers={"x-delay": delay})


def survivor(cluster: Cluster, lost: str) -> Client:
    return next(cluster[name] for name in cluster.sites if name != lost).client()


@pytest.mark.parametrize("step_ms", [0, 900, 1000, 1001, 1050, 2000, 3001, 4000])
def test_an_owner_that_dies_at_any_time_neither_loses_nor_doubles(step_ms: int) -> None:
    cluster = Cluster("a", "b", "c")
    owner = cluster["a"]
    wire(owner.client())
    owner_name = cluster.queue(DELAY_QUEUE).owner
    sender = survivor(cluster, owner_name)
    sender.ask(m.ConfirmSelect())
    publish(sender, 3000, 1000, 2000, 1000)
    cluster.wait(step_ms)
    cluster.kill(owner_name)
    cluster.wait(8000)
    assert cluster.queue(DELAY_QUEUE).owner != owner_name
    assert bodies(survivor(cluster, owner_name).consume("q")) == [b"1", b"3", b"2", b"0"]


@pytest.mark.parametrize("rounds", range(1, 16, 2))
def test_those_that_go_together_come_once_each_when_their_owner_dies(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    owner = cluster.queue(DELAY_QUEUE).owner
    sender = survivor(cluster, owner)
    sender.ask(m.ConfirmSelect())
    publish(sender, *[1000] * 10)
    cluster.begin(rounds, time_ms=1000)
    cluster.kill(owner)
    cluster.wait(5000)
    assert bodies(survivor(cluster, owner).consume("q")) == [b"%d" % number for number in range(10)]


def limit(cluster: Cluster, **more: Any) -> None:
    definition = {"max-length": 4, "overflow": "reject-publish", **more}
    cluster.begin(0, c.PutPolicy(vhost="/", name="p", pattern="^q$", definition=definition, apply_to="queues"))


@pytest.mark.parametrize("rounds", range(1, 6))
def test_what_a_new_limit_refuses_of_a_run_comes_later_and_the_rest_once(rounds: int) -> None:
    """The queue's leader has the limit before the ten come, the delay queue's one sends them without knowing of it."""
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    sender = cluster["c"].client()
    sender.ask(m.ConfirmSelect())
    publish(sender, *[1000] * 10)
    cluster.begin(rounds, time_ms=1000)
    limit(cluster)
    cluster.turn()
    client = cluster["a"].client()
    got = bodies(client.consume("q", no_ack=True))
    assert len(got) in (4, 10)
    cluster.wait(20_000, step_ms=500)
    assert got + bodies(client.hear()) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("rounds", range(1, 6))
def test_what_is_refused_is_not_taken_for_dead_by_a_later_policy(rounds: int) -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    wire(client)
    client.declare("dead")
    limit(cluster)
    cluster.turn()
    client.publish("", "q", *[b"first"] * 4)
    publish(client, 1000)
    cluster.begin(rounds, time_ms=1000)
    limit(cluster, **{"overflow": "reject-publish-dlx", "dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    cluster.turn()
    got = bodies(client.consume("q", no_ack=True) + client.consume("dead", "dead", no_ack=True))
    cluster.wait(10_000, step_ms=500)
    assert (got + bodies(client.hear())).count(b"0") == 1


@pytest.mark.parametrize("number", [{}, {"x-producer": "p", "x-seq": 1}])
def test_a_due_time_is_that_of_the_publish_whoever_owns_the_queue(number: dict[str, Any]) -> None:
    """Published while no owner answers: it is due when it was."""
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    owner = cluster.queue(DELAY_QUEUE).owner
    sender = survivor(cluster, owner)
    consumer = survivor(cluster, owner)
    consumer.consume("q", no_ack=True)
    began_ms = sender.world.now_ms
    for other in cluster.sites:
        if other != owner:
            cluster.unlink(owner, other)
            cluster.cuts.add(tuple(sorted((owner, other))))  # type: ignore[arg-type]
    sender.publish("later", "k", b"x", headers={"x-delay": 4000, **number})
    cluster.wait(1000)
    cluster.kill(owner)
    cluster.wait(began_ms + 3900 - sender.world.now_ms)
    assert bodies(consumer.hear()) == []
    cluster.wait(200)
    assert bodies(consumer.hear()) == [b"x"]


def beside(cluster: Cluster, *held: str) -> str:
    """A node that has none of these queues, or leads none at least."""
    for part in ("replicas", "owner"):
        taken = [getattr(cluster.queue(name), part) for name in held]
        names = {str(name) for one in taken for name in ((one,) if isinstance(one, str) else one)}
        if free := [name for name in cluster.sites if name not in names]:
            return free[0]
    raise AssertionError("as many nodes as queues")


def test_a_queue_whose_only_node_is_down_holds_up_no_other() -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    wire(client)
    lost = beside(cluster, DELAY_QUEUE, "q")
    local = cluster[lost].client()
    local.declare("lonely", x_queue_leader_locator="client-local", x_replicas=1)
    local.ask(m.QueueBind(0, "lonely", "later", "lonely"))
    sender = survivor(cluster, lost)
    for key, delay in (("lonely", 1000), ("k", 1001)):
        sender.publish("later", key, *[b"%d" % n for n in range(1200)], headers={"x-delay": delay})
    cluster.kill(lost)
    cluster.wait(3000)
    assert bodies(survivor(cluster, lost).consume("q", no_ack=True)) == [b"%d" % n for n in range(1200)]
    cluster.restart(lost)
    cluster.wait(70_000)
    got = bodies(survivor(cluster, lost).consume("lonely", no_ack=True))
    assert got == [b"%d" % n for n in range(1200)]


def test_long_messages_without_an_answer_hold_up_no_other() -> None:
    """As many bytes as may be held."""
    cluster = Cluster("a", "b", "c", "d", "e")
    client = cluster["a"].client()
    wire(client)
    slow = beside(cluster, DELAY_QUEUE, "q")
    local = cluster[slow].client()
    local.declare("slow", x_queue_leader_locator="client-local", x_replicas=1)
    local.ask(m.QueueBind(0, "slow", "later", "slow"))
    size = HELD_BYTES // 16
    client.publish("later", "slow", *[bytes(size)] * 20, headers={"x-delay": 1000})
    client.publish("later", "k", b"0", b"1", headers={"x-delay": 2500})
    cluster[slow].disk_waits = True
    cluster.wait(4000)
    taker = next(site for name, site in cluster.sites.items() if name != slow).client()
    assert bodies(taker.consume("q", no_ack=True)) == [b"0", b"1"]
    cluster[slow].disk_waits = False
    cluster.wait(2000)
    assert len(bodies(taker.consume("slow", "slow", no_ack=True))) == 20


def test_a_new_owner_sends_what_was_held_before_it_holds_more() -> None:
    """A lane goes by the lowest number that is open there: targets forget those that are far below what comes."""
    cluster = Cluster("a", "b", "c", "d", "e")
    client = cluster["a"].client()
    wire(client)
    slow = beside(cluster, DELAY_QUEUE)
    local = cluster[slow].client()
    local.declare("slow", x_queue_leader_locator="client-local", x_replicas=1)
    local.ask(m.QueueBind(0, "slow", "later", "slow"))
    for delay in (1000, 1300):
        client.publish("later", "slow", *[b"%d" % number for number in range(COUNT)], headers={"x-delay": delay})
    cluster[slow].disk_waits = True
    cluster.wait(1200)
    lost = str(cluster.queue(DELAY_QUEUE).owner)
    cluster.now_ms += 1000
    cluster.kill(lost)
    cluster.wait(500)
    entity = cluster.queue(DELAY_QUEUE)
    queue: Any = cluster[entity.owner].node.queues[entity.queue_id]
    [lane] = queue.letters.lanes.values()
    assert lane.underway == HELD_MAX
    assert list(lane.open) == sorted(lane.open)


@pytest.mark.long
@pytest.mark.parametrize("dies", [False, True])
def test_a_target_that_does_not_answer_holds_up_no_other_and_gets_each_once(dies: bool) -> None:
    """Each message goes to both; the numbers of those without an answer are forgotten by the other target meanwhile."""
    cluster = Cluster("a", "b", "c", "d", "e")
    client = cluster["a"].client()
    wire(client)
    slow = beside(cluster, DELAY_QUEUE, "q")
    local = cluster[slow].client()
    local.declare("slow", x_queue_leader_locator="client-local", x_replicas=1)
    local.ask(m.QueueBind(0, "slow", "later", "k"))
    numbers = [b"%d" % n for n in range(5500)]
    client.publish("later", "k", *numbers[:300], headers={"x-delay": 1000})
    client.publish("later", "k", *numbers[300:], headers={"x-delay": 2500})
    cluster[slow].disk_waits = True
    cluster.wait(6000)
    owner = str(cluster.queue(DELAY_QUEUE).owner)
    taker = next(cluster[name] for name in cluster.sites if name not in (owner, slow)).client()
    if dies:
        cluster.kill(owner)
        cluster.wait(2000)
    got = bodies(taker.consume("q", no_ack=True))
    assert got == numbers, "the other target has all of them, once"
    cluster[slow].disk_waits = False
    cluster.wait(130_000)
    late = bodies(taker.consume("slow", "late", no_ack=True))
    assert sorted(late) == sorted(numbers)
    assert bodies(taker.hear()) == []
