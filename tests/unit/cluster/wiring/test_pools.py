"""The map's part of worker pools: what is declared as one, closed to others, and guarded by epochs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.errors import (
    AccessRefused,
    InUse,
    LimitReached,
    NotFound,
    PreconditionFailed,
    WiringError,
)
from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex
from clusterbroker.cluster.wiring import cascade
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import DEAD_REQUESTS, LATER_REQUESTS
from clusterbroker.cluster.wiring.levels import ANSWERED_DELAYS, STARTED_WORKERS, WORKER_POOLS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import Group, Pool, PoolSettings
from clusterbroker.cluster.wiring.pool_names import PoolNames
from tests.unit.cluster.cluster_world import ClusterWorld
from tests.unit.cluster.wiring.map_world import World

EXCHANGES = {"core", "core-req-xchg", "core-orphan-xchg", "core-dl-xchg", "core-activity-xchg", "core-delayed"}
QUEUES = {"core-orphan", "core-dl", "core-activity", "core-poison", "amq.delay.core-delayed"}


def declare(world: Any, name: str = "core", **settings: Any) -> Pool:
    pool: Pool = world.do(c.DeclarePool(vhost="/", name=name, settings=PoolSettings(**settings)))
    return pool


def require(world: Any, pool: Pool, *keys: str) -> tuple[str, ...]:
    orphans = world.map.queue_by_id(pool.orphans)
    refused: tuple[str, ...] = world.do(c.RequireGroups(pool_id=pool.pool_id, epoch=orphans.epoch, keys=keys))
    return refused


def settle(world: Any, pool: Pool, *keys: str) -> None:
    orphans = world.map.queue_by_id(pool.orphans)
    world.do(c.SettleGroups(pool_id=pool.pool_id, epoch=orphans.epoch, keys=keys))


def of_group(kind: Any, world: Any, pool: Pool, key: str = "42", **changed: Any) -> bool:
    group = world.map.pools.group(pool.pool_id, key)
    queue = world.map.queue_by_id(group.queue_id)
    said = {"queue_id": group.queue_id, "epoch": queue.epoch, "generation": group.generation, **changed}
    done: bool = world.do(kind(pool_id=pool.pool_id, key=key, **said))
    return done


def names(world: Any) -> tuple[set[str], set[str]]:
    exchanges = {exchange.name for exchange in world.map.exchanges("/") if not exchange.name.startswith("amq.")}
    return exchanges, {queue.name for queue in world.map.queues("/")}


@pytest.fixture
def world() -> World:
    return World()


def test_a_pool_is_declared_with_all_that_is_its(world: World) -> None:
    pool = declare(world)
    assert names(world) == (EXCHANGES, QUEUES)
    requests = world.map.exchange("/", "core-req-xchg")
    assert requests is not None
    assert (requests.type, requests.arguments) == ("direct", {"alternate-exchange": "core-orphan-xchg"})
    bound = {(one.source, one.destination) for one in world.map.bindings("/")}
    assert bound == {
        ("core", "core-req-xchg"), ("core-delayed", "core-req-xchg"), ("core-orphan-xchg", "core-orphan"),
        ("core-dl-xchg", "core-dl"), ("core-activity-xchg", "core-activity"),
    }  # fmt: skip
    queue = world.map.queue("/", "core-orphan")
    assert queue is not None
    settings = world.map.effective(queue)
    assert (settings.message_ttl_ms, settings.max_length, settings.dead_letter_exchange, settings.overflow) == (
        900_000, 10_000, "core-dl-xchg", "reject-publish-dlx",
    )  # fmt: skip
    part = world.map.pools.queue(queue.queue_id)
    assert part is not None
    assert part.part == "orphans"
    assert world.map.pools.find("/", "core") is pool


def test_the_same_again_changes_nothing_and_other_settings_need_set(world: World) -> None:
    pool = declare(world)
    assert declare(world) is pool
    assert world.told == []
    with pytest.raises(PreconditionFailed, match=r"request_ttl_ms 900000, and not 5: change it with set"):
        declare(world, request_ttl_ms=5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"request_ttl_ms": 0}, "request_ttl_ms is 0"),
        ({"min": 3, "max": 2}, "min is 3 and max 2"),
        ({"keys": "("}, "keys: "),
        ({"scaling": "more"}, "one of own, hpa"),
    ],
)
def test_settings_out_of_range_are_refused(world: World, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(PreconditionFailed, match=why):
        declare(world, **settings)


@pytest.mark.parametrize("name", ["", "x" * 101, "é" * 17, "\ud800"])
def test_names_that_make_none_of_queues_are_refused(world: World, name: str) -> None:
    with pytest.raises(PreconditionFailed):
        declare(world, name)


def test_a_name_that_somebody_has_refuses_the_pool(world: World) -> None:
    world.queue("core-req-7")
    with pytest.raises(PreconditionFailed, match="'core-req-7' in vhost '/' is there"):
        declare(world)
    world.exchange("other-dl-xchg")
    with pytest.raises(PreconditionFailed, match="'other-dl-xchg' in vhost '/' is there"):
        declare(world, "other")


@pytest.mark.parametrize("name", ["a", "a-req", "a-req-b", "a b", "a%20b", "a/b", "ä", "~"])
def test_pools_of_all_names_are_apart(world: World, name: str) -> None:
    declare(world, "a-req-b-req")
    pools = {other: declare(world, other) for other in ("a", name)}
    for pool in pools.values():
        for key in ("", "b", "req-b", "a b", "a%20b", "~", "x" * 255, "\U0001f600" * 60, "\n#*."):
            require(world, pool, key)
    every = [queue.name for queue in world.map.queues("/")]
    assert len(every) == len(set(every)) == (1 + len(pools)) * 5 + len(pools) * 9
    assert all(len(queue) <= 255 for queue in every)


def test_a_name_tells_its_key_unless_it_is_a_hash() -> None:
    names = PoolNames("a b")
    for key in ("", "42", "a-b", "%", "\U0001f600", "x" * 200):
        assert names.key_of(names.request_queue(key)) == key
    assert names.key_of(names.request_queue("%" * 255)) is None
    for other in ("a%20b-req", "a%20b-req-%zz", "a%20b-req-%2d", "a%20b-req-%00", "a%20b-req-%FF", "a-req-1"):
        assert names.key_of(other) is None


def test_names_end_as_those_look_for_who_do_not_know_the_pool() -> None:
    names = PoolNames("a-delayed-dl-xchg")
    assert names.exchange_of(names.dead).endswith(DEAD_REQUESTS)
    ends = [name for name in names.exchanges if name.endswith((DEAD_REQUESTS, LATER_REQUESTS))]
    assert ends == [names.delayed, names.exchange_of(names.dead)]


def test_a_group_is_one_with_its_queue_and_binding(world: World) -> None:
    pool = declare(world, process_timeout_ms=5000)
    assert require(world, pool, "a b", "42") == ()
    queue = world.map.queue("/", "core-req-a%20b")
    assert queue is not None
    settings = world.map.effective(queue)
    assert (settings.consumer_timeout_ms, settings.delivery_limit, settings.dead_letter_strategy) == (
        5000, 3, "at-least-once",
    )  # fmt: skip
    (binding,) = world.map.bindings_to("/", "queue", queue.name)
    assert (binding.source, binding.routing_key) == ("core-req-xchg", "a b")
    groups = world.map.pools.groups(pool.pool_id)
    assert len({group.queue_id for group in groups} | {pool.orphans, pool.dead}) == 4


def test_a_life_of_a_group(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42")
    assert not of_group(c.UnbindGroup, world, pool), "something may be on its way to it"
    settle(world, pool, "42", "none")
    assert not of_group(c.DropGroup, world, pool), "it is bound"
    assert of_group(c.UnbindGroup, world, pool)
    assert world.map.bindings_from("/", "core-req-xchg") == ()
    assert of_group(c.BindGroup, world, pool)
    assert len(world.map.bindings_from("/", "core-req-xchg", "42")) == 1
    assert of_group(c.UnbindGroup, world, pool)
    before = world.map.pools.group(pool.pool_id, "42")
    assert before is not None
    require(world, pool, "42")
    after = world.map.pools.group(pool.pool_id, "42")
    assert after is not None
    assert (after.state, after.queue_id) == ("active", before.queue_id)
    assert after.generation > before.generation
    settle(world, pool, "42")
    assert not of_group(c.UnbindGroup, world, pool, generation=before.generation), "it was required since"
    assert of_group(c.UnbindGroup, world, pool)
    assert not of_group(c.DropGroup, world, pool, epoch=Epoch(7))
    assert not of_group(c.DropGroup, world, pool, generation=before.generation)
    assert of_group(c.DropGroup, world, pool)
    assert world.map.pools.groups(pool.pool_id) == ()
    assert names(world) == (EXCHANGES, QUEUES)


def test_a_controller_of_another_epoch_orders_nothing(world: World) -> None:
    pool = declare(world)
    for command in (
        c.RequireGroups(pool_id=pool.pool_id, epoch=Epoch(2), keys=("42",)),
        c.LaunchWorkers(pool_id=pool.pool_id, epoch=Epoch(2), workers=()),
        c.RevokeWorkers(pool_id=pool.pool_id, epoch=Epoch(2), launches=(), why=""),
    ):
        with pytest.raises(PreconditionFailed, match="a controller of epoch 1: one of 2 orders nothing"):
            world.do(command)
    with pytest.raises(NotFound):
        world.do(c.RequireGroups(pool_id=LogIndex(99), epoch=Epoch(1), keys=()))


def test_too_many_groups_and_keys_that_are_none(world: World) -> None:
    pool = declare(world, max_groups=2)
    assert require(world, pool, "1", "2", "3") == ("3",)
    assert require(world, pool, "1", "2") == ()
    for key in ("x" * 256, "a\0", "\ud800"):
        with pytest.raises(PreconditionFailed, match="a key of a group"):
            require(world, pool, key)
    with pytest.raises(PreconditionFailed, match="at most 100 entries"):
        require(world, pool, *map(str, range(101)))


def test_a_limit_of_the_vhost_counts_for_pools(world: World) -> None:
    world.do(c.SetVhostLimits(vhost="/", queues_max=4))
    with pytest.raises(LimitReached):
        declare(world)
    world.do(c.SetVhostLimits(vhost="/", queues_max=6))
    assert require(world, declare(world), "1", "2") == ("2",)


@pytest.mark.parametrize(
    "command",
    [
        c.DeclareQueue(vhost="/", name="core-orphan", durable=True),
        c.DeclareQueue(vhost="/", name="core-req-new", durable=True),
        c.DeclareExchange(vhost="/", name="core", type="fanout", durable=True),
        c.DeleteExchange(vhost="/", name="core-req-xchg"),
        c.Loosen(ending=c.DeleteExchange(vhost="/", name="core-req-xchg")),
        c.Bind(vhost="/", source="core-req-xchg", destination="q", routing_key="42"),
        c.Bind(vhost="/", source="amq.direct", destination="core-req-42"),
        c.Bind(vhost="/", source="amq.direct", destination="core", destination_kind="exchange"),
        c.Unbind(vhost="/", source="core", destination="core-req-xchg", destination_kind="exchange"),
        c.Unbind(vhost="/", source="core-activity-xchg", destination="core-activity"),
    ],
)
def test_what_is_a_pools_is_closed_to_other_commands(world: World, command: c.AnyCommand) -> None:
    require(world, declare(world), "42")
    world.queue("q")
    with pytest.raises(AccessRefused, match="belongs to pool 'core': it is closed to clients"):
        world.do(command)


def test_a_queue_of_a_pool_is_not_deleted_by_others(world: World) -> None:
    pool = declare(world)
    with pytest.raises(AccessRefused):
        world.do(c.DeleteQueue(vhost="/", name="core-dl", queue_id=pool.dead))


def test_everybody_may_listen_to_activity(world: World) -> None:
    declare(world)
    world.queue("q")
    assert world.bind("core-activity-xchg", "q")
    assert world.unbind("core-activity-xchg", "q")


def test_names_beside_a_pool_are_free(world: World) -> None:
    declare(world)
    for name in ("core", "core-req", "core-other", "cor", "core%"):
        world.queue(name)
    for name in ("core-req", "cores"):
        world.exchange(name)


def test_queues_of_requests_end_unasked_and_others_do_not(world: World) -> None:
    """What comes to them too late is refused, and not taken for gone with its queue."""
    pool = declare(world)
    assert require(world, pool, "42") == ()
    world.queue("mine", arguments={"x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "elsewhere"})
    ends = {queue.name for queue in world.map.queues("/") if queue.ends_unasked}
    assert ends == {"core-orphan", "core-req-42", "amq.delay.core-delayed"}


def test_settings_reach_the_queues_that_there_are(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42")
    world.do(
        c.SetPool(vhost="/", name="core", settings=PoolSettings(request_ttl_ms=7, max=3), only=("request_ttl_ms",))
    )
    for name in ("core-orphan", "core-req-42"):
        queue = world.map.queue("/", name)
        assert queue is not None
        assert world.map.effective(queue).message_ttl_ms == 7
    found = world.map.pools.find("/", "core")
    assert found is not None
    assert (found.settings.request_ttl_ms, found.settings.max) == (7, 8)
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(max=9), only=("max",)))
    assert len(world.told) == 1, "no queue knows of it"
    with pytest.raises(PreconditionFailed):
        world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(max=-1), only=("max",)))
    with pytest.raises(NotFound):
        world.do(c.SetPool(vhost="/", name="none", settings=PoolSettings()))


def test_a_settle_that_comes_late_settles_no_group_that_was_required_since(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42")
    (before,) = world.map.pools.groups(pool.pool_id)
    late = c.SettleGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=("42",), generations=(before.generation,))
    require(world, pool, "42")
    world.do(late)
    (group,) = world.map.pools.groups(pool.pool_id)
    assert group.moving
    world.do(c.SettleGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=("42",), generations=(group.generation,)))
    (group,) = world.map.pools.groups(pool.pool_id)
    assert not group.moving


def test_launches_are_kept_until_they_are_gone(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42")
    launched = world.do(
        c.LaunchWorkers(
            pool_id=pool.pool_id, epoch=Epoch(1), workers=(("42", "a", "v"), ("no", "a", "v"), ("42", "b", "v"))
        )
    )
    index = world.map.applied
    assert [launch.launch_id for launch in launched] == [f"w{index}-0", f"w{index}-2"]
    first, second = (launch.launch_id for launch in launched)
    revoke = c.RevokeWorkers(pool_id=pool.pool_id, epoch=Epoch(1), launches=(first, "w0-0"), why="idle")
    assert world.do(revoke) == (first,)
    assert world.do(revoke) == ()
    found = world.map.pools.launch(first)
    assert found is not None
    assert found.revoked == "idle"
    retire = c.RetireWorkers(pool_id=pool.pool_id, epoch=Epoch(1), launches=(first, second, "w0-0"), why="surplus")
    assert world.do(retire) == (second,)  # what is revoked is retired
    assert world.do(retire) == ()
    assert [launch.retired for launch in world.map.pools.launches_of(pool.pool_id, "42")] == ["", "surplus"]
    with pytest.raises(PreconditionFailed, match="epoch"):
        world.do(c.RetireWorkers(pool_id=pool.pool_id, epoch=Epoch(2), launches=(second,), why="surplus"))
    gone = c.WorkersGone(node="a", incarnation=1, ended=(Ended(first, 0), Ended("w0-0")))  # type: ignore[arg-type]
    assert [launch.launch_id for launch in world.do(gone)] == [first]
    assert [launch.launch_id for launch in world.map.pools.launches(pool.pool_id)] == [second]
    world.do(c.PausePool(vhost="/", name="core"))
    with pytest.raises(PreconditionFailed, match="no worker begins"):
        world.do(c.LaunchWorkers(pool_id=pool.pool_id, epoch=Epoch(1), workers=()))


def test_a_pool_ends_when_its_queues_have(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42")
    with pytest.raises(InUse, match="1 groups"):
        world.do(c.DeletePool(vhost="/", name="core"))
    assert world.do(c.DeletePool(vhost="/", name="core", force=True))
    assert names(world)[0] == {"core-orphan-xchg", "core-dl-xchg", "core-activity-xchg"}
    with pytest.raises(PreconditionFailed, match="is being deleted"):
        declare(world)
    with pytest.raises(NotFound):
        require(world, pool, "42")
    ends = [c.EndPoolQueue(pool_id=pool.pool_id, queue_id=one, epoch=Epoch(1)) for one in (pool.orphans, pool.dead)]
    assert not world.do(ends[0]), "a group has requests"
    assert not of_group(c.DropGroup, world, pool)
    settle(world, pool, "42")
    assert not of_group(c.BindGroup, world, pool)
    assert of_group(c.DropGroup, world, pool)
    assert not world.do(ends[1]), "orphans may die"
    assert world.do(ends[0])
    assert world.do(ends[1])
    assert names(world) == (set(), set())
    assert world.map.pools.all() == ()
    assert not world.do(c.DeletePool(vhost="/", name="core"))
    declare(world)


def test_what_waits_for_its_time_outlives_its_exchange_until_its_owner_says(world: World) -> None:
    pool = declare(world)
    world.do(c.DeletePool(vhost="/", name="core", delayed=True))
    assert "core-delayed" not in names(world)[0]
    assert world.map.queue_by_id(pool.delayed) is not None
    assert world.map.pools.delays(pool.delayed) == pool.pool_id
    assert ClusterMap.restored(world.map.snapshot()).digest() == world.map.digest()
    for part in (pool.activity, pool.poison):
        assert not world.do(c.EndPoolQueue(pool_id=pool.pool_id, queue_id=part, epoch=Epoch(1)))
    ends = [c.EndPoolQueue(pool_id=pool.pool_id, queue_id=one, epoch=Epoch(1)) for one in (pool.orphans, pool.delayed)]
    dead = c.EndPoolQueue(pool_id=pool.pool_id, queue_id=pool.dead, epoch=Epoch(1))
    assert world.do(ends[0])
    assert not world.do(dead), "requests of later may die"
    assert not world.do(replace(ends[1], epoch=Epoch(2)))
    assert world.do(ends[1])
    assert world.map.pools.delays(pool.delayed) is None
    assert world.do(dead)
    assert names(world) == (set(), set())
    declare(world)


def test_below_its_level_nobody_asks_for_answers_to_what_waits_for_its_time() -> None:
    command = c.DeletePool(vhost="/", name="core", delayed=True)
    check_ordered(command, ANSWERED_DELAYS)
    with pytest.raises(PreconditionFailed, match=f"feature level {ANSWERED_DELAYS}"):
        check_ordered(command, ANSWERED_DELAYS - 1)
    check_ordered(c.DeletePool(vhost="/", name="core"), ANSWERED_DELAYS - 1)


def test_the_end_of_a_vhost_ends_its_pools(world: World) -> None:
    world.do(c.AddVhost(name="v"))
    pool = world.do(c.DeclarePool(vhost="v", name="core"))
    require(world, pool, "42")
    world.do(c.DeleteVhost(name="v"))
    assert world.map.pools.all() == ()
    assert world.map.pools.queue(pool.orphans) is None


def test_a_vhost_that_ends_in_pieces_has_pools_of_which_some_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is ordered meanwhile is refused, or does what is left to do."""
    monkeypatch.setattr(cascade, "PIECE", 300)
    for pieces in range(1, 12):
        world = World()
        world.do(c.AddVhost(name="v"))
        pool = world.do(c.DeclarePool(vhost="v", name="core"))
        require(world, pool, "42", "43")
        settle(world, pool, "42", "43")
        of_group(c.UnbindGroup, world, pool)
        ending = c.DeleteVhost(name="v")
        assert world.map.in_pieces(ending)
        for _ in range(pieces):
            world.do(c.Loosen(ending=ending))
        group = world.map.pools.group(pool.pool_id, "42")
        assert group is not None
        about = {"pool_id": pool.pool_id, "key": "42", "queue_id": group.queue_id, "epoch": Epoch(1)}
        for command in (
            c.SetPool(vhost="v", name="core", settings=PoolSettings(request_ttl_ms=7, max_length=5)),
            c.RequireGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=("42", "new")),
            c.SettleGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=("42", "new")),
            c.BindGroup(**about, generation=group.generation),
            c.UnbindGroup(**about, generation=group.generation),
            c.DropGroup(**about, generation=group.generation),
            c.DeclarePool(vhost="v", name="other"),
            c.DeletePool(vhost="v", name="core", force=True),
            c.EndPoolQueue(pool_id=pool.pool_id, queue_id=pool.orphans, epoch=Epoch(1)),
            c.EndPoolQueue(pool_id=pool.pool_id, queue_id=pool.dead, epoch=Epoch(1)),
        ):
            with contextlib.suppress(WiringError):
                world.do(command)
            assert ClusterMap.restored(world.map.snapshot()).digest() == world.map.digest()
        world.do(ending)
        assert world.map.pools.all() == ()


