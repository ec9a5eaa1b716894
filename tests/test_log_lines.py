"""Every event that a node logs stands in docs/observability.md, and nothing stands there that no node logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "observability.md"
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
LEVELS = {"debug", "info", "warning", "error", "critical"}
CLUSTER = "broker/server/member/cluster_shell.py"
"""`log_line` puts `cluster.` before the word."""

MADE = {"journal.ok", "journal.full", "bridge.running", "bridge.blocked", "bridge.ended", "bridge.refused"}
"""Put together where they are logged: `NodeShell._journal_state`, `Bridges._told`."""


def test_log_lines_are_documented() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Log lines")[2].partition("\n## ")[0]
    told = {match for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for match in EVENT.findall(row)}
    logged = {event for path in sorted((ROOT / "broker").rglob("*.py")) for event in events(path)} | MADE
    assert logged - told == set(), "events that docs/observability.md does not explain"
    assert told - logged == set(), "events that nobody logs"


LOGGING = frozenset({
    "emit", "always", "_caused", "_queue_line", "_write", "_say", "_emit", "_log_held", "_told", "tell", "_tell",
    "Libraries", "log_event", "_log_event",
})  # fmt: skip
"""Functions that take an event's name."""


def events(path: Path) -> Iterator[str]:
    """The events that a file names where it says them."""
    place = path.relative_to(ROOT).as_posix()
    if place.startswith(("broker/trial", "broker/cli/demo")):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            words = [word for argument in node.args[:2] for word in texts(argument)]
            if name in LOGGING:
                yield from (word for word in words if EVENT.fullmatch(word))
            if name == "log_line" and node.args and ("cluster" in ast.dump(node.func) or place == CLUSTER):
                yield from (f"cluster.{word}" for word in texts(node.args[0]) if word not in LEVELS)
    if place == "broker/node/member.py":
        yield from (word for value in ast.walk(tree) if isinstance(value, ast.Dict) for each in value.values
                    for word in texts(each) if EVENT.fullmatch(word))  # fmt: skip


def texts(argument: ast.expr) -> Iterator[str]:
    """The texts that an argument may be."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from texts(argument.body)
        yield from texts(argument.orelse)
