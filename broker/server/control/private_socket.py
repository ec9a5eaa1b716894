"""Unix sockets in a node's data directory, for its owner only.

A socket's path may have 107 bytes, a directory's more: so a long one is reached by way of the open directory, or of a
link to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

PATH_BYTES_MAX = 100


@contextlib.contextmanager
def short_path(directory: Path, name: str) -> Iterator[str]:
    """A path to the socket that is short enough, as long as the context lasts. Raises OSError."""
    path = str(directory / name)
    if len(os.fsencode(path)) < PATH_BYTES_MAX:
        yield path
        return
    if not os.path.isdir("/proc/self/fd"):  # macOS
        with tempfile.TemporaryDirectory() as beside:
            link = Path(beside, "d")
            link.symlink_to(directory.absolute())
            yield str(link / name)
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def bound(directory: Path, name: str) -> socket.socket:
    """A socket that only this user may open. It does not listen yet; one of an earlier process gives way. The
    directory's lock says that such a one is dead. Raises OSError."""
    path = directory / name
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(directory, name) as short:
            made.bind(short)
        os.chmod(path, 0o600)  # nobody can connect before it listens
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def connected(directory: Path, name: str, timeout_s: float | None = None) -> socket.socket:
    """A connection to it, which blocks for `timeout_s` at most, from the beginning on; None: not at all once it stands.
    Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        with short_path(directory, name) as short:
            made.connect(short)
        if timeout_s is None:
            made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
