"""Client of the operator's socket in a data directory (`broker.server.admin` answers).

Commands import this and nothing else of a node: what a node is made of takes longer to import than an answer takes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from clusterbroker.broker.server.private_socket import connected

NAME = "admin.sock"


def ask(directory: Path, asked: dict[str, Any], timeout_s: float = 10.0) -> dict[str, Any] | None:
    """Puts one request to the node that runs in the directory; None when none runs there. Blocks."""
    try:
        line = connected(directory, NAME, timeout_s)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return None
    if sudo := os.environ.get("SUDO_USER"):
        asked = {**asked, "sudo": sudo}  # for the audit
    with line:
        line.sendall(json.dumps(asked).encode() + b"\n")
        with line.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b'{"ok": false, "error": "the node went away"}')
    assert isinstance(answer, dict), "an answer is an object"
    return answer
