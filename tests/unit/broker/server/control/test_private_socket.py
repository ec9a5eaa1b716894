"""Sockets in a directory, for its owner only, however long the directory's name is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clusterbroker.broker.server.control.private_socket import bound, connected


@pytest.mark.parametrize(("depth", "proc"), [(0, True), (6, True), (6, False)])
def test_long_directories_too(tmp_path: Path, depth: int, proc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not proc:  # as on macOS
        monkeypatch.setattr(os.path, "isdir", lambda path: False)
    directory = tmp_path.joinpath(*["d" * 40] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "x.sock").write_text("what an earlier process left")
    with bound(directory, "x.sock") as door:
        assert stat.S_IMODE((directory / "x.sock").stat().st_mode) == 0o600
        with pytest.raises(ConnectionRefusedError):
            connected(directory, "x.sock")
        door.listen()
        with connected(directory, "x.sock") as line:
            served, _ = door.accept()
            line.send(b"x")
            served.setblocking(True)
            assert served.recv(1) == b"x"
            served.close()
    with pytest.raises(ConnectionRefusedError):
        connected(directory, "x.sock")
    with pytest.raises(FileNotFoundError):
        connected(directory, "y.sock")
