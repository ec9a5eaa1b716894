"""The key that workers' passwords are made with: `broker.pools.credentials` (waits: files).

a member of a cluster    derived from the join secret, so all members have the same
a node alone             64 hexadecimal digits in `workers.key` in its data directory, made at its first start
without a directory      of this process: its launches end with it as well
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.pools.credentials import KEY_PURPOSE, WorkerKey

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ServerOptions

FILE: Final = "workers.key"
BYTES: Final = 32


def worker_key(options: ServerOptions) -> WorkerKey:
    """Of this node. Raises BadSecret, OSError."""
    if options.cluster is not None:
        # a node alone needs no cryptography for its links
        from clusterbroker.cluster.link.secret import find_secret

        return WorkerKey(find_secret(options.cluster.secret_file).key(KEY_PURPOSE))
    if options.data_dir is None:
        return WorkerKey(secrets.token_bytes(BYTES))
    return WorkerKey(_kept(options.data_dir / FILE))


def _kept(path: Path) -> bytes:
    """A file that is damaged is replaced: the workers that run cannot come again, and are replaced as well."""
    try:
        found = bytes.fromhex(path.read_text("ascii", errors="replace").strip())
        if len(found) == BYTES:
            return found
    except (FileNotFoundError, ValueError):
        pass
    made = secrets.token_bytes(BYTES)
    aside = path.with_suffix(".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, made.hex().encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(path)
    return made
