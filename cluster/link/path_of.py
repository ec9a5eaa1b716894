"""Temporary files for OpenSSL, which reads certificates and keys from files only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def path_of(octets: bytes, scratch: Path | None = None) -> Iterator[str]:
    """A path under which they may be read for a moment: a file in memory, else one of mode 0600 in `scratch` (None:
    where temporary files are)."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("clusterbroker-tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, octets)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(dir=scratch, prefix=".tls-") as file:  # mode 0600
        file.write(octets)
        file.flush()
        yield file.name
