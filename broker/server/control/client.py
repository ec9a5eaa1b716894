"""Calls of a command to the node that runs in a data directory, over `control.sock` (blocks).

Commands import this and nothing else of a node: what a node is made of takes longer to import than an answer takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.private_socket import connected

READ_BYTES: Final = 1 << 18


def ask(
    directory: Path, operation: str, arguments: Mapping[str, Any] | None = None, timeout_s: float = 10.0
) -> dict[str, Any] | None:
    """One operation of the node that runs in the directory: `ok` with its facts, or `error`; None: no node runs there.

    Raises OSError, TimeoutError after `timeout_s` of silence; ValueError for what is no answer.
    """
    try:
        call = m.encode(m.Call(1, operation, _sendable(dict(arguments or {})), os.environ.get("SUDO_USER", "")))
    except ValueError as error:
        return {"ok": False, "error": f"this cannot be sent: {error}"}
    try:
        line = connected(directory, m.NAME, timeout_s)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return None
    frames = m.Frames(m.AnyTold)
    with line:
        line.sendall(m.encode(m.Hello(m.VERSION)) + call)
        while data := line.recv(READ_BYTES):
            for message in frames.feed(data):
                match message:
                    case m.Hello(version=version) if version != m.VERSION:
                        why = f"the node speaks version {version} of {m.NAME}, this command version {m.VERSION}"
                        return {"ok": False, "error": why}
                    case m.Done(error=""):
                        return {"ok": True, **message.answer}
                    case m.Done():
                        return {"ok": False, "error": message.error}
    return {"ok": False, "error": "the node ended before it answered: look at its log"}


def _sendable(value: Any) -> Any:
    """The same with integers of 64 bits: greater ones (a time that means "never") become the greatest."""
    match value:
        case int():
            return value if isinstance(value, bool) else max(-(2**63), min(value, 2**64 - 1))
        case dict():
            return {name: _sendable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_sendable(inner) for inner in value]
        case _:
            return value
