"""The map's part of delays in routing keys: what policies say, which queue they want, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import LimitReached, PreconditionFailed, WiringError
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.delay_bits import BITS_MAX
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.levels import DELAY_BITS, check_ordered
from tests.unit.cluster.wiring.test_delayed_exchanges import World, delayed

ENTRY = "celery_delayed_27"
BITS = {"delay-bits": 28, "delay-exchange": "celery_delayed_delivery"}
KEEP = c.KeepDelays(vhost="/", exchange=ENTRY)


def policy(**definition: Any) -> c.PutPolicy:
    return c.PutPolicy(vhost="/", name="bits", pattern=".*", definition=definition or BITS, apply_to="exchanges")


def kept(world: World) -> Queue | None:
    return world.map.queue("/", f"amq.delay.{ENTRY}")


@pytest.fixture
def world() -> World:
    made = World()
    made.do(c.DeclareExchange(vhost="/", name=ENTRY, type="topic", durable=True))
    made.do(policy())
    return made


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ({"delay-bits": 28}, "lacks 'delay-exchange'"),
        ({"delay-exchange": "x"}, "lacks 'delay-bits'"),
        ({**BITS, "delay-bits": "28"}, "expected an integer"),
        ({**BITS, "delay-bits": True}, "expected an integer"),
        ({**BITS, "delay-bits": 0}, "within 1 to 28"),
        ({**BITS, "delay-bits": BITS_MAX + 1}, "within 1 to 28"),
        ({**BITS, "delay-exchange": 1}, "expected a string"),
        ({**BITS, "delay-exchange": ""}, "default exchange"),
        ({**BITS, "delay-exchange": "x" * 256}, "longer than 255 bytes"),
    ],
)
def test_a_policy_that_cannot_hold_is_refused_with_words(definition: dict[str, Any], fault: str) -> None:
    with pytest.raises(PreconditionFailed, match=fault):
        World().do(policy(**definition))


def test_an_operator_policy_has_no_such_keys() -> None:
    with pytest.raises(PreconditionFailed, match="not a recognised setting"):
        World().do(c.PutOperatorPolicy(vhost="/", name="bits", pattern=".*", definition=BITS))


@pytest.mark.parametrize("command", [policy(), KEEP, c.EndDelays(queue_id=1, epoch=Epoch(1))])  # type: ignore[arg-type]
def test_members_below_the_level_get_none_of_it(command: c.AnyCommand) -> None:
    check_ordered(command, DELAY_BITS)
    with pytest.raises(PreconditionFailed, match="feature level 7"):
        check_ordered(command, DELAY_BITS - 1)


def test_the_queue_is_made_once_for_what_the_policy_says(world: World) -> None:
    assert world.map.lacking_delays("/") == (ENTRY,)
    assert world.map.lacking_delays("/", "amq.topic") == ()
    world.do(KEEP)
    queue = kept(world)
    assert queue is not None
    assert (queue.key_bits, queue.delay_exchange, queue.delays) == (28, "celery_delayed_delivery", ENTRY)
    assert world.map.wants_delays(queue)
    assert world.map.lacking_delays("/") == ()
    world.do(KEEP)
    assert kept(world) is queue


def test_it_is_in_a_snapshot(world: World) -> None:
    world.do(KEEP)
    restored = type(world.map).restored(world.map.snapshot())
    assert restored.digest() == world.map.digest()
    assert restored.queue("/", f"amq.delay.{ENTRY}") == kept(world)


@pytest.mark.parametrize(
    "command",
    [
        c.DeclareExchange(vhost="/", name="direct", type="direct", durable=True),
        c.DeclareExchange(vhost="/", name="celery_delayed_delivery", type="topic", durable=True),
        delayed("later", "topic"),
    ],
)
def test_exchanges_without_such_keys_want_none(world: World, command: Any) -> None:
    """Of another type, of the broker's own, and the target itself."""
    world.do(command)
    assert world.map.lacking_delays("/") == (ENTRY,)
    before = world.map.digest()
    world.do(c.KeepDelays(vhost="/", exchange=command.name))
    world.do(c.KeepDelays(vhost="/", exchange="amq.topic"))
    world.do(c.KeepDelays(vhost="/", exchange="gone"))
    world.do(c.KeepDelays(vhost="gone", exchange=ENTRY))
    assert world.map.digest() == before


def test_clients_do_not_reach_it(world: World) -> None:
    world.do(KEEP)
    queue = kept(world)
    assert queue is not None
    world.do(c.DeleteQueue(vhost="/", name=queue.name, queue_id=queue.queue_id))
    assert kept(world) is queue
    for command in (
        c.DeclareQueue(vhost="/", name=queue.name, durable=True),
        c.Bind(vhost="/", source=ENTRY, destination=queue.name),
    ):
        with pytest.raises(WiringError):
            world.do(command)


def test_a_full_vhost_has_none(world: World) -> None:
    world.do(c.SetVhostLimits(vhost="/", queues_max=0))
    assert world.map.lacking_delays("/") == ()
    with pytest.raises(LimitReached):
        world.do(KEEP)


def test_only_a_queue_that_nobody_wants_ends(world: World) -> None:
    world.do(KEEP)
    queue = kept(world)
    assert queue is not None
    end = c.EndDelays(queue_id=queue.queue_id, epoch=queue.epoch)
    world.do(end)
    assert kept(world) is queue
    world.do(policy(**{**BITS, "delay-bits": 20}))
    assert not world.map.wants_delays(queue)
    assert world.map.lacking_delays("/") == ()  # as long as the old one is there
    world.do(c.EndDelays(queue_id=queue.queue_id, epoch=Epoch(queue.epoch + 1)))
    assert kept(world) is queue
    world.do(end)
    assert kept(world) is None
    assert world.map.lacking_delays("/") == (ENTRY,)
    world.do(end)


def test_what_waits_outlives_the_exchange_and_not_the_vhost(world: World) -> None:
    world.do(KEEP)
    world.do(c.DeleteExchange(vhost="/", name=ENTRY))
    queue = kept(world)
    assert queue is not None
    assert not world.map.wants_delays(queue)
    with pytest.raises(PreconditionFailed, match="would share its queue"):
        world.do(delayed(ENTRY))
    world.do(c.DeleteVhost(name="/"))
    assert kept(world) is None


def test_a_delayed_queue_of_another_kind_does_not_end_so() -> None:
    world = World()
    world.do(delayed())
    queue = world.map.queue("/", "amq.delay.later")
    assert queue is not None
    world.do(c.EndDelays(queue_id=queue.queue_id, epoch=queue.epoch))
    assert world.map.queue("/", "amq.delay.later") is queue
