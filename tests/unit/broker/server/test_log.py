"""Log lines: structured, bounded, at the level that was asked for."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from server_support import Lines, until

from clusterbroker.broker.pools.known import Started
from clusterbroker.broker.server import log as log_module
from clusterbroker.broker.server.counting import node_row
from clusterbroker.broker.server.log import BURST, Held, NodeLog, library, structured
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.broker.wire.amqp091.errors import connection_forced, internal_error, not_found
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.unit.broker.management.set_up import Place


def test_a_flood_is_held_back_and_counted() -> None:
    now_s = 100.0
    lines = Lines()
    log = NodeLog(lines, now_s=lambda: now_s)
    for number in range(10_000):
        log.cut(f"10.0.0.1:{number}", "", "flood")
    assert len(lines.lines) == BURST
    log.refused("10.0.0.2:1", "guest", "PLAIN", "another kind of event has its own bucket")
    assert len(lines.lines) == BURST + 1
    now_s += 1.0
    log.cut("10.0.0.1:1", "", "later")
    assert lines.lines[-1][2]["held_back"] == 10_000 - BURST
    log.cut("10.0.0.1:1", "", "later")
    assert "held_back" not in lines.lines[-1][2]


def test_levels() -> None:
    lines = Lines()
    log = NodeLog(lines, "warning")
    log.emit("info", "quiet")
    log.fault("p:1", "u", 1, connection_forced("bye"))
    log.fault("p:1", "u", 1, not_found("no queue"))
    log.fault("p:1", "u", 1, internal_error("ours"))
    assert [level for level, _, _ in lines.lines] == ["warning", "error"]


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log = NodeLog(structured("json"))
    log.cut("127.0.0.1:5", "guest", "line\nbreak")
    log.crashed("127.0.0.1:5", ValueError("seeded"))
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["event"] == "client.cut"
    assert first["peer"] == "127.0.0.1:5"
    assert first["why"] == "line\nbreak"
    assert "seeded" in second["exception"]


def test_json_lines_name_their_node(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of a cluster are collected in one place (operator b8)."""
    log = NodeLog(structured("json", "a"))
    log.emit("info", "cluster.lease", text="lost")
    log.emit("info", "replica.in_sync", node="b")
    NodeLog(structured("console", "a")).emit("info", "cluster.lease", text="lost")
    *lines, console = capsys.readouterr().err.splitlines()
    lease, copy = map(json.loads, lines)
    assert (lease["node"], "logged_by" in lease) == ("a", False)
    assert (copy["node"], copy["logged_by"]) == ("b", "a")
    assert "node" not in console


def test_console_lines_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    NodeLog(structured("console")).cut("127.0.0.1:5", "evil\nuser\x1b[31m", "why")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b[31m" not in said


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b[1;1H\x1b]0;owned\x07", "a\u202eb", "\x9b31m", "two words\x1b[0m", "\udcff"]
)
def test_nothing_that_a_stranger_says_drives_the_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = NodeLog(structured("console"))
    log.refused("192.0.2.1:5", name, "PLAIN", "no such user")
    log.always("audit", on={"user": name}, names=[name], **{name: 1})
    log.crashed("192.0.2.1:5", ValueError(f"no queue {name}\n2026-11-22T10:00:00Z [info] node.ready"))
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum("client.refused" in line for line in lines) == 1
    assert not any(line.startswith("2026-11-22T10:00:00Z") for line in lines), "an exception's text begins no line"
    assert "no queue" in said


def test_into_the_logging_of_a_library(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "clusterbroker"):
        NodeLog(library()).emit("info", "node.ready", name="n")
    assert caplog.messages == ["node.ready name='n'"]


def test_what_is_short_is_not_told() -> None:
    lines = Lines()
    seen = Held(NodeLog(lines, "debug"))
    seen.frame(log_module.HELD_MS - 1, "b")
    assert (seen.count, lines.lines) == (0, [])
    seen.frame(log_module.HELD_MS, "b")
    assert seen.count == 1
    assert lines.lines == [("warning", "loop.held", {"what": "frame", "took_ms": 100, "peer": "b"})]


def test_what_happens_to_the_cluster_is_measured_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    seen = Held(NodeLog(lines, "debug"))
    clock = iter((0, 99_999_999, 1_000_000_000, 1_100_000_000))
    monkeypatch.setattr(log_module.time, "monotonic_ns", lambda: next(clock))
    with seen.event("unlinked", peer="b"):
        pass
    assert (seen.count, lines.lines) == (0, [])
    with seen.event("wiring", command="FailNode", changes=10_000):
        pass
    monkeypatch.undo()
    assert seen.count == 1
    assert lines.lines == [
        ("warning", "loop.held", {"what": "wiring", "took_ms": 100, "command": "FailNode", "changes": 10_000})
    ]


async def test_reads_and_turns_name_who_held_the_loop(
    start: Any, connect: Any, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await start()
    peer = await connect(shell)
    await peer.open()
    peer.send(1, methods.QueueDeclare(queue="slow", durable=True))
    await peer.receive()
    monkeypatch.setattr(log_module, "HELD_MS", 0)
    peer.publish("slow", b"x")
    told = lambda what: [facts for _, event, facts in lines.lines if event == "loop.held" and facts["what"] == what]  # noqa: E731
    await until(lambda: any(facts.get("queue") == "slow" for facts in told("turn")))
    monkeypatch.undo()
    (facts, *_) = [facts for facts in told("turn") if "queue" in facts]
    assert facts["vhost"] == "/"
    assert facts["queue_ms"] <= facts["took_ms"] + 1
    (facts, *_) = told("read")
    assert facts["user"] == "guest"
    assert facts["peer"].startswith("127.0.0.1:")
    assert shell.held.count >= 2
    assert node_row(shell, 0, 0.0).loop_held == shell.held.count
    shell.clock.jumps += 3
    assert node_row(shell, 0, 0.0).clock_jumps == shell.clock.jumps >= 3


def test_workers_and_places_of_pools() -> None:
    lines = Lines()
    log = NodeLog(lines)
    place = Place()
    (applied,) = place.apply(c.DeclarePool(vhost="/", name="core", template="core"))
    pool = applied.result
    log.worker_ready(pool, Started("42", "w1-0", "a", 1.5))
    log.worker_ready(pool, Started(NO_KEY, "w2-0", "a", 0.25))
    log.place_lost(pool, "b", 3)
    assert lines.lines == [
        ("info", "worker.ready",
         {"vhost": "/", "pool": "core", "worker": "w1-0", "key": "42", "place": "a", "took_ms": 1500}),
        ("info", "worker.ready", {"vhost": "/", "pool": "core", "worker": "w2-0", "place": "a", "took_ms": 250}),
        ("warning", "place.lost", {"vhost": "/", "pool": "core", "place": "b", "workers": 3}),
    ]  # fmt: skip
