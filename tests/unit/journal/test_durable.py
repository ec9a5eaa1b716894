"""Flushes and space taken ahead, as systems have them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.journal import durable


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("has", [True, False])
def test_space_is_taken_and_what_is_there_stays(has: bool, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    os.write(fd, b"there")
    durable.allocate(fd, 0, (3 << 20) + 1)
    found = os.fstat(fd)
    assert found.st_size == (3 << 20) + 1
    assert found.st_blocks * 512 >= 3 << 20, "it is no hole"
    assert os.pread(fd, 10, 0) == b"there" + bytes(5)
    durable.allocate(fd, 0, 100)
    assert os.fstat(fd).st_size == (3 << 20) + 1, "it never becomes shorter"


def test_a_flush_goes_down_to_the_disk_where_the_system_can(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answer: list[int] = []

    def full(fd: int, command: int) -> None:
        asked.append(command)
        if answer:
            raise OSError(answer[0], os.strerror(answer[0]))

    monkeypatch.setattr(durable, "_FULL", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append(0))
    durable.sync(fd)
    durable.sync_data(fd)
    assert asked == [51, 51]
    answer.append(errno.ENOTTY)  # the file system has none
    durable.sync(fd)
    assert asked == [51, 51, 51, 0]
    answer[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        durable.sync(fd)
    assert asked[-1] == 51, "after a flush that failed another one proves nothing"
