"""The command line: what it prints, its exit codes, and administration with and without a running node."""

from __future__ import annotations

import gc
import json
import signal
import socket
import time
import weakref
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.broker.cli import start
from clusterbroker.broker.cli.start import _forget_former_life, _quiet_collector
from clusterbroker.broker.server.control.client import ask


def test_start_prints_a_line_per_listener_and_ready_last(node: Any) -> None:
    assert node.said == [f"amqp 127.0.0.1:{node.port}", "ready"]
    with socket.create_connection(("127.0.0.1", node.port)):
        pass


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_clients_with_320_and_exits_0(node: Any, number: signal.Signals) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    node.process.send_signal(number)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(1)
    assert closed.value.reply_code == 320
    assert node.stop() == 0
    with socket.socket() as refused:
        assert refused.connect_ex(("127.0.0.1", node.port)) != 0
    node.start()
    again = pika.BlockingConnection(pika.URLParameters(node.url))
    assert again.channel().basic_get("q", auto_ack=True)[2] == b"kept"
    again.close()


@pytest.mark.faults
def test_kill_loses_nothing_that_was_confirmed(node: Any) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for _ in range(20):
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    node.kill()
    node.start()
    again = pika.BlockingConnection(pika.URLParameters(node.url))
    assert again.channel().queue_declare("q", passive=True).method.message_count == 20
    again.close()


@pytest.mark.faults
def test_a_second_kill_finds_what_the_first_restart_found(node: Any) -> None:
    """The tail that a restart replays belongs into its first checkpoint: afterwards the log begins behind it."""
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("other", durable=True)
    channel.confirm_delivery()
    kept = pika.BasicProperties(delivery_mode=2)
    for number in range(20):
        channel.basic_publish("", "q", b"%d" % number, kept)
    for _ in range(5):
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "q", b"20", kept)  # the group of this confirm holds the acknowledgements before it
    node.kill()
    node.start()
    # traffic elsewhere, and with it checkpoints, until one has left the first log behind
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    index = node.data_dir / "journal" / "index" / "data.mdb"
    before = index.stat().st_mtime_ns
    deadline_s = time.monotonic() + 60
    while index.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline_s, "a checkpoint is due after a second"
        channel.basic_publish("", "other", b"x", kept)
    node.kill()
    node.start()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    bodies = []
    while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
        bodies.append(int(got[2]))
    assert bodies == list(range(5, 21))
    connection.close()


@pytest.mark.processes
def test_users_are_made_with_and_without_a_running_node(node: Any) -> None:
    assert node.command("user", "add", "bob", "s3cret", "--tag", "monitoring").returncode == 0
    assert node.command("permission", "set", "bob", "/", ".*", ".*", ".*").returncode == 0
    bob = pika.URLParameters(f"amqp://bob:s3cret@127.0.0.1:{node.port}/")
    pika.BlockingConnection(bob).close()
    node.stop()
    assert node.command("user", "add", "carol", "other").returncode == 0
    assert node.command("vhost", "add", "v", "--description", "words").returncode == 0
    assert node.command("user", "permit", "carol", "v", ".*", ".*", ".*").returncode == 0
    assert node.command("user", "delete", "bob").returncode == 0
    assert "is stopped: it knows of this when it starts" in node.command("user", "add", "dave", "pw").stderr
    assert node.command("user", "delete", "dave").returncode == 0
    users = json.loads(node.command("user", "list", "--json").stdout)
    assert users == [{"name": "guest", "tags": ["administrator"]}, {"name": "carol", "tags": []}]
    node.start()
    pika.BlockingConnection(pika.URLParameters(f"amqp://carol:other@127.0.0.1:{node.port}/v")).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(bob)
    assert "s3cret" not in node.log


@pytest.mark.processes
def test_a_command_before_the_first_start_makes_nothing_and_takes_no_guest_away(node: Any, run_command: Any) -> None:
    node.stop()
    other = node.data_dir.parent / "other"
    assert run_command("user", "add", "root", "pw", "--data-dir", str(other)).returncode == 3
    assert not other.exists()
    node.data_dir = other
    node.start()
    pika.BlockingConnection(pika.URLParameters(node.url)).close()


