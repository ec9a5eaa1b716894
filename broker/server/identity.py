"""Who a data directory belongs to: which node, of which cluster (waits).

    DIR/identity    {"format": 1, "name": "a", "disk_id": "...", "cluster_id": "..."}, made once, never changed

The disk id says that this is the same disk as before: a node that comes back with another one has lost its messages,
and the cluster must know that before it counts on them. The cluster id keeps a disk of one cluster out of another.

The format is that of all that a member keeps of its cluster: this file, DIR/members, and the files of DIR/raft, which
have no numbers of their own and are read after it.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from journal.segments import sync_directory

FORMAT: Final = 1


class WrongIdentity(ValueError):
    """The directory is not what the node was told; one line says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data directory says of itself."""

    name: str
    disk_id: str
    cluster_id: str
    """Empty until the node has joined a cluster."""


def write_durably(path: Path, text: str) -> None:
    """Replaces a small file as a whole: after a crash it is the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


def stored(directory: Path) -> Identity | None:
    """What the directory says; None when it never was a cluster's. Raises WrongIdentity, OSError."""
    path = directory / "identity"
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw.pop("format") != FORMAT:
            raise WrongIdentity(f"{path}: written by a newer clusterbroker: start the node with that one")
        return Identity(**raw)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WrongIdentity(f"{path}: damaged ({error}): restore it, or let the node join anew with an empty "
                            "data directory") from error  # fmt: skip


def make(directory: Path, name: str, cluster_id: str) -> Identity:
    """Formats the directory for a node of a cluster."""
    identity = Identity(name, uuid.uuid4().hex, cluster_id)
    keep(directory, identity)
    return identity


def keep(directory: Path, identity: Identity) -> None:
    """Writes it down. Raises OSError."""
    write_durably(directory / "identity", json.dumps({"format": FORMAT, **asdict(identity)}))


def identity_of(directory: Path, name: str, cluster_id: str) -> Identity:
    """The directory's identity, made when it has none. `cluster_id` is what the node would belong to by its settings;
    a directory that has joined a cluster already keeps that one. Raises WrongIdentity, OSError."""
    known = stored(directory)
    if known is None:
        return make(directory, name, cluster_id)
    if known.name != name:
        raise WrongIdentity(
            f"{directory}: belongs to node '{known.name}', not to '{name}': start it as --name {known.name}, or give "
            f"'{name}' a data directory of its own"
        )
    return known
