"""Log lines: structured, bounded, at the level that was asked for."""

from __future__ import annotations

import json
import logging

import pytest
from server_support import Lines

from clusterbroker.broker.amqp.errors import connection_forced, internal_error, not_found
from clusterbroker.broker.server.log import BURST, NodeLog, library, structured


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
    log.say("info", "quiet")
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
    log.say("info", "cluster.lease", text="lost")
    log.say("info", "replica.in_sync", node="b")
    NodeLog(structured("console", "a")).say("info", "cluster.lease", text="lost")
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
        NodeLog(library()).say("info", "node.ready", name="n")
    assert caplog.messages == ["node.ready name='n'"]
