"""Worker pools over random logs: against a plain model, and through snapshots."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.errors import WiringError
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from clusterbroker.cluster.wiring.pool_names import PoolNames
from tests.budget import examples
from tests.unit.cluster.cluster_world import ClusterWorld

POOL_NAMES = ("p", "p", "p", "p-req", "q r")
KEYS = ("", "", "", "b", "xchg")
STEPS = st.one_of(
    st.tuples(st.just("declare"), st.sampled_from(POOL_NAMES)),
    st.tuples(st.just("require"), st.sampled_from(POOL_NAMES), st.lists(st.sampled_from(KEYS), max_size=3, unique=True),
              st.sampled_from((0, 0, 0, 1))),
    st.tuples(st.just("settle"), st.sampled_from(POOL_NAMES), st.lists(st.sampled_from(KEYS), max_size=3, unique=True)),
    st.tuples(st.sampled_from(("unbind", "bind", "drop")), st.sampled_from(POOL_NAMES), st.sampled_from(KEYS),
              st.sampled_from((0, 0, 0, 1)), st.sampled_from((0, 0, 0, -1))),
    st.tuples(st.just("delete"), st.sampled_from(POOL_NAMES), st.booleans(), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(POOL_NAMES), st.sampled_from(("orphans", "delayed", "dead", "activity"))),
    st.tuples(st.just("fail"), st.sampled_from(("a", "b", "c"))),
    st.tuples(st.just("register"), st.sampled_from(("a", "b", "c"))),
    st.tuples(st.just("client"), st.sampled_from(POOL_NAMES), st.sampled_from(KEYS)),
)  # fmt: skip
MAX_GROUPS = 2
KINDS: dict[str, Any] = {"unbind": c.UnbindGroup, "bind": c.BindGroup, "drop": c.DropGroup}


class Model:
    """name -> [deleting, queues that end before the last one, key -> (bound, generation, moving)]"""

    def __init__(self) -> None:
        self.pools: dict[str, list[Any]] = {}

    def require(self, name: str, keys: list[str], index: int) -> tuple[str, ...]:
        groups, refused = self.pools[name][2], []
        for key in keys:
            if key in groups or len(groups) < MAX_GROUPS:
                groups[key] = (True, index, True)
            else:
                refused.append(key)
        return tuple(refused)

    def moved(self, kind: str, name: str, key: str) -> bool:
        deleting, _, groups = self.pools[name]
        bound, generation, moving = groups[key]
        if moving or (kind == "bind" and deleting) or (kind == "drop" and bound):
            return False
        if kind == "drop":
            del groups[key]
        else:
            groups[key] = (kind == "bind", generation, False)
        return True


def answered(world: ClusterWorld, command: c.AnyCommand) -> Any:
    """None: refused."""
    try:
        return world.do(command)
    except WiringError:
        return None


def step(world: ClusterWorld, model: Model, one: tuple[Any, ...]) -> None:
    held = model.pools.get(one[1])
    pool = world.map.pools.find("/", one[1])
    match one:
        case ("declare", name):
            made = answered(world, c.DeclarePool(vhost="/", name=name, settings=PoolSettings(max_groups=MAX_GROUPS)))
            if held is None and made is not None:
                model.pools[name] = [False, {"orphans", "delayed"}, {}]
            else:
                assert (made is not None) is (held is not None and not held[0]) or not alive(world)
        case ("require", name, keys, off) if pool is not None:
            queue = world.map.queue_by_id(pool.orphans)
            epoch = Epoch((queue.epoch if queue is not None else 1) + off)
            refused = answered(world, c.RequireGroups(pool_id=pool.pool_id, epoch=epoch, keys=tuple(keys)))
            if refused is not None:
                assert not off
                assert held is not None
                assert not held[0]
                assert refused == model.require(name, keys, world.map.applied)
            else:
                assert off or (held is not None and held[0]) or not alive(world)
        case ("settle", name, keys) if pool is not None and held is not None:
            queue = world.map.queue_by_id(pool.orphans)
            epoch = Epoch(1) if queue is None else queue.epoch
            if answered(world, c.SettleGroups(pool_id=pool.pool_id, epoch=epoch, keys=tuple(keys))) is None:
                for key in set(keys) & set(held[2]):
                    held[2][key] = (*held[2][key][:2], False)
        case (kind, name, key, off, older) if kind in KINDS and pool is not None:
            group = world.map.pools.group(pool.pool_id, key)
            if group is None:
                return
            queue = world.map.queue_by_id(group.queue_id)
            assert queue is not None
            done = world.do(
                KINDS[kind](
                    pool_id=pool.pool_id, key=key, queue_id=group.queue_id, epoch=Epoch(queue.epoch + off),
                    generation=group.generation + older,
                )
            )  # fmt: skip
            assert done is (not off and not older and model.moved(kind, name, key))
        case ("delete", name, force, delayed):
            done = answered(world, c.DeletePool(vhost="/", name=name, force=force, delayed=delayed))
            if held is None:
                assert done is False
            elif held[2] and not force and not held[0]:
                assert done is None
            else:
                if not held[0] and not delayed:
                    held[1].discard("delayed")
                held[0] = True
                held[2] = {key: (False, *others) for key, (_, *others) in held[2].items()}
        case ("end", name, part) if pool is not None and held is not None:
            queue_id = getattr(pool, part)
            queue = world.map.queue_by_id(queue_id)
            epoch = Epoch(0) if queue is None else queue.epoch
            done = world.do(c.EndPoolQueue(pool_id=pool.pool_id, queue_id=queue_id, epoch=epoch))
            assert done is (held[0] and not held[2] and (part in held[1] or (part == "dead" and not held[1])))
            held[1].discard(part if done else "")
            if done and part == "dead":
                del model.pools[name]
        case ("client", name, key):
            queue_name = PoolNames(name).request_queue(key)
            if held is not None:
                assert answered(world, c.DeclareQueue(vhost="/", name=queue_name, durable=True)) is None
        case ("fail", node):
            world.fail(node)
        case ("register", node):
            world.register(node)


def alive(world: ClusterWorld) -> bool:
    return any(member.alive for member in world.map.members())


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_map_is_as_the_model(steps: list[tuple[Any, ...]]) -> None:
    world, model = ClusterWorld(), Model()
    for one in steps:
        step(world, model, one)
        found: dict[str, list[Any]] = {}
        for pool in world.map.pools.all():
            groups = world.map.pools.groups(pool.pool_id)
            there = {part for part in ("orphans", "delayed") if world.map.queue_by_id(getattr(pool, part)) is not None}
            lives = {group.key: (group.state == "active", group.generation, group.moving) for group in groups}
            found[pool.name] = [pool.deleting, there, lives]
            bound = {one.routing_key for one in world.map.bindings_from("/", PoolNames(pool.name).requests)}
            assert bound == {group.key for group in groups if group.state == "active"}
            assert (world.map.pools.delays(pool.delayed) == pool.pool_id) is ("delayed" in there)
            assert all(world.map.queue_by_id(group.queue_id) is not None for group in groups)
        assert found == model.pools
        assert world.restored().digest() == world.map.digest()
