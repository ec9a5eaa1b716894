"""Passwords on their way to be hashes: requests take turns, and nobody who has gone is worked for."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading

import pytest

from clusterbroker.broker.http.app import create_app
from clusterbroker.broker.http.hashing import AT_ONCE_MAX, Hashing
from clusterbroker.broker.http.tcp_server import TcpServer
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.writes import Planned
from clusterbroker.cluster import passwords
from clusterbroker.cluster.wiring.commands import PutUser
from tests.unit.broker.http.clients import OperationsAtOnce
from tests.unit.broker.management.set_up import NOW_MS, recorded_place
from tests.unit.broker.server.server_support import until


def planned(count: int) -> Planned:
    commands = [PutUser(name=str(number), password_hash="", hash_algorithm=passwords.SCRYPT) for number in range(count)]
    return Planned(list(commands), passwords=[(number, f"secret-{number}") for number in range(count)], whole=True)


async def here() -> bool:
    return False


async def test_each_command_gets_its_hash() -> None:
    plan = planned(3)
    await Hashing(passwords.COST_CHEAP).complete(plan, here)
    for number, command in enumerate(plan.commands):
        assert isinstance(command, PutUser)
        assert passwords.verified(f"secret-{number}", command.password_hash, command.hash_algorithm)


async def test_who_has_gone_is_not_worked_for() -> None:
    asked = 0

    async def gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    plan = planned(100)
    with pytest.raises(Refused, match="who asked has gone"):
        await Hashing(passwords.COST_CHEAP).complete(plan, gone)
    assert sum(isinstance(command, PutUser) and command.password_hash != "" for command in plan.commands) == 5


async def test_a_long_import_keeps_nobody_waiting_and_few_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    working, most, lock, met = 0, 0, threading.Lock(), threading.Event()
    hashed = passwords.hashed

    def counted(password: str, *, cost: int) -> str:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        if most == AT_ONCE_MAX:
            met.set()
        met.wait(20)  # as many as may work at once do so, however quick each is
        try:
            return hashed(password, cost=cost)
        finally:
            with lock:
                working -= 1

    monkeypatch.setattr(passwords, "hashed", counted)
    hashing = Hashing(passwords.COST_CHEAP)
    long = [asyncio.ensure_future(hashing.complete(planned(60), here)) for _ in range(5)]
    await asyncio.sleep(0)
    await hashing.complete(planned(1), here)
    assert not any(each.done() for each in long)
    await asyncio.gather(*long)
    assert most == AT_ONCE_MAX


async def test_an_import_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    place, count, hashed = recorded_place(), 0, passwords.hashed

    def counted(password: str, *, cost: int) -> str:
        nonlocal count
        count += 1
        return hashed(password, cost=cost)

    monkeypatch.setattr(passwords, "hashed", counted)
    operations = OperationsAtOnce(place, True)
    app = create_app(place.replica, operations, now_ms=lambda: NOW_MS, password_cost=passwords.COST_DEFAULT)
    listening = socket.create_server(("127.0.0.1", 0))
    server = TcpServer(app, (), None, ())
    running = asyncio.create_task(server._serve([listening]))
    await until(lambda: server.started)
    users = [{"name": f"u{number}", "password": "x", "tags": ""} for number in range(400)]
    body = json.dumps({"users": users}).encode()
    head = f"POST /api/definitions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    signed = base64.b64encode(b"guest:guest").decode()
    head += f"content-type: application/json\r\nauthorization: Basic {signed}\r\n\r\n"
    _, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(head.encode() + body)
    await until(lambda: count > 2)
    writer.close()
    await until(lambda: not server.server_state.tasks)
    assert count < 100
    assert not operations.ordered
    server.should_exit = True
    await running
