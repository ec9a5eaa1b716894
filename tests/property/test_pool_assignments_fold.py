"""Keys of workers that serve several, over random logs: against a plain model, and through snapshots."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.ids import Epoch, LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.budget import examples
from tests.unit.cluster.wiring.map_world import World

KEYS = ("1", "2", "3", "4")
MOST = 2
PAIRS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KEYS)), min_size=1, max_size=3)
WORKER = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.sampled_from(("assign", "assign", "retire_keys", "revoke_keys")), PAIRS),
    st.tuples(st.sampled_from(("launch", "gone", "retire", "revoke")), WORKER),
    st.tuples(st.sampled_from(("drop", "require", "stop")), st.sampled_from(KEYS)),
)


class Model:
    """(worker, key) -> whether it is retired; workers with whether they leave; groups."""

    def __init__(self) -> None:
        self.had: dict[tuple[str, str], bool] = {}
        self.workers: dict[str, bool] = {}
        self.groups: set[str] = set(KEYS)

    def assign(self, worker: str, key: str) -> None:
        full = sum(other == worker for other, _ in self.had) >= MOST
        may = self.workers.get(worker) is False and key in self.groups and not full
        if may and (worker, key) not in self.had:
            self.had[worker, key] = False

    def end(self, worker: str = "", key: str = "") -> None:
        self.had = {of: retired for of, retired in self.had.items() if of[0] != worker and of[1] != key}


def step(world: World, model: Model, one: tuple[Any, ...]) -> None:
    (pool,) = world.map.pools.all()
    known: dict[str, Any] = {"pool_id": pool.pool_id, "epoch": Epoch(1)}
    ids = list(model.workers)
    match one:
        case ("launch", _):
            (made,) = world.do(c.LaunchWorkers(workers=((NO_KEY, "a", "v"),), **known))
            model.workers[made.launch_id] = False
        case (("gone" | "retire" | "revoke") as word, nth) if nth < len(ids):
            worker = ids[nth]
            if word == "gone":
                world.do(c.WorkersGone(node="a", incarnation=1, ended=(Ended(worker),)))  # type: ignore[arg-type]
                del model.workers[worker]
                model.end(worker=worker)
            else:
                kind = c.RetireWorkers if word == "retire" else c.RevokeWorkers
                world.do(kind(launches=(worker,), why="a test", **known))
                model.workers[worker] = True
        case (("assign" | "retire_keys" | "revoke_keys") as word, pairs):
            named = tuple((ids[nth] if nth < len(ids) else "w0-0", key) for nth, key in pairs)
            if word == "assign":
                world.do(c.AssignWorkers(workers=named, **known))
                for worker, key in named:
                    model.assign(worker, key)
            elif word == "retire_keys":
                world.do(c.RetireKeys(keys=named, why="a test", **known))
                model.had.update({of: True for of in named if of in model.had})
            else:
                world.do(c.RevokeKeys(keys=named, **known))
                model.had = {of: retired for of, retired in model.had.items() if of not in named}
        case ("require", key):
            world.do(c.RequireGroups(keys=(key,), **known))
            model.groups.add(key)
        case ("stop", key) if key in model.groups:
            word_of_one = c.DirectGroup(vhost="/", name="core", key=key, word="stop")
            assert world.map.apply(LogIndex(world.map.applied + 1), word_of_one).ok
            model.had.update({of: True for of in model.had if of[1] == key})
        case ("drop", key) if key in model.groups:
            world.do(c.SettleGroups(keys=(key,), **known))
            group = world.map.pools.group(pool.pool_id, key)
            assert group is not None
            queue = {"key": key, "queue_id": group.queue_id, "epoch": Epoch(1), "generation": group.generation}
            world.do(c.UnbindGroup(pool_id=pool.pool_id, **queue))
            assert world.do(c.DropGroup(pool_id=pool.pool_id, **queue))
            model.groups.remove(key)
            model.end(key=key)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_map_is_as_the_model(steps: list[tuple[Any, ...]]) -> None:
    world, model = World(), Model()
    world.do(c.DeclarePool(vhost="/", name="core", template="core", keys_per_worker=MOST))
    (pool,) = world.map.pools.all()
    world.do(c.RequireGroups(pool_id=pool.pool_id, epoch=Epoch(1), keys=KEYS))
    for one in steps:
        step(world, model, one)
        pools = world.map.pools
        found = {
            (each.launch_id, each.key): bool(each.retired)
            for launch in pools.launches(pool.pool_id)
            for each in pools.assignments(launch.launch_id)
        }
        assert found == model.had
        for key in KEYS:
            leaving = {worker: gone or model.workers[worker] for (worker, of), gone in found.items() if of == key}
            assert pools.workers_of(pool.pool_id, key) == leaving
        again = type(world.map).restored(world.map.snapshot())
        assert again.digest() == world.map.digest()
        assert [again.pools.assignments_of(pool.pool_id, key) for key in KEYS] == [
            pools.assignments_of(pool.pool_id, key) for key in KEYS
        ]
