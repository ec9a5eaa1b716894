"""Disks that misbehave: a small tmpfs, and the library of disk_shim.c under the node's process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.node import NodeProcess

SOURCE = Path(__file__).with_name("disk_shim.c")


class Unavailable(Exception):
    """This machine lacks what the fault needs; the text says what."""


def shim(directory: Path) -> Path:
    """The compiled library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unavailable("no C compiler")
    library = directory / "disk_shim.so"
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"the compiler fails: {built.stderr[-300:]}")
    return library


def volatile(node: NodeProcess, library: Path, one_in: int = 3) -> None:
    """From its next start a kill of the node is a power loss; one in `one_in` unflushed sectors is written anyway."""
    node.environment |= {"LD_PRELOAD": str(library), "DISK_VOLATILE": str(one_in)}


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Path]:
    """A tmpfs of that size; Unavailable where it may not be mounted."""
    directory.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() or mount is None or umount is None:
        raise Unavailable("only root can mount a small file system")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        raise Unavailable(f"mount: {mounted.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run([umount, "-l", str(directory)], check=False)
