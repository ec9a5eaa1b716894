"""What nodes write into their logs about ownership, read back.

A node logs one line for each change, before it acts as the new role says. When many queues change at once, those after
the first 50 of an event within a second are lines of level debug, and come later
(`broker/server/member/log_batch.py`): a trial of more queues reads logs of level debug.

    owner.began      queue vhost queue_id epoch node incarnation      it may hand out and confirm from now on
    owner.ended      queue vhost queue_id epoch node incarnation      it does so no more
    replica.in_sync  queue vhost queue_id epoch node                  the owner's word that a replica of `node` counts

Lines come in both formats of the log: JSON (`log.format = "json"`), or a console's `event   key=value key='value'`.
Anything else in a log is passed over: also half a line, which a kill may leave behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

OWNER_BEGAN: Final = "owner.began"
OWNER_ENDED: Final = "owner.ended"
REPLICA_IN_SYNC: Final = "replica.in_sync"
EVENTS: Final = (OWNER_BEGAN, OWNER_ENDED, REPLICA_IN_SYNC)

_CONSOLE: Final = re.compile(r"^(\S+)\s+\[\s*(?:info|warning|debug|error|critical)\s*\]\s+(\S+)\s*(.*)$")
_FACT: Final = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Line:
    """One event. `at_s` is the node's time of day: good for gaps, never for a verdict."""

    at_s: float
    event: str
    facts: dict[str, Any]

    def number(self, fact: str) -> int:
        """A fact that is a whole number; -1 where it is missing."""
        try:
            return int(self.facts[fact])
        except (KeyError, ValueError, TypeError):
            return -1


def read(lines: Iterable[str]) -> Iterator[Line]:
    """The events of a log."""
    for text in lines:
        if not any(event in text for event in EVENTS):
            continue
        line = _from_json(text) if text.lstrip().startswith("{") else _from_console(_COLOUR.sub("", text))
        if line is not None and line.event in EVENTS:
            yield line


def read_log(path: Path) -> list[Line]:
    """The events of a log file; none when there is no such file."""
    try:
        return list(read(path.read_text(errors="replace").splitlines()))
    except FileNotFoundError:
        return []


def _from_json(text: str) -> Line | None:
    try:
        facts = json.loads(text)
        return Line(_seconds(facts.pop("timestamp")), facts.pop("event"), facts)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _from_console(text: str) -> Line | None:
    found = _CONSOLE.match(text)
    if found is None:
        return None
    facts = {name: value[1:-1] if value[0] in "'\"" else value for name, value in _FACT.findall(found[3])}
    try:
        return Line(_seconds(found[1]), found[2], facts)
    except ValueError:
        return None


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
