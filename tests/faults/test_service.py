"""A node as a service: what its manager is told, what its health says, and how it ends while it waits for others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet, until
from tests.faults.node import NodeProcess, command


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


def told(systemd: socket.socket, wanted: str) -> list[str]:
    """All that was told until somebody says it."""
    lines: list[str] = []
    while wanted not in lines:
        lines += systemd.recv(4096).decode().splitlines()
    return lines


def test_its_manager_hears_when_it_is_ready_when_it_stops_and_that_it_lives(
    make_node: Callable[..., NodeProcess], systemd: socket.socket
) -> None:
    node = make_node()
    node.environment = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "200000"}
    node.start()
    assert "READY=1" in told(systemd, "STATUS=n1: clients are accepted")
    told(systemd, "WATCHDOG=1")
    told(systemd, "WATCHDOG=1")
    assert node.stop() == 0
    assert "READY=1" not in told(systemd, "STOPPING=1")


def test_health_of_a_node(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    node = make_node()
    data = str(node.data_dir)
    assert command("health", "--data-dir", data) == (1, f"clusterbroker: no node runs in {data}\n")
    node.start()
    assert command("health", "--data-dir", data) == (0, "serves clients\n")
    assert command("health", "--alive", "--data-dir", data) == (0, "alive\n")
    assert command("health", "--in-sync", "--data-dir", data) == (0, "serves clients\n")
    assert command("alarm", "set", "disk", "--data-dir", data)[0] == 0
    assert command("health", "--data-dir", data) == (
        1,
        "clusterbroker: publishers wait here: the disk alarm is raised\n",
    )
    assert command("alarm", "clear", "disk", "--data-dir", data)[0] == 0
    node.kill()
    assert command("health", "--data-dir", data) == (1, f"clusterbroker: no node runs in {data}\n")


async def test_a_member_that_waits_for_others_is_alive_and_ends_when_it_is_told(fleet: Fleet) -> None:
    fleet.launch("a", "--peers", fleet.peers("a", "b", "c"))
    await until(lambda: answers(fleet, "a"), "a answers")
    code, _, said = await fleet.command("a", "health")
    assert code == 1
    assert said.startswith("clusterbroker: the node starts: it waits ")
    assert (await fleet.command("a", "health", "--alive"))[:2] == (0, "alive")
    assert await asyncio.wait_for(fleet.stop("a"), 5) == 0
    assert "Traceback" not in fleet.node("a").log.read_text()
    fleet.found("a", "b", "c")
    await fleet.ready("a", "b", "c")
    assert (await fleet.command("a", "health"))[:2] == (0, "serves clients")

    # whether the next one may be stopped (operator b1)
    await fleet.publish("a", "q", [b"x"])
    assert (await fleet.command("a", "health", "--in-sync", "--wait", "30"))[:2] == (0, "serves clients")
    assert (await fleet.command("a", "health", "--spare", "--wait", "30"))[:2] == (0, "may be stopped")
    await fleet.kill("b")
    await until(lambda: says(fleet, "a", "1 queue would confirm nothing without this node", "--spare"), "b is missed")
    assert (await fleet.command("a", "health", "--in-sync"))[:2] == (0, "serves clients")
    assert (await fleet.command("a", "drain", "--undo", "--wait", "0.1"))[0] == 0, (
        "a time that is over ends the waiting"
    )
    await fleet.kill("c")
    await until(lambda: says(fleet, "a", "(lease: ", "--in-sync"), "nothing can be confirmed at a")


async def says(fleet: Fleet, name: str, what: str, *words: str) -> bool:
    code, _, said = await fleet.command(name, "health", *words)
    return code == 1 and what in said


async def answers(fleet: Fleet, name: str) -> bool:
    return (await fleet.command(name, "health", "--alive"))[0] == 0


async def test_a_drained_member_is_not_ready_and_takes_clients_again_when_it_is_started(fleet: Fleet) -> None:
    fleet.found("a", "b", "c")
    await fleet.ready("a", "b", "c")
    for setting, draining in (("false", True), ("true", False)):
        assert (await fleet.command("b", "drain"))[0] == 0
        code, _, said = await fleet.command("b", "health")
        assert (code, said) == (1, "clusterbroker: the node is drained: its clients were asked to go elsewhere")
        assert await fleet.stop("b") == 0
        variables = {"CLUSTERBROKER_DRAIN_ENDS_AT_START": setting}
        fleet.launch("b", "--peers", fleet.peers("a", "b", "c"), **variables)
        await fleet.ready("b")
        if not draining:
            await until(lambda: is_draining(fleet, "b", False), "b takes queues again")
        assert await is_draining(fleet, "b", draining)
    assert (await fleet.command("b", "health"))[:2] == (0, "serves clients")
    client = await fleet.client("b")
    assert not client.lost.is_set()


async def is_draining(fleet: Fleet, name: str, wanted: bool) -> bool:
    return bool((await fleet.members("a"))[name]["draining"]) is wanted