def test_in_a_cluster_its_queues_have_copies() -> None:
    world = ClusterWorld()
    pool = declare(world)
    require(world, pool, "42")
    for name in (*QUEUES, "core-req-42"):
        queue = world.map.queue("/", name)
        assert queue is not None
        assert len(queue.replicas) == 3
    assert isinstance(world.map.pools.group(pool.pool_id, "42"), Group)


def test_a_snapshot_has_all_of_it(world: World) -> None:
    pool = declare(world)
    require(world, pool, "42", "43")
    settle(world, pool, "42")
    of_group(c.UnbindGroup, world, pool)
    world.do(c.LaunchWorkers(pool_id=pool.pool_id, epoch=Epoch(1), workers=(("42", "a", "v"),)))
    again = ClusterMap.restored(world.map.snapshot())
    assert again.digest() == world.map.digest()
    assert again.pools.groups(pool.pool_id) == world.map.pools.groups(pool.pool_id)
    assert again.pools.owner_of_queue("/", "core-req-new") == pool
    part = again.pools.queue(pool.dead)
    assert part is not None
    assert part.part == "dead"


def test_pools_need_their_feature_level() -> None:
    with pytest.raises(PreconditionFailed, match=f"feature level {WORKER_POOLS}"):
        check_ordered(c.DeclarePool(vhost="/", name="core"), WORKER_POOLS - 1)
    check_ordered(c.DeclarePool(vhost="/", name="core"), WORKER_POOLS)
    check_ordered(c.DeclarePool(vhost="/", name="core", template="noop"), WORKER_POOLS)
    with pytest.raises(PreconditionFailed, match=f"feature level {STARTED_WORKERS}"):
        check_ordered(c.DeclarePool(vhost="/", name="core", template="core"), STARTED_WORKERS - 1)


