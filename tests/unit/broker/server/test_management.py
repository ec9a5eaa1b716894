"""The process beside a node: started, watched, started again, ended; with a small one in place of the real one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from server_support import Lines, until
from server_support import options as node_options

from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server import companion, management
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.management import ManagementProcess, Settings, read_settings, settings
from clusterbroker.broker.server.tls import TlsOptions

ANY = (Address("127.0.0.1", 0),)
SERVES = """
import argparse, os, select, socket, sys
words = argparse.ArgumentParser()
for name, kind in (("node", str), ("directory", str), ("lifeline", int)):
    words.add_argument("--" + name, type=kind)
words.add_argument("--listen", type=int, action="append")
words.add_argument("--listen-local", type=int, action="append")
said = words.parse_args()
listening = socket.socket(fileno=said.listen[0])
lifeline = socket.socket(fileno=said.lifeline)
while True:
    ready, _, _ = select.select([listening, lifeline], [], [])
    if lifeline in ready:
        sys.exit(0)
    try:
        client, _ = listening.accept()
    except BlockingIOError:
        continue
    client.sendall(f"{os.getpid()} {said.node} {said.directory}".encode())
    client.close()
"""


def process(lines: Lines, directory: Path, script: str = SERVES) -> ManagementProcess:
    return ManagementProcess("a", directory, NodeLog(lines, "debug"), (), (sys.executable, "-c", script))


async def asked(where: Address) -> list[str]:
    reader, writer = await asyncio.open_connection(*where)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer.decode().split()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "FIRST_PAUSE_S", 0.05)


async def test_it_serves_the_sockets_of_its_node_and_ends_with_it(tmp_path: Path, lines: Lines) -> None:
    beside = process(lines, tmp_path)
    beside.bind(ANY)
    beside.begin(asyncio.get_running_loop())
    assert await asked(beside.addresses[0]) == [str(beside.pid), "a", str(tmp_path)]
    pid = beside.pid
    assert pid is not None
    await beside.end()
    await beside.end()
    assert beside.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        await asked(beside.addresses[0])
    assert lines.events() == []


async def test_the_operators_door_is_there_from_the_beginning_to_the_end(tmp_path: Path, lines: Lines) -> None:
    script = SERVES.replace("fileno=said.listen[0]", "fileno=said.listen_local[0]")
    beside = process(lines, tmp_path, script)
    beside.bind(ANY)
    door = tmp_path / management.LOCAL
    assert not door.exists(), "the directory may still be another node's"
    beside.begin(asyncio.get_running_loop())
    assert oct(door.stat().st_mode)[-3:] == "600"
    reader, writer = await asyncio.open_unix_connection(door)
    assert (await asyncio.wait_for(reader.read(), 20)).decode().split()[1] == "a"
    writer.close()
    await beside.end()
    assert not door.exists()


async def test_one_that_is_killed_is_said_and_started_again(tmp_path: Path, lines: Lines, quick: None) -> None:
    beside = process(lines, tmp_path)
    beside.bind(ANY)
    beside.begin(asyncio.get_running_loop())
    first = await asked(beside.addresses[0])
    os.kill(int(first[0]), signal.SIGKILL)
    await until(lambda: beside.restarts == 1)
    second = await asked(beside.addresses[0])  # it waits in the backlog
    assert second[0] != first[0]
    assert lines.lines[0][:2] == ("error", "management.ended")
    assert "SIGKILL" in lines.lines[0][2]["why"]
    await beside.end()


async def test_one_that_never_stays_is_started_ever_more_seldom(tmp_path: Path, lines: Lines, quick: None) -> None:
    beside = process(lines, tmp_path, "raise SystemExit(3)")
    beside.bind(ANY)
    beside.begin(asyncio.get_running_loop())
    await until(lambda: beside.restarts == 3)
    assert [facts["again_in_s"] for _, _, facts in lines.lines] == [0.05, 0.1, 0.2]
    assert "exit code 3" in lines.lines[0][2]["why"]
    await beside.end()
    assert beside.pid is None


async def test_it_outlives_the_loop_of_its_node(tmp_path: Path, lines: Lines, quick: None) -> None:
    beside = process(lines, tmp_path)
    beside.bind(ANY)
    loop = asyncio.get_running_loop()
    beside.begin(loop)
    first = await asked(beside.addresses[0])
    beside.pause()
    assert await asked(beside.addresses[0]) == first
    beside.begin(loop)
    os.kill(int(first[0]), signal.SIGKILL)
    await until(lambda: beside.restarts == 1)
    await beside.end()


async def test_it_ends_when_the_process_of_its_node_is_killed(tmp_path: Path) -> None:
    """Whatever way the node goes: the other end of the line is closed by the system."""
    node = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from clusterbroker.broker.server.listener import Address\n"
        "from clusterbroker.broker.server.log import NodeLog\n"
        "from clusterbroker.broker.server.management import ManagementProcess\n"
        "async def main():\n"
        "    log = NodeLog(lambda *_: None, 'debug')\n"
        "    beside = ManagementProcess('a', Path(sys.argv[2]), log, (), (sys.executable, '-c', sys.argv[1]))\n"
        "    beside.bind((Address('127.0.0.1', 0),))\n"
        "    beside.begin(asyncio.get_running_loop())\n"
        "    print(beside.addresses[0].port, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", node, SERVES, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert started.stdout is not None
    port = int(await started.stdout.readline())
    pid = int((await asked(Address("127.0.0.1", port)))[0])
    started.kill()
    await started.wait()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await until(gone)


def test_it_is_told_the_settings_of_its_node() -> None:
    """Who may come from this machine only is refused elsewhere over HTTP as over AMQP."""
    options = replace(node_options(), node=NodeOptions(loopback_users=("guest", "-x")), password_cost=9)
    words = settings(options, "json", "warning")
    assert words[:2] == ["--loopback-user=guest", "--loopback-user=-x"]
    assert words[2:8] == ["--password-cost", "9", "--log-format", "json", "--log-level", "warning"]
    assert words[8] == "--settings"
    assert read_settings(words[9]) == Settings()


def test_what_it_is_told_of_tls_tokens_and_audit_is_what_was_set() -> None:
    tls = TlsOptions(Path("/c.pem"), Path("/k.pem"), Path("/a.pem"), "required", minimum_version="1.3", ciphers="X")
    options = replace(
        node_options(),
        tls=tls,
        https=ANY,
        http_proxies=("10.0.0.0/8",),
        http_sample_s=0.5,
        oauth2=OAuth2Options("mq", keys_file=Path("/keys.json"), algorithms=("ES256",)),
        audit=AuditOptions(Path("/audit.log"), 4096, 2),
    )
    told = read_settings(settings(options, "json", "warning")[-1])
    assert told.tls == replace(tls, client_certificate="none", authorities=None), "clients of HTTP are not asked"
    assert (told.proxies, told.oauth2, told.audit) == (options.http_proxies, options.oauth2, options.audit)
    assert told.sample_s == 0.5
    asking = replace(options, http_client_certificate="required")
    assert read_settings(settings(asking, "json", "warning")[-1]).tls == tls
    assert read_settings(settings(replace(options, https=()), "json", "warning")[-1]).tls is None


def test_an_address_in_use_is_one_line(tmp_path: Path, lines: Lines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        beside = process(lines, tmp_path)
        with pytest.raises(OSError, match=f"cannot listen on http 127.0.0.1:{port}: Address already in use"):
            beside.bind((*ANY, Address("127.0.0.1", port)))
        assert beside.addresses == ()


def test_an_address_that_a_killed_node_s_process_still_has_is_waited_for(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(management.time, "sleep", lambda _: holder.close())  # it ends meanwhile
    beside = process(lines, tmp_path)
    where = Address(*holder.getsockname()[:2])
    beside.bind([where])
    assert beside.addresses == (where,)
    beside._shut()
