"""How long a member that leaves waits for others to have its copies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.server.endings import Restart
from clusterbroker.broker.server.member import leaving
from clusterbroker.broker.server.member.cluster_shell import ClusterShell
from clusterbroker.broker.server.member.leaving import HAND_OVERS_AT_ONCE, hand_over_all
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.liveness.lease import LeaseState
from clusterbroker.cluster.wiring.balance import MOVES_AT_ONCE
from clusterbroker.cluster.wiring.map import Applied
from tests.unit.cluster.cluster_world import ClusterWorld

LONG_S = 60.0


class Waiting:
    """Member b of four, which has a copy of q, waits to leave."""

    def __init__(self, wait_s: float = LONG_S) -> None:
        self.world = ClusterWorld("abcd")
        self.world.declare("q")
        self.world.drain("b", leaving=True)
        self.told: list[str] = []
        loop = asyncio.get_running_loop()
        shell: Any = SimpleNamespace(loop=loop, ended=loop.create_future(), node=SimpleNamespace(map=self.world.map))
        cluster: Any = SimpleNamespace(
            name=NodeId("b"), log_line=lambda event, text: self.told.append(f"{event}: {text}")
        )
        self.task = asyncio.create_task(leaving._awaited(shell, cluster, loop.time() + wait_s))

    async def queues(self) -> list[str]:
        return [short.queue.name for short in await asyncio.wait_for(self.task, 10)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "LOOK_S", 0.001)


async def began(waiting: Waiting) -> None:
    while not waiting.told:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not waiting.task.done()


async def test_until_another_has_caught_up() -> None:
    waiting = Waiting()
    await began(waiting)
    assert waiting.told == ["leaving: 1 queues count on a copy here: others catch up"]
    waiting.world.move("q", add="d")
    waiting.world.in_sync("q", "abcd")
    assert await waiting.queues() == []


async def test_until_the_time_is_over() -> None:
    assert await Waiting(0.01).queues() == ["q"]


async def test_not_when_nothing_can_come_of_it() -> None:
    waiting = Waiting()
    await began(waiting)
    waiting.world.fail("d")
    assert await waiting.queues() == ["q"]


async def test_not_when_it_is_told_to_stay() -> None:
    waiting = Waiting()
    await began(waiting)
    waiting.world.drain("b", draining=False)
    with pytest.raises(Refused, match="'b' stays: it was told so meanwhile"):
        await waiting.queues()


def test_a_refusal_names_a_few_queues_and_what_to_do() -> None:
    world = ClusterWorld("abcd")
    for number in range(13):
        world.declare(f"q{number}", x={"replicas": 4})
    short = list(world.map.counting_on(NodeId("b")))
    assert short == []
    world.policy(replicas=3)
    for number in range(13):
        world.in_sync(f"q{number}", "".join(sorted({str(world.queue(f"q{number}").owner), "b"})))
    short = list(world.map.counting_on(NodeId("b")))
    text = leaving._about_copies("b", short)
    assert "'q0' 1 of 3, " in text
    assert text.endswith("and 3 more; others are catching up: give it more time (--timeout), or say --force"), text


async def test_who_was_failed_while_it_left_and_stays_begins_again() -> None:
    """Else its process would run on as a member that is dead to all others, and never has a lease again."""
    failed: list[BaseException] = []
    shell: Any = SimpleNamespace(
        options=SimpleNamespace(cluster=SimpleNamespace(dial={}), node=SimpleNamespace(name="b")),
        log=SimpleNamespace(emit=lambda *_, **__: None),
        fail=failed.append,
        lease_changed=lambda: None,
        clients={},
    )
    cluster = ClusterShell(shell, Path("nowhere"))
    world = ClusterWorld("abc")
    heart = SimpleNamespace(registered=lambda _: None, failed=lambda _: None)
    cluster.liveness = SimpleNamespace(heart=heart)  # type: ignore[assignment]
    cluster.incarnation = 1
    cluster._member(world.member("b"))
    answers = [Applied(LogIndex(9), None, PreconditionFailed("q counts on it"), None, ())]  # type: ignore[arg-type]

    async def ordered(_: Any) -> Applied:
        assert cluster.leaving
        world.fail("b")
        cluster._member(world.member("b"))
        cluster.lease_changed(LeaseState.FENCED)
        assert not failed, "perhaps it need not begin again"
        return answers.pop()

    cluster.ordered = ordered  # type: ignore[method-assign]
    await leaving._forgotten(shell, cluster, False, False)
    assert [type(error) for error in failed][:1] == [Restart]
    assert not cluster.leaving


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
        node=SimpleNamespace(map=world.map, role=SimpleNamespace(), queues=queues),
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
        node=SimpleNamespace(map=world.map, role=part, queues=queues),
        loop=loop,
        ended=loop.create_future(),
        storage=SimpleNamespace(wiring=Wiring()),
        schedule=some_are_gone,
    )
    assert await hand_over_all(shell, 60) == (count, 0)
    assert part.most == HAND_OVERS_AT_ONCE
