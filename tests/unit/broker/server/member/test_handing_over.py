"""How a member gives its queues away: what it orders, and how often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.member.handing_over import HAND_OVERS_AT_ONCE, hand_over_all
from clusterbroker.cluster.wiring.balance import MOVES_AT_ONCE
from tests.unit.cluster.cluster_world import ClusterWorld


class Wiring:
    """Takes orders, and carries none out."""

    def __init__(self) -> None:
        self.ordered: list[Any] = []

    def propose(self, command: Any) -> None:
        self.ordered.append(command)


async def test_what_is_ordered_is_not_ordered_again_at_each_look() -> None:
    """Each look ordered a copy more for each queue that has one alone: thousands of queues, fifty times a second, stood
    in the line of all that the node had to say, its own hand-overs among it."""
    world = ClusterWorld()
    for number in range(3 * MOVES_AT_ONCE):
        world.declare(f"q{number}", x={"replicas": 1, "queue-leader-locator": "client-local"})
    world.drain("a")
    loop = asyncio.get_running_loop()
    wiring = Wiring()
    queues = {q.queue_id: SimpleNamespace(entity=q, ring=SimpleNamespace(replicated=True)) for q in world.map.queues()}
    shell: Any = SimpleNamespace(
        node=SimpleNamespace(map=world.map, part=SimpleNamespace(), queues=queues),
        loop=loop,
        ended=loop.create_future(),
        storage=SimpleNamespace(wiring=wiring),
        schedule=lambda: None,
    )
    assert await hand_over_all(shell, 0.3, thoroughly=True) == (0, 3 * MOVES_AT_ONCE)
    assert len(wiring.ordered) == MOVES_AT_ONCE
    assert len({command.queue_id for command in wiring.ordered}) == MOVES_AT_ONCE


class Part:
    """Begins hand-overs that take their time."""

    def __init__(self) -> None:
        self.moving: dict[int, None] = {}
        self.most = 0
        self.copying = SimpleNamespace(primary=SimpleNamespace(moves=lambda queue_id: queue_id in self.moving))

    def hand_over(self, queue_id: int, to: str) -> bool:
        self.moving[queue_id] = None
        self.most = max(self.most, len(self.moving))
        return True


@pytest.mark.long
async def test_thousands_are_handed_over_some_at_a_time() -> None:
    """All 3,916 at once stood in the line of the wiring log for longer than their deadline: 7,103 failed, again and
    again, and their clients waited for nothing."""
    world = ClusterWorld()
    count = 3 * HAND_OVERS_AT_ONCE
    for number in range(count):
        world.declare(f"q{number}", x={"queue-leader-locator": "client-local"})
    loop = asyncio.get_running_loop()
    part = Part()
    queues = {q.queue_id: SimpleNamespace(entity=q, ring=SimpleNamespace(replicated=True)) for q in world.map.queues()}

    def some_are_gone() -> None:
        for queue_id in tuple(part.moving)[:50]:
            del part.moving[queue_id], queues[queue_id]

    shell: Any = SimpleNamespace(
        node=SimpleNamespace(map=world.map, part=part, queues=queues),
        loop=loop,
        ended=loop.create_future(),
        storage=SimpleNamespace(wiring=Wiring()),
        schedule=some_are_gone,
    )
    assert await hand_over_all(shell, 60) == (count, 0)
    assert part.most == HAND_OVERS_AT_ONCE
