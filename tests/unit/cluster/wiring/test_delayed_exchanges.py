"""The map's part of delayed exchanges: exchange and queue begin and end together, and no client uses the queue."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import AccessRefused, LimitReached, PreconditionFailed, WiringError
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.delays import delay_queue
from clusterbroker.cluster.wiring.levels import check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap

NAME = "amq.delay.later"


class World:
    """One map and its log index."""

    def __init__(self) -> None:
        self.map = ClusterMap()
        self.index = 0
        self.do(c.AddVhost(name="/"))

    def do(self, command: c.AnyCommand) -> None:
        self.index += 1
        error = self.map.apply(self.index, command).error  # type: ignore[arg-type]
        if error is not None:
            raise error


def delayed(name: str = "later", type_: str | None = "direct", **more: object) -> c.DeclareDelayedExchange:
    arguments = {} if type_ is None else {"x-delayed-type": type_}
    return c.DeclareDelayedExchange(
        vhost="/", name=name, type="x-delayed-message", durable=True, arguments={**arguments, **more}
    )


@pytest.fixture
def world() -> World:
    made = World()
    made.do(delayed())
    return made


def test_the_exchange_has_a_queue_of_its_own(world: World) -> None:
    exchange, queue = world.map.exchange("/", "later"), world.map.queue("/", NAME)
    assert exchange is not None
    assert exchange.type == "x-delayed-message"
    assert queue is not None
    assert queue.delays == "later"
    assert queue.durable


def test_a_declaration_again_changes_nothing(world: World) -> None:
    before = world.map.queue("/", NAME)
    world.do(delayed())
    assert world.map.queue("/", NAME) is before


@pytest.mark.parametrize("type_", [None, "unknown", "x-delayed-message", "x-staging"])
def test_a_type_that_is_missing_unknown_or_itself_is_refused(type_: str | None) -> None:
    with pytest.raises(PreconditionFailed, match="x-delayed-type"):
        World().do(delayed(type_=type_))


def test_another_type_or_limit_is_inequivalent(world: World) -> None:
    with pytest.raises(PreconditionFailed, match="x-delayed-type"):
        world.do(delayed(type_="topic"))
    with pytest.raises(PreconditionFailed, match="x-max-delayed"):
        world.do(delayed(**{"x-max-delayed": 5}))


def test_its_limits_are_those_of_the_queue() -> None:
    world = World()
    world.do(delayed(**{"x-max-delayed": 5, "x-max-delayed-bytes": 1000}))
    queue = world.map.queue("/", NAME)
    assert queue is not None
    settings = world.map.effective(queue)
    assert (settings.max_length, settings.max_length_bytes, settings.overflow) == (5, 1000, "reject-publish")
    with pytest.raises(PreconditionFailed, match="x-max-delayed"):
        world.do(delayed("other", **{"x-max-delayed": "5"}))


def test_no_policy_reaches_the_queue(world: World) -> None:
    world.do(c.PutPolicy(vhost="/", name="all", pattern=".*", definition={"message-ttl": 1}, apply_to="queues"))
    queue = world.map.queue("/", NAME)
    assert queue is not None
    assert world.map.effective(queue).message_ttl_ms is None


def test_it_ends_with_the_exchange(world: World) -> None:
    world.do(c.DeleteExchange(vhost="/", name="later"))
    assert world.map.queue("/", NAME) is None
    assert not world.map.queues("/")


def test_it_ends_with_an_exchange_that_deletes_itself() -> None:
    world = World()
    world.do(c.DeclareDelayedExchange(
        vhost="/", name="later", type="x-delayed-message", auto_delete=True, arguments={"x-delayed-type": "fanout"}
    ))  # fmt: skip
    world.do(c.DeclareQueue(vhost="/", name="q"))
    world.do(c.Bind(vhost="/", source="later", destination="q"))
    world.do(c.DeleteQueue(vhost="/", name="q", queue_id=world.map.queue("/", "q").queue_id))  # type: ignore[union-attr]
    assert world.map.exchange("/", "later") is None
    assert not world.map.queues("/")


@pytest.mark.parametrize(
    "command",
    [
        c.DeclareQueue(vhost="/", name=NAME, durable=True),
        c.Bind(vhost="/", source="amq.fanout", destination=NAME),
        c.Unbind(vhost="/", source="amq.fanout", destination=NAME),
    ],
)
def test_clients_do_not_reach_the_queue(world: World, command: c.AnyCommand) -> None:
    with pytest.raises(AccessRefused, match="delayed messages of exchange 'later'"):
        world.do(command)


def test_the_queue_alone_is_never_deleted(world: World) -> None:
    queue = world.map.queue("/", NAME)
    assert queue is not None
    world.do(c.DeleteQueue(vhost="/", name=NAME, queue_id=queue.queue_id))
    assert world.map.queue("/", NAME) is queue


def test_bindings_are_judged_by_the_type_that_routes() -> None:
    world = World()
    world.do(delayed(type_="x-consistent-hash"))
    world.do(c.DeclareQueue(vhost="/", name="q"))
    with pytest.raises(PreconditionFailed, match="must be an integer"):
        world.do(c.Bind(vhost="/", source="later", destination="q", routing_key="no number"))


def test_a_full_vhost_has_no_room_for_it() -> None:
    world = World()
    world.do(c.SetVhostLimits(vhost="/", queues_max=0))
    with pytest.raises(LimitReached):
        world.do(delayed())
    assert world.map.exchange("/", "later") is None


def test_long_names_have_queues_too() -> None:
    names = {delay_queue("é" * 127), delay_queue("é" * 126 + "e")}
    assert len(names) == 2
    assert all(len(name.encode()) <= 255 for name in names)


def test_a_cluster_of_an_older_level_does_not_hear_of_it() -> None:
    with pytest.raises(WiringError, match="feature level 4"):
        check_ordered(delayed(), 3)
    check_ordered(delayed(), 4)


def test_a_snapshot_keeps_both(world: World) -> None:
    copy = ClusterMap.restored(world.map.snapshot())
    assert copy.queue("/", NAME) == world.map.queue("/", NAME)
    assert copy.exchange("/", "later") == world.map.exchange("/", "later")


def test_two_exchanges_never_share_a_queue(world: World) -> None:
    long = "x" * 250
    short = delay_queue(long).removeprefix("amq.delay.")
    world.do(delayed(long))
    with pytest.raises(PreconditionFailed, match="would share its queue"):
        world.do(delayed(short))
    assert world.map.exchange("/", short) is None
    world.do(c.DeleteExchange(vhost="/", name=long))
    world.do(delayed(short))


def test_a_delayed_exchange_is_imported(world: World) -> None:
    commands = (
        delayed("imported"),
        c.Bind(vhost="/", source="imported", destination="later", destination_kind="exchange"),
    )
    world.do(c.ImportDefinitions(import_id="i", number=0, commands=commands, last=True, apply=10))
    assert world.map.queue("/", delay_queue("imported")) is not None
    assert world.map.tried(commands) == ([], [])
