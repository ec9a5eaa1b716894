"""`clusterbroker leave` while it waits: a line each time that less is left to move, and what was asked of the node."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli import membership
from clusterbroker.broker.cli.main import app
from clusterbroker.broker.server.admin_client import NAME

STEPS = (
    {"leaving": False, "owns": 2, "counting": 3},
    *({"leaving": True, "owns": 2, "counting": n} for n in (3, 3, 1, 0)),
)


class Leaving:
    """What answers at the admin socket of a node that leaves: `leave` when the last step was told."""

    def __init__(self, directory: Path, answer: dict[str, Any]) -> None:
        self.asked: dict[str, Any] = {}
        self._answer = answer
        self._steps = iter(STEPS)
        self._last = Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(directory / NAME))
        self._socket.listen()
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            line, _ = self._socket.accept()
            Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, line.makefile("rwb") as stream:
            asked = json.loads(stream.readline())
            if asked["do"] == "leave":
                self.asked = asked
                assert self._last.wait(20)
                stream.write(json.dumps(self._answer).encode() + b"\n")
                return
            step = next(self._steps, STEPS[-1])
            stream.write(json.dumps({"ok": True, **step}).encode() + b"\n")
            stream.flush()
            if step["counting"] == 0:
                self._last.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PROGRESS_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_it_tells_what_is_left_while_it_waits(tmp_path: Path) -> None:
    node = Leaving(tmp_path, {"ok": True})
    done = CliRunner().invoke(app, ["leave", "--timeout", "7", "--force", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "2 queues to hand over, 3 wait for a copy elsewhere",
        "2 queues to hand over, 1 wait for a copy elsewhere",
        "2 queues to hand over, 0 wait for a copy elsewhere",
    ], "nothing before it leaves, and nothing twice"
    assert done.stdout == "this node is a member no more\n"
    assert node.asked == {"do": "leave", "member": None, "timeout_s": 7, "force": True, "accept_loss": False}


@pytest.mark.usefixtures("quick")
def test_a_refusal_is_the_last_line(tmp_path: Path) -> None:
    Leaving(tmp_path, {"ok": False, "error": "too few copies"})
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "clusterbroker: too few copies"
