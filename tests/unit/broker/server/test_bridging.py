"""Bridges of a real node: what is read when, what is tried again how often, what is forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.bridges.shovel import URIS_MAX, Bridge, bridge
from clusterbroker.broker.bridges.standing import Standing
from clusterbroker.broker.server import bridging
from clusterbroker.broker.server.bridging import ALERT
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.cluster.wiring import commands as c

Start = Callable[..., Awaitable[NodeShell]]
GOOD = {"src-uri": "amqp://guest:guest@", "src-queue": "in", "dest-uri": "amqp://guest:guest@", "dest-queue": "out"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridging, "EVERY_S", 0.01)


async def put(shell: NodeShell, value: Any, name: str = "one") -> None:
    applied = await shell.propose(c.PutParameter(vhost="/", component="shovel", name=name, value=value))
    assert applied.ok, applied.error


def state_of(shell: NodeShell, name: str = "one") -> str:
    assert shell.bridges is not None
    return next((str(row["state"]) for row in shell.bridges.rows() if row["name"] == name), "none")


def alerts(shell: NodeShell) -> list[str]:
    return [alert.text for alert in shell.node.alerts if alert.kind == ALERT]


class Looks:
    """Counts the looks of a node at its bridges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = bridging.Bridges._look

        def counted(bridges: bridging.Bridges) -> None:
            self.count += 1
            look(bridges)

        monkeypatch.setattr(bridging.Bridges, "_look", counted)

    async def more(self, count: int) -> None:
        wanted = self.count + count
        await until(lambda: self.count >= wanted)


async def test_a_parameter_is_read_when_it_changes_and_not_at_each_look(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(vhost: str, name: str, value: Any) -> Bridge:
        read.append(name)
        return bridge(vhost, name, value)

    monkeypatch.setattr(bridging, "bridge", counted)
    looks = Looks(monkeypatch)
    shell = await start()
    await put(shell, GOOD)
    await put(shell, {**GOOD, "src-uri": ["amqp://h"] * (URIS_MAX + 1)}, "many")
    await until(lambda: state_of(shell) == "running")
    await looks.more(10)
    assert read == ["one", "many"]
    assert state_of(shell, "many") == "refused"
    assert len(alerts(shell)) == 1
    assert "33 URIs: 32 are read at most" in alerts(shell)[0]


async def test_what_was_refused_is_forgotten_when_its_parameter_is_mended_or_deleted(start: Start) -> None:
    shell = await start()
    await put(shell, 5)
    assert alerts(shell)
    await put(shell, GOOD)
    assert not alerts(shell)
    await until(lambda: state_of(shell) == "running")
    await put(shell, 5)
    assert state_of(shell) == "refused"
    await shell.propose(c.DeleteParameter(vhost="/", component="shovel", name="one"))
    assert not alerts(shell)
    assert state_of(shell) == "none"


async def test_a_bridge_that_is_over_is_gone_with_its_parameter_and_its_queue(start: Start) -> None:
    shell = await start()
    await put(shell, {**GOOD, "src-delete-after": "queue-length"})
    there = shell.storage.wiring
    await until(lambda: there.map.queue("/", "clusterbroker.bridge.one") is not None)
    await until(lambda: there.map.parameter("/", "shovel", "one") is None)
    await until(lambda: there.map.queue("/", "clusterbroker.bridge.one") is None)
    assert state_of(shell) == "none"
    await put(shell, GOOD)
    await until(lambda: state_of(shell) == "running")


async def test_the_queue_of_a_deleted_bridge_goes_also_where_it_never_ran(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridging.Bridges, "_begin", lambda *_: None)
    shell = await start()
    await put(shell, GOOD)
    there = shell.storage.wiring
    await until(lambda: there.map.queue("/", "clusterbroker.bridge.one") is not None)
    await shell.propose(c.DeleteParameter(vhost="/", component="shovel", name="one"))
    await until(lambda: there.map.queue("/", "clusterbroker.bridge.one") is None)


async def test_a_queue_that_is_refused_is_tried_later_and_later(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    shell = await start()
    applied = await shell.propose(c.SetVhostLimits(vhost="/", queues_max=0))
    assert applied.ok, applied.error
    asked: list[Any] = []
    propose = bridging.Bridges._propose

    def counted(bridges: bridging.Bridges, key: tuple[str, str], command: Any) -> None:
        asked.append(command)
        propose(bridges, key, command)

    monkeypatch.setattr(bridging.Bridges, "_propose", counted)
    await put(shell, GOOD)
    await looks.more(50)
    tries = sum(isinstance(command, c.DeclareQueue) for command in asked)
    assert 1 <= tries <= 8, "the time between two tries doubles"
    assert shell.bridges is not None
    (row,) = shell.bridges.rows()
    assert row["state"] == "waiting"
    assert "its queue cannot be declared" in row["why"]
    await shell.propose(c.SetVhostLimits(vhost="/", queues_max=None))
    await put(shell, {**GOOD, "src-prefetch-count": 5})
    await until(lambda: state_of(shell) == "running")


async def test_a_bridge_that_ends_by_an_error_is_shown_so_and_begins_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    run = Standing.run

    async def broken(standing: Standing) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise TypeError("secret")
        await run(standing)

    monkeypatch.setattr(Standing, "run", broken)
    monkeypatch.setattr(bridging, "AGAIN_S_MAX", 0.05)
    shell = await start()
    await put(shell, GOOD)
    await until(lambda: state_of(shell) == "waiting")
    await until(lambda: state_of(shell) == "running")
    assert runs == 2
