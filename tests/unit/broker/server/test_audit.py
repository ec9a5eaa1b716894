"""The audit's lines: whole, in order, bounded, from several processes, and without anything secret."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest
from server_support import Lines

from clusterbroker.broker.server.audit import Audit, AuditOptions, append
from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.server.log import BURST, NodeLog


def told(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_go_to_the_log_at_whatever_level(lines: Lines) -> None:
    audit = Audit("a", AuditOptions(), NodeLog(lines, "critical"))
    audit.done(user="u", what="x")
    audit.refused(user="u", what="y", why="no")
    assert lines.lines == [
        ("info", "audit", {"user": "u", "what": "x", "outcome": "done"}),
        ("info", "audit", {"user": "u", "what": "y", "why": "no", "outcome": "refused"}),
    ]


def test_with_a_file_they_go_there_and_nowhere_else(tmp_path: Path, lines: Lines) -> None:
    file = tmp_path / "audit.log"
    audit = Audit("a", AuditOptions(file), NodeLog(lines))
    for number in range(100):
        audit.done(user="u\n", what="x", on={"n": number, "text": "\u2028" * 1000})
    audit.close()
    found = told(file)
    assert [one["on"]["n"] for one in found] == list(range(100))
    assert found[0] | {"at": "", "on": {}} == {
        "at": "", "node": "a", "user": "u\n", "what": "x", "on": {}, "outcome": "done",
    }  # fmt: skip
    assert len(found[0]["on"]["text"]) == 300
    assert found[0]["at"].endswith("Z")
    assert stat.S_IMODE(file.stat().st_mode) & 0o007 == 0
    assert lines.lines == []


def test_a_full_file_makes_room_and_the_oldest_goes(tmp_path: Path) -> None:
    options = AuditOptions(tmp_path / "audit.log", file_bytes_max=1000, files_max=3)
    for number in range(100):
        append(options, b"%099d\n" % number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.lock"]
    kept = "".join((tmp_path / name).read_text() for name in ("audit.log.2", "audit.log.1", "audit.log"))
    assert [int(line) for line in kept.splitlines()] == list(range(70, 100))
    alone = AuditOptions(tmp_path / "one.log", file_bytes_max=150, files_max=1)
    for number in range(3):
        append(alone, b"%099d\n" % number)
    assert (tmp_path / "one.log").read_text() == f"{2:099d}\n"


def _writes(file: Path, name: str) -> None:
    options = AuditOptions(file, file_bytes_max=4096, files_max=1000)
    for number in range(300):
        append(options, json.dumps({"who": name, "n": number}).encode() + b"\n")


@pytest.mark.processes
def test_processes_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_writes, args=(file, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    files = [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]
    found = [one for path in files for one in told(path)]
    assert sorted((one["who"], one["n"]) for one in found) == [(name, n) for name in "abc" for n in range(300)]
    full = [path.stat().st_size for path in files if path != file]
    assert full
    assert min(full) > 4096 - 40, "nobody makes room twice for the same reason"


def test_what_is_refused_again_and_again_is_held_back_and_counted(lines: Lines) -> None:
    now_s = 0.0
    audit = Audit("a", AuditOptions(), NodeLog(lines), lambda: now_s)
    for _ in range(BURST + 100):
        audit.refused(user="", what="x")
    assert len(lines.lines) == BURST
    audit.refused(user="somebody", what="y")
    audit.done(user="", what="z")
    assert [facts["what"] for _, _, facts in lines.lines[BURST:]] == ["y", "z"], "nobody else is held back by it"
    now_s = 1.0
    audit.refused(user="", what="x")
    assert lines.lines[-1][2]["held_back"] == 100


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, lines: Lines) -> None:
    audit = Audit("a", AuditOptions(tmp_path / "none" / "audit.log"), NodeLog(lines))
    for _ in range(5):
        audit.done(user="u", what="x")
    audit.close()
    assert lines.events() == ["audit.failed"]


def test_no_line_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        append(AuditOptions(tmp_path / "audit.log"), b"x\n")
    assert not (tmp_path / "elsewhere").exists()


async def test_calls_of_commands(start: Any, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import os

    file = tmp_path / "audit.log"
    shell = await start(data_dir=tmp_path / "data", audit=AuditOptions(file))

    async def asked(operation: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(ask, tmp_path / "data", operation, arguments)

    monkeypatch.delenv("SUDO_USER", raising=False)
    await asked("status")
    await asked("user.list")
    await asked("user.add", name="bob", password="very-secret", tags=["administrator"])
    await asked("user.add", name="bob", password="very-secret")
    await asked("vhost.delete", name="none")
    await asked("nonsense", password="very-secret")
    monkeypatch.setenv("SUDO_USER", "carol\x1b")
    await asked("vhost.add", name="v")
    await shell.stop()
    found = told(file)
    assert [(one["what"], one["outcome"]) for one in found] == [
        ("user.add", "done"), ("user.add", "refused"), ("vhost.delete", "refused"), ("nonsense", "refused"),
        ("vhost.add", "done"),
    ]  # fmt: skip
    assert found[0]["on"] == {"name": "bob", "tags": ["administrator"]}
    # root's own word says for whom it was (operator b13)
    assert found.pop()["user"] == ("uid 0 (sudo of carol\\x1b)" if os.getuid() == 0 else f"uid {os.getuid()}")
    assert all(one["user"] == f"uid {os.getuid()}" and one["via"] == "control.sock" for one in found)
    assert "very-secret" not in file.read_text()
    assert not any("very-secret" in str(line) for line in lines.lines)