@pytest.mark.processes
def test_policies_status_and_drills(node: Any) -> None:
    definition = json.dumps({"max-length": 2})
    assert node.command("policy", "set", "short", "^q", definition, "--apply-to", "queues").returncode == 0
    assert json.loads(node.command("policy", "list", "--json").stdout)[0]["definition"] == {"max-length": 2}
    assert node.command("alarm", "set", "disk").returncode == 0
    status = json.loads(node.command("status", "--json").stdout)
    assert status["alarms"] == ["disk"]
    assert status["listeners"] == [f"amqp 127.0.0.1:{node.port}"]
    assert node.command("alarm", "clear", "disk").returncode == 0
    assert "incarnation" in node.command("status").stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nonsense"], 2, "No such command"),
        (["start", "--nonsense"], 2, "No such option"),
        (["start", "--amqp", "5672"], 2, "clusterbroker: amqp (flag): '5672' is not HOST:PORT"),
        (["start", "--http", "1"], 2, "clusterbroker: http (flag): '1' is not HOST:PORT"),
        (["start", "--http", "192.0.2.1:1", "--data-dir", "{tmp}"], 1, "cannot listen on http 192.0.2.1:1"),
        (["start", "--peers", "a@h:1,b@h:2"], 2, "clusterbroker: peers (flag): 'node' is not among them"),
        (["start", "--config", "/nowhere.toml"], 2, "clusterbroker: --config /nowhere.toml: No such file"),
        (
            ["start", "--amqp", "192.0.2.1:1", "--data-dir", "{tmp}"],
            1,
            ": cannot listen on amqp 192.0.2.1:1: Cannot",
        ),
        (["start", "--data-dir", "/proc/nowhere"], 1, "clusterbroker: [Errno"),
        (["status", "--data-dir", "{tmp}"], 3, "clusterbroker: no node runs in"),
        (["user", "delete", "bob", "--data-dir", "{tmp}"], 3, "and it is no node's directory"),
        (["policy", "set", "a", "b", "{", "--data-dir", "{tmp}"], 2, "DEFINITION is not JSON"),
    ],
)
def test_exit_codes(words: list[str], code: int, text: str, tmp_path: Path, run_command: Any) -> None:
    ran = run_command(*(word.replace("{tmp}", str(tmp_path)) for word in words), environment={"COLUMNS": "200"})
    assert ran.returncode == code, ran.stderr
    assert text in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.processes
def test_a_directory_in_use(node: Any, run_command: Any) -> None:
    ran = run_command("start", "--amqp", "127.0.0.1:0", "--data-dir", str(node.data_dir))
    assert ran.returncode == 1
    assert "is in use by another process" in ran.stderr
    assert ask(node.data_dir, "status") is not None, "the refused start took nothing away from the running one"


@pytest.mark.processes
def test_a_damaged_journal_stops_the_start_and_is_not_touched(node: Any, run_command: Any) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"precious", pika.BasicProperties(delivery_mode=2))
    node.kill()
    segment = node.data_dir / "journal" / "segments" / "00000001.seg"
    spoilt = bytearray(segment.read_bytes())
    spoilt[spoilt.rindex(b"CBJ1", 0, spoilt.index(b"precious")) + 16] ^= 1  # a group's number: no queue's affair
    segment.write_bytes(spoilt)
    ran = run_command("start", "--amqp", "127.0.0.1:0", "--data-dir", str(node.data_dir))
    assert ran.returncode == 70, ran.stderr
    assert "00000001.seg" in ran.stderr
    assert "clusterbroker journal check" in ran.stderr
    assert segment.read_bytes() == spoilt


def test_settings_lists_all(run_command: Any) -> None:
    from clusterbroker.broker.config import settings

    said = run_command("settings").stdout
    for name in settings():
        assert f"{name} = " in said


def test_the_start_imports_neither_pydantic_nor_rich_nor_structlog() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from clusterbroker.broker.cli import main, start; assert start.quick_options({}) is not None;"
        "print([m for m in ('pydantic', 'pydantic_settings', 'rich', 'structlog', 'pyarrow') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_request_to_a_running_node_imports_no_node(node: Any) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from clusterbroker.broker.cli import administration, queues;"
        "from clusterbroker.broker.cli.operator_door import performed; performed(Path(sys.argv[1]), 'status');"
        "rooms = ('broker.node', 'broker.queues', 'broker.fronts', 'broker.access', 'cluster', "
        "'journal');"
        "values = ('clusterbroker.journal', 'clusterbroker.journal.values');"
        "print([m for m in sys.modules if m.startswith(tuple(f'clusterbroker.{room}' for room in rooms))"
        " and m not in values])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(node.data_dir)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_a_node_leaves_behind_when_it_begins_again_is_collected() -> None:
    class Former:
        def __init__(self) -> None:
            self.itself = self

    threshold = gc.get_threshold()
    try:
        former = Former()
        gone = weakref.ref(former)
        _quiet_collector()
        del former
        _forget_former_life()
        assert gone() is None
    finally:
        gc.unfreeze()
        gc.freeze()  # as all tests begin (tests/conftest.py)
        gc.set_threshold(*threshold)


@pytest.mark.long
def test_lives_that_end_before_they_are_ready_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector hardly looks by itself any more, so each end must."""
    gone: list[weakref.ref[object]] = []

    class Life:
        def __init__(self) -> None:
            self.itself = self

    async def serve(*_: object) -> int:
        assert [former() for former in gone] == [None] * len(gone)
        life = Life()
        gone.append(weakref.ref(life))
        if len(gone) == 1:
            _quiet_collector()  # this one was ready
        return start.BEGIN_AGAIN if len(gone) < 4 else 0

    monkeypatch.setattr(start, "_serve", serve)
    threshold = gc.get_threshold()
    try:
        assert start.run({}, None) == 0
        assert len(gone) == 4
    finally:
        gc.unfreeze()
        gc.freeze()  # as all tests begin (tests/conftest.py)
        gc.set_threshold(*threshold)
