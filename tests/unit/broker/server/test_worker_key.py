"""The key of workers' passwords: kept by a node alone, derived by the members of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.worker_key import FILE, worker_key


def test_a_node_alone_keeps_its_key(tmp_path: Path) -> None:
    options = ServerOptions(data_dir=tmp_path)
    password = worker_key(options).password("w1-0")
    assert worker_key(options).password("w1-0") == password
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"zz", b"00" * 31, b"\xff" * 64])
def test_a_damaged_key_is_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    options = ServerOptions(data_dir=tmp_path)
    password = worker_key(options).password("w1-0")
    assert worker_key(options).password("w1-0") == password


def test_without_a_directory_each_process_has_another_key() -> None:
    one, other = worker_key(ServerOptions()), worker_key(ServerOptions())
    assert one.password("w1-0") != other.password("w1-0")
