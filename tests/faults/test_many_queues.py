"""Real nodes with hundreds of queues, of which one dies: what the survivors do about it goes in slices.

How long that takes is the affair of `python -m bench.many_queues`. Here nothing is measured by a clock: counted are
slices, as the nodes tell them, and awaited is what clients must see.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench.many_queues import Defined, Pair
from clusterbroker.broker.node.renewals import SLICE
from clusterbroker.broker.server.control.client import ask
from tests.faults.fleet import until

pytestmark = pytest.mark.timeout(200)
QUEUES = 900


def rows(cluster: Defined, name: str) -> list[dict[str, Any]]:
    answer = ask(cluster.data_dir(name), "queues", timeout_s=60)
    return list(answer["queues"]) if answer.get("queues") else []


def told(cluster: Defined, name: str, event: str) -> list[dict[str, Any]]:
    lines = map(json.loads, cluster.nodes[name].log.read_text().splitlines())
    return [line for line in lines if line["event"] == event]


async def test_the_queues_of_a_dead_member_are_taken_over_in_slices_while_others_are_served(tmp_path: Path) -> None:
    cluster = Defined(tmp_path, QUEUES)
    end = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    try:
        await cluster.begin()
        listed = rows(cluster, "a")
        by_owner = {row["owner"]: row["name"] for row in listed}
        of_b = sum(row["owner"] == "b" for row in listed)
        pairs = [Pair(queue, owner) for owner, queue in by_owner.items()]
        assert {pair.owner for pair in pairs} == {"a", "b", "c"}
        tasks = [asyncio.create_task(pair.run(cluster, "a", "c", end)) for pair in pairs]
        await until(lambda: all(len(pair.deliveries) > 5 for pair in pairs))
        await cluster.kill("b")
        before = [len(pair.deliveries) for pair in pairs]
        await until(lambda: all(len(pair.deliveries) > was + 20 for pair, was in zip(pairs, before, strict=True)))
        for name in "ac":
            await until(lambda name=name: told(cluster, name, "wiring.in_slices"))  # type: ignore[misc]
            (line,) = told(cluster, name, "wiring.in_slices")
            # the queues of others it may have left before, when their owners had heard nothing of it for long enough
            assert of_b <= line["queues"] <= QUEUES
            assert line["longest"] <= SLICE
            assert line["slices"] >= 2
            owned = [row for row in rows(cluster, name) if row["owner"] in ("a", "c") and "b" not in row["in_sync"]]
            assert len(owned) == QUEUES
        assert not any(pair.lost for pair in pairs), [pair.lost for pair in pairs]
    finally:
        end.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.end()
