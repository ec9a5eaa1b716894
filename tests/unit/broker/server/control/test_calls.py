"""Operations of a running node, called as a command calls them."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from server_support import Lines, until

from clusterbroker.broker.server.control.calls import NODE
from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.server.control.protocol import NAME
from clusterbroker.broker.server.endings import Restart
from clusterbroker.broker.wire.amqp091 import methods


async def asked(directory: Path, operation: str, **arguments: Any) -> dict[str, Any]:
    answer = await asyncio.to_thread(ask, directory, operation, arguments)
    assert answer is not None, "the node runs"
    return answer


async def test_users_come_and_go_while_the_node_runs(start: Any, connect: Any, tmp_path: Path, lines: Lines) -> None:
    shell = await start(data_dir=tmp_path)
    assert (await asked(tmp_path, "user.add", name="bob", password="s3cret", tags=["monitoring"]))["ok"]
    assert (await asked(tmp_path, "vhost.add", name="v"))["ok"]
    permission = {"user": "bob", "vhost": "v", "configure": "^a", "write": ".*", "read": ".*"}
    assert (await asked(tmp_path, "permission.set", **permission))["ok"]
    peer = await (await connect(shell)).open("bob", "s3cret", "v")
    peer.send(1, methods.QueueDeclare(queue="a"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.QueueDeclare(queue="b"))
    refused = await peer.receive()
    assert isinstance(refused, methods.ChannelClose)
    assert refused.reply_code == 403
    listed = await asked(tmp_path, "user.list")
    assert {user["name"] for user in listed["users"]} == {"guest", "bob"}
    assert "s3cret" not in repr(listed) + repr(lines.lines)
    assert "scrypt" not in repr(listed)
    assert (await asked(tmp_path, "user.delete", name="bob"))["ok"]


async def test_a_user_that_is_there_is_not_made_again_by_mistake(start: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    assert (await asked(tmp_path, "user.add", name="bob", password="first", tags=["monitoring"]))["ok"]
    made = shell.node.map.user("bob")
    refused = await asked(tmp_path, "user.add", name="bob", password="second")
    assert "there is a user 'bob' already" in refused["error"]
    assert shell.node.map.user("bob") == made
    assert (await asked(tmp_path, "user.password", name="bob", password="second"))["ok"]
    changed = shell.node.map.user("bob")
    assert (changed.tags, changed.password_hash == made.password_hash) == (("monitoring",), False)
    assert (await asked(tmp_path, "user.add", name="bob", password="third", tags=[], replace=True))["ok"]
    assert shell.node.map.user("bob").tags == ()
    assert "there is no user 'eve'" in (await asked(tmp_path, "user.password", name="eve", password="x"))["error"]


async def test_a_node_that_is_alone_tells_its_queues(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.publish("q", b"one")
    await until(lambda: shell.node.vhosts["/"].queues["q"].ready == 1)
    (row,) = (await asked(tmp_path, "queues"))["queues"]
    assert (row["vhost"], row["name"], row["messages"], row["consumers"]) == ("/", "q", 1, 0)
    assert row["owner"] is not None
    assert row["waits_for"] == []


async def test_a_drill_blocks_publishers(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    peer = await (await connect(shell)).open()
    peer.publish("nowhere", b"x")
    await until(lambda: any(one.backpressure.publishes for one in shell.node.clients.values()))
    assert (await asked(tmp_path, "alarm.set", name="memory", raised=True))["alarms"] == ["memory"]
    assert isinstance(await peer.receive(), methods.ConnectionBlocked)
    assert (await asked(tmp_path, "status"))["alarms"] == ["memory"]
    await asked(tmp_path, "alarm.set", name="memory", raised=False)
    assert isinstance(await peer.receive(), methods.ConnectionUnblocked)


@pytest.mark.parametrize(
    ("operation", "arguments", "why"),
    [
        ("", {}, "'' is not one of"),
        ("user.add", {"name": "x"}, "'password' is missing"),
        ("user.add", {"name": "x", "password": ""}, "'password' is missing"),
        ("user.add", {"name": "x", "password": "\udcff"}, "this cannot be sent"),
        ("user.delete", {"name": "x"}, "there is no user 'x'"),
        ("permission.set", {"user": "x", "vhost": "/"}, "x"),
        ("alarm.set", {"name": "fire", "raised": True}, "an alarm is one of"),
        ("policy.set", {"name": "p", "pattern": "(", "definition": {"max-length": 1}}, "pattern"),
        ("vhost.limit", {"vhost": "/", "limit": "max-fun", "value": 1}, "'limit' is one of"),
    ],
)
async def test_what_is_wrong_is_said(
    start: Any, tmp_path: Path, operation: str, arguments: dict[str, Any], why: str
) -> None:
    await start(data_dir=tmp_path)
    answer = await asyncio.to_thread(ask, tmp_path, operation, arguments)
    assert answer is not None
    assert (answer["ok"], why in answer["error"]) == (False, True), answer


@pytest.mark.parametrize("given", [2**63 - 1, 2**63, 2**64, 10**30])
async def test_a_life_that_no_clock_can_hold_is_never(start: Any, connect: Any, tmp_path: Path, given: int) -> None:
    """Of 2**64 it was said that it cannot be serialized."""
    shell = await start(data_dir=tmp_path)
    definition = {"message-ttl": given, "expires": given}
    assert (await asked(tmp_path, "policy.set", name="p", pattern="^q", definition=definition))["ok"]
    assert (await asked(tmp_path, "operator-policy.set", name="o", pattern="^q", definition=definition))["ok"]
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.publish("q", b"one")
    await until(lambda: shell.node.vhosts["/"].queues["q"].ready == 1)
    shell.node.now_ms += 10**15
    shell.schedule()
    await asked(tmp_path, "status")
    assert shell.node.vhosts["/"].queues["q"].ready == 1


async def test_who_asks_a_node_that_begins_again_is_told_so(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(_shell: Any, _asked: Any) -> Any:
        raise Restart("it has no contact with a majority")

    await start(data_dir=tmp_path)
    monkeypatch.setitem(NODE, "status", ends)
    said = (await asked(tmp_path, "status"))["error"]
    assert said == "the node begins again meanwhile (it has no contact with a majority): see its status, and ask again"


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_the_end_of_the_node_cuts_off_is_answered(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """A member without a majority begins again while an order waits: "the node went away" was all that was said."""
    began = asyncio.Event()

    async def never(_shell: Any, _asked: Any) -> Any:
        began.set()
        await asyncio.Event().wait()

    shell = await start(data_dir=tmp_path)
    monkeypatch.setitem(NODE, "status", never)
    asking = asyncio.create_task(asked(tmp_path, "status"))
    await began.wait()
    if restarts:
        shell.fail(Restart("it has no contact with a majority"))
    await shell.stop()
    why = (
        "begins again meanwhile (it has no contact with a majority): see" if restarts else "stopped meanwhile: look at"
    )
    assert f"the node {why}" in (await asking)["error"]


async def test_limits_of_vhosts(start: Any, connect: Any, tmp_path: Path) -> None:
    shell = await start(data_dir=tmp_path)
    assert (await asked(tmp_path, "vhost.limit", vhost="/", limit="max-queues", value=1))["ok"]
    assert (await asked(tmp_path, "vhost.limit", vhost="/", limit="max-connections", value=5))["ok"]
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="a"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.QueueDeclare(queue="b"))
    assert isinstance(await peer.receive(), methods.ChannelClose)
    assert (await asked(tmp_path, "vhost.limit", vhost="/", limit="max-queues", value=-1))["ok"]
    assert shell.node.map.vhost_limits("/").connections_max == 5


async def test_nobody_else_may_ask(start: Any, tmp_path: Path) -> None:
    await start(data_dir=tmp_path)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


async def test_a_long_path_and_a_dead_socket(start: Any, tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    dead = socket.socket(socket.AF_UNIX)
    (tmp_path / "short").mkdir()
    dead.bind(str(tmp_path / "short" / NAME))
    dead.close()
    (tmp_path / "short" / NAME).rename(directory / NAME)
    assert await asyncio.to_thread(ask, directory, "status") is None
    shell = await start(data_dir=directory)
    assert (await asked(directory, "status"))["ok"]
    await shell.stop()
    assert not (directory / NAME).exists()
    assert await asyncio.to_thread(ask, directory, "status") is None
