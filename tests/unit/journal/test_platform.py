"""Flushes and space taken ahead, as systems have them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.journal import platform


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
    platform.allocate(fd, 0, (3 << 20) + 1)
    found = os.fstat(fd)
    assert found.st_size == (3 << 20) + 1
    assert found.st_blocks * 512 >= 3 << 20, "it is no hole"
    assert os.pread(fd, 10, 0) == b"there" + bytes(5)
    platform.allocate(fd, 0, 100)
    assert os.fstat(fd).st_size == (3 << 20) + 1, "it never becomes shorter"


def test_a_flush_goes_down_to_the_disk_where_the_system_can(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answer: list[int] = []

    def full(fd: int, command: int) -> None:
        asked.append(command)
        if answer:
            raise OSError(answer[0], os.strerror(answer[0]))

    monkeypatch.setattr(platform, "_FULL", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append(0))
    platform.sync(fd)
    platform.sync_data(fd)
    assert asked == [51, 51]
    answer.append(errno.ENOTTY)  # the file system has none
    platform.sync(fd)
    assert asked == [51, 51, 51, 0]
    answer[0] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        platform.sync(fd)
    assert asked[-1] == 51, "after a flush that failed another one proves nothing"


C_FLUSH = """
#include <fcntl.h>
#undef F_FULLFSYNC
#define F_FULLFSYNC 51
static int full(int fd, int command, ...);
#define fcntl full
#include "commit_thread.h"
#undef fcntl
static int answer;
static int seal_group(uint8_t *p, size_t n) { return 0; }
static int full(int fd, int command, ...) { errno = answer; return answer ? -1 : 0; }
int main(int count, char **words) { answer = atoi(words[1]); return -flush_file(open(words[0], O_RDONLY)); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_commit_thread_flushes_by_the_same_rule(tmp_path: Path) -> None:
    (tmp_path / "flush.c").write_text(C_FLUSH)
    include = f"-I{Path(platform.__file__).parent}"
    words = ["cc", "-pthread", "-w", include, "-o", str(tmp_path / "flush"), str(tmp_path / "flush.c")]
    subprocess.run(words, check=True)
    for answer, told in ((0, 0), (errno.ENOTTY, 0), (errno.EINVAL, 0), (errno.EIO, errno.EIO)):
        done = subprocess.run([str(tmp_path / "flush"), str(answer)], check=False)
        assert done.returncode == told, os.strerror(answer)


def test_never_written_space_is_left_out_where_the_system_tells(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.ftruncate(fd, 4 << 20)
    platform.write_all(fd, b"x" * 4096, 1 << 20)
    monkeypatch.setattr(platform, "_SEEK_DATA", None)
    monkeypatch.setattr(platform, "_ADVISE", None)
    assert platform.written_from(fd, 100, 4 << 20) == (100, 4 << 20)
    platform.no_read_ahead(fd)
    platform.drop_cache(fd)


def test_short_writes_are_carried_on(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:1000], at))
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    platform.allocate(fd, 0, 5000)
    platform.write_all(fd, b"y" * 2500, 10)
    assert os.fstat(fd).st_size == 5000, "space is taken to the end"
    assert os.pread(fd, 5000, 0) == bytes(10) + b"y" * 2500 + bytes(2490)


def test_a_full_quota_has_each_systems_number() -> None:
    """macOS' EDQUOT is 69, Linux' 122."""
    code = (
        "import errno; errno.EDQUOT = 69; from clusterbroker.journal import stream_files, writer; "
        "assert 69 in stream_files.NO_SPACE and 69 in writer.NO_SPACE and 122 not in stream_files.NO_SPACE"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
