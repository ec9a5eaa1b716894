"""What a supervisor is told: datagrams as sd_notify(3) has them, and none where nobody listens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.server.supervisor import Supervisor


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def test_lines_are_one_datagram(systemd: socket.socket) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": systemd.getsockname()})
    assert supervisor.notify("READY=1", "STATUS=clients are accepted")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=clients are accepted"


def test_sockets_without_a_file() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the kernel chooses an abstract name
        listening.settimeout(60)
        name = listening.getsockname()
        assert Supervisor({"NOTIFY_SOCKET": "@" + name[1:].decode()}).notify("STOPPING=1")
        assert listening.recv(4096) == b"STOPPING=1"


def test_who_is_not_there_costs_nothing(tmp_path: Path) -> None:
    assert not Supervisor({}).notify("READY=1")
    assert not Supervisor({"NOTIFY_SOCKET": str(tmp_path / "nothing")}).notify("READY=1")


async def test_a_loop_that_turns_says_so_again_and_again(systemd: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    for meant in ({}, {"WATCHDOG_PID": str(os.getpid())}):
        asked = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "2000", **meant}
        Supervisor(asked).pulse(loop)
        for _ in range(5):
            assert await asyncio.to_thread(systemd.recv, 4096) == b"WATCHDOG=1"


@pytest.mark.parametrize("asked", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "1"}])
async def test_nobody_asked_for_a_pulse(systemd: socket.socket, asked: dict[str, str]) -> None:
    Supervisor({"NOTIFY_SOCKET": systemd.getsockname(), **asked}).pulse(asyncio.get_running_loop())
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)
