"""Identity of a data directory: its node, its cluster, and its parts (waits).

    DIR/identity    {"format": 2, "name": "a", "disk_id": "...", "cluster_id": "...", "starts": 7, "stopped": false,
                     "parts": {"journal": ["...", 7], "raft": ["...", 7]}}

The disk id identifies the disk: a node that returns with another one has lost its messages, and the cluster must know
that before it counts on them. The cluster id keeps a disk of one cluster out of another; it is empty, as the name is,
while the node is alone. `starts` and `parts` are written at each start; binding.py has their meaning. `stopped`: the
last start ended in order, all its writes are in the journal's index, and no start was tried since.

Format 1 had neither starts nor parts; a node that was alone had no identity, and the number was in DIR/starts.

The format also covers a member's other files about its cluster: DIR/members, and the files of DIR/raft, which have no
numbers of their own and are read after this one.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.binding import Listed
from clusterbroker.journal.platform import sync, sync_directory

FORMAT: Final = 2
STARTS: Final = "starts"
"""Where releases before format 2 counted."""


class WrongIdentity(ValueError):
    """The directory is not what the node was told; one line says what to do."""


class DamagedIdentity(WrongIdentity):
    """The file cannot be read. A start sets it aside: what the node was, its other parts say, or the cluster."""

    exit_code = 70


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data directory says of itself."""

    name: str
    disk_id: str
    cluster_id: str
    """Empty until the node has joined a cluster."""
    starts: int = 0
    """The number of the last start whose parts are listed; names made in different starts differ by it."""
    parts: Mapping[str, Listed] = field(default_factory=dict)
    """By name: "journal", and "wiring" or "raft"."""
    stopped: bool = False


def write_durably(path: Path, text: str) -> None:
    """Replaces a small file as a whole: after a crash it is the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        sync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


def stored(directory: Path) -> Identity | None:
    """What the directory says; None when it has no identity. Raises WrongIdentity, OSError."""
    path = directory / "identity"
    try:
        raw = json.loads(path.read_text("utf-8"))
        version = raw.pop("format")
        if version not in (1, FORMAT):
            raise WrongIdentity(f"{path}: written by a newer clusterbroker: start the node with that one")
        if version == 1:
            return Identity(**raw, starts=counted(directory))
        parts = {str(name): Listed(str(part_id), int(starts)) for name, (part_id, starts) in raw.pop("parts").items()}
        return Identity(**raw, parts=parts)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, WrongIdentity):
            raise
        raise DamagedIdentity(f"{path}: damaged ({error}). Restore it, or start the node, which sets it aside: its "
                              "other parts say what it was, and a member is rebuilt") from error  # fmt: skip


def counted(directory: Path) -> int:
    """How many starts a release before format 2 has counted. Raises WrongIdentity, OSError."""
    path = directory / STARTS
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise WrongIdentity(f"{path} should hold a number: {error}") from error


def make(directory: Path, name: str, cluster_id: str) -> Identity:
    """Formats the directory for a node of a cluster."""
    identity = Identity(name, uuid.uuid4().hex, cluster_id, counted(directory))
    keep(directory, identity)
    return identity


def keep(directory: Path, identity: Identity) -> None:
    """Writes it down. Raises OSError."""
    raw = {"format": FORMAT, "name": identity.name, "disk_id": identity.disk_id, "cluster_id": identity.cluster_id}
    raw |= {"starts": identity.starts, "stopped": identity.stopped, "parts": dict(identity.parts)}
    write_durably(directory / "identity", json.dumps(raw))


def identity_of(directory: Path, name: str, cluster_id: str) -> Identity:
    """The directory's identity, made when it has none. `cluster_id` is what the node would belong to by its settings;
    a directory that has joined a cluster already keeps that one. Raises WrongIdentity, OSError."""
    known = stored(directory)
    if known is None:
        return make(directory, name, cluster_id)
    if not known.cluster_id and not known.name:  # it was alone until now
        known = replace(known, name=name, cluster_id=cluster_id)
        keep(directory, known)
    if known.name != name:
        raise WrongIdentity(
            f"{directory}: belongs to node '{known.name}', not to '{name}': start it as --name {known.name}, or give "
            f"'{name}' a data directory of its own"
        )
    return known
