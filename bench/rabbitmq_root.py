"""Where RabbitMQ is installed: on this system, or in the root of another release of Debian.

`RABBITMQ_ROOT=DIR` names such a root, so that a RabbitMQ of another release can be measured without installing it here:

    mmdebstrap --variant=minbase --include=rabbitmq-server,procps forky DIR MIRROR
    RABBITMQ_ROOT=DIR scripts/bench

Its programs run in a mount namespace of their own (so root is needed), where they see /proc, /dev, /etc/hosts and the
directory of their node under their usual paths. Nothing stays mounted after they end.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""scripts that run as the calling user; those on PATH change to a user of their own"""
ENTER = """
root=$1 seen=$2
shift 2
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
touch "$root/etc/hosts"
mount --bind /etc/hosts "$root/etc/hosts"
mkdir -p "$root$seen"
mount --bind "$seen" "$root$seen"
exec chroot "$root" "$@"
"""


def root() -> Path | None:
    """The root that was asked for; None: RabbitMQ is this system's."""
    named = os.environ.get("RABBITMQ_ROOT", "")
    return Path(named).absolute() if named else None


def installed(name: str = "rabbitmq-server") -> str | None:
    """The path of a program inside its root, or None where RabbitMQ is not installed."""
    program = str(PROGRAMS / name)
    within = root()
    if within is not None:
        return program if (within / program.lstrip("/")).exists() else None
    return shutil.which(program) or shutil.which(name)


def command(argv: list[str], seen: Path) -> list[str]:
    """What runs `argv` where RabbitMQ is installed; `seen` is a directory that it reads and writes."""
    within = root()
    if within is None:
        return argv
    return ["unshare", "--mount", "sh", "-euc", ENTER, "sh", str(within), str(seen.absolute()), *argv]
