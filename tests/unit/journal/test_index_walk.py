"""The index is looked at piece by piece while checkpoints change it: no false alarm, and no damage unseen."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from clusterbroker.journal import index_walk
from clusterbroker.journal.index import Index
from clusterbroker.journal.index_walk import IndexWalk
from clusterbroker.journal.layout import RUN_ENTRY
from clusterbroker.journal.segments import Position

QUEUES = range(1, 8)


def run_of(tag: int) -> bytes:
    return b"".join(RUN_ENTRY.pack(low, 0, 0, 0, 1, tag + low, 100, 20) for low in range(32))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(index_walk, "STEP_BYTES", 600)
    monkeypatch.setattr(index_walk, "STEP_KEYS", 2)
    index = Index(tmp_path, 1 << 28)
    commit(index, [(queue, block * 256, run_of(block)) for queue in QUEUES for block in range(6)], [])
    return index


def commit(
    index: Index, runs: list[tuple[int, int, bytes]], forgotten: list[int], walk: IndexWalk | None = None
) -> None:
    metas = [(queue, {"next_seq": 1, "reserved": 0}) for queue in sorted({queue for queue, *_ in runs})]
    index.commit(runs, metas, forgotten, Position(1, 0, 1), walk)


def walked(index: Index, between: Callable[[IndexWalk], object] = lambda _: None) -> list[int | None]:
    """The queues of which something was told in one pass."""
    walk = IndexWalk(index)
    found: list[int | None] = []
    for _ in range(10_000):
        looked = walk.step()
        found += [damage.queue_id for damage in looked.hurt]
        if looked.over:
            return found
        between(walk)
    raise AssertionError("a pass comes to its end")


def test_a_sound_index_is_sound(index: Index) -> None:
    assert walked(index) == []


def test_what_checkpoints_do_meanwhile_is_no_damage(index: Index) -> None:
    for seed in range(30):
        rng = random.Random(seed)

        def change(walk: IndexWalk, rng: random.Random = rng) -> None:
            runs = [
                (rng.choice(QUEUES), rng.randrange(8) * 256, rng.choice((b"", run_of(rng.randrange(1000)))))
                for _ in range(rng.randrange(4))
            ]
            commit(index, list({(queue, first): (queue, first, run) for queue, first, run in runs}.values()),
                   rng.sample(QUEUES, rng.randrange(2)), walk)  # fmt: skip

        assert walked(index, change) == [], seed


@pytest.mark.parametrize("how", ["flipped", "old", "gone", "all gone", "sum"])
def test_damage_names_its_queue(index: Index, how: str) -> None:
    env, key = index._env, (5).to_bytes(8, "big")
    queues, sums = index._queues, index._sums
    with env.begin(write=True) as txn:
        run = key + (512).to_bytes(8, "big")
        value = txn.get(run, db=queues)
        if how == "flipped":
            txn.put(run, value[:-1] + bytes((value[-1] ^ 1,)), db=queues)
        elif how == "gone":
            txn.delete(run, db=queues)
        elif how == "sum":
            txn.delete(key, db=sums)
        elif how == "all gone":
            for one in [one for one in txn.cursor(queues).iternext(values=False) if one[:8] == key]:
                txn.delete(one, db=queues)
    if how == "old":
        commit(index, [(5, 512, run_of(900))], [])
        with env.begin(write=True) as txn:
            txn.put(run, value, db=queues)
    assert walked(index) == [5]


def test_pages_can_be_given_back_on_the_way(index: Index) -> None:
    walk = IndexWalk(index)
    steps = 0
    while not walk.step().over:
        index.reopen()
        steps += 1
    assert steps > 5
    assert isinstance(index._env, lmdb.Environment)
