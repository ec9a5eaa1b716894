"""`clusterbroker leave` while it waits: a line each time that less is left to move, and what was asked of the node."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli import administration
from clusterbroker.broker.cli.main import app
from clusterbroker.broker.server.control import protocol as m

STEPS = (
    {"leaving": False, "owns": 2, "counting": 3},
    *({"leaving": True, "owns": 2, "counting": n} for n in (3, 3, 1, 0)),
)


class Leaving:
    """What answers at the control socket of a node that leaves: `leave` when the last step was told."""

    def __init__(self, directory: Path, error: str) -> None:
        self.asked: dict[str, Any] = {}
        self._error = error
        self._steps = iter(STEPS)
        self._last = Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(directory / m.NAME))
        self._socket.listen()
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            line, _ = self._socket.accept()
            Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        frames = m.Frames(m.AnyAsked)
        with line:
            while data := line.recv(1 << 16):
                for call in frames.feed(data):
                    if isinstance(call, m.Call):
                        done = self._done(call)
                        line.sendall(m.encode(done))
                        if done.answer.get("counting") == 0:
                            self._last.set()

    def _done(self, call: m.Call) -> m.Done:
        if call.operation == "leave":
            self.asked = call.arguments
            assert self._last.wait(20)
            return m.Done(call.number, {}, self._error)
        return m.Done(call.number, next(self._steps, STEPS[-1]), "")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "PROGRESS_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_it_tells_what_is_left_while_it_waits(tmp_path: Path) -> None:
    node = Leaving(tmp_path, "")
    done = CliRunner().invoke(app, ["leave", "--timeout", "7", "--force", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "2 queues to transfer, 3 wait for a replica elsewhere",
        "2 queues to transfer, 1 wait for a replica elsewhere",
        "2 queues to transfer, 0 wait for a replica elsewhere",
    ], "nothing before it leaves, and nothing twice"
    assert done.stdout == "this node is a member no more\n"
    assert node.asked == {"member": None, "timeout_s": 7, "force": True, "accept_loss": False}


@pytest.mark.usefixtures("quick")
def test_a_refusal_is_the_last_line(tmp_path: Path) -> None:
    Leaving(tmp_path, "too few copies")
    done = CliRunner().invoke(app, ["leave", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "clusterbroker: too few copies"