@pytest.mark.parametrize("level", [STARTED_WORKERS - 1, STARTED_WORKERS])
def test_a_place_alone_reports_its_launches_and_ends_with_them(level: int) -> None:
    world = ClusterWorld()
    members = tuple((member.name, member.incarnation) for member in world.map.members())
    if world.map.level < level:
        world.do(c.RaiseLevel(level=level, members=members))
    assert world.map.level == level
    pool = declare(world)
    require(world, pool, "42")
    (place, incarnation), (other, others) = members[0], members[1]
    orphans = world.map.queue_by_id(pool.orphans)
    orders = (("42", place, "v1"), ("42", place, "v1"), ("42", other, "v1"))
    launches = world.do(c.LaunchWorkers(pool_id=pool.pool_id, epoch=orphans.epoch, workers=orders))

    def reported(node: Any, of: Any, launch: Any) -> bool:
        return bool(world.do(c.WorkersGone(node=node, incarnation=of, ended=(Ended(launch.launch_id, 0),))))

    if level < STARTED_WORKERS:
        assert reported(other, Incarnation(others + 1), launches[0]), "as releases before do"
        return
    assert not reported(other, others, launches[0])
    assert not reported(place, Incarnation(incarnation + 1), launches[0])
    assert reported(place, incarnation, launches[0])
    world.do(c.FailNode(node=other, incarnation=others))
    world.do(c.ForgetNode(node=other, accept_loss=True))
    assert world.map.pools.launches(pool.pool_id) == (launches[1],)
    assert ClusterMap.restored(world.map.snapshot()).digest() == world.map.digest()


def test_an_error_is_the_answer_and_changes_nothing(world: World) -> None:
    pool = declare(world, max_groups=1)
    before = world.map.digest()
    with pytest.raises(WiringError):
        world.do(c.RequireGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=("fine", "x" * 256)))
    assert world.map.digest() == before
