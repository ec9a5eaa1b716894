"""A data directory: its identity, and its parts at one start (waits). The rules are in binding.py.

    DIR/identity    {"format": 2, "name": "a", "disk_id": "...", "cluster_id": "...", "starts": 7, "stopped": false,
                     "parts": {"journal": ["...", 7], "raft": ["...", 7]}}

A node that returns with another disk id has lost its messages: the cluster must know that before it counts on them. The
cluster id keeps a disk of one cluster out of another. Name and cluster id are empty while the node is alone. `starts`
and `parts` are written at each start. `stopped`: the last start ended in order, all its writes are in the journal's
index, and no start was tried since.

Format 1 had neither starts nor parts; a node that was alone had no identity, and its number was in DIR/starts. The
format covers DIR/members and the files of DIR/raft as well: they have no format of their own, and are read later.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.binding import JOURNAL, RAFT, WIRING, Found, Listed, Verdict, judge, trouble
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.journal.platform import sync, sync_directory
from clusterbroker.journal.stamp import Stamp

FORMAT: Final = 2
STARTS: Final = "starts"
"""Where releases before format 2 counted."""


class WrongIdentity(ValueError):
    """The directory does not fit the node's settings; one line says what to do."""


class DamagedIdentity(WrongIdentity):
    """The file cannot be read. A start sets it aside: the other parts, or the cluster, know the rest."""

    exit_code = 70


@dataclass(frozen=True, slots=True)
class Identity:
    """Content of DIR/identity."""

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
    """Replaces a small file as a whole: a crash leaves the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        sync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


def stored(directory: Path) -> Identity | None:
    """None: the directory has no identity. Raises WrongIdentity, OSError."""
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
    """Raises OSError."""
    raw = {"format": FORMAT, "name": identity.name, "disk_id": identity.disk_id, "cluster_id": identity.cluster_id}
    raw |= {"starts": identity.starts, "stopped": identity.stopped, "parts": dict(identity.parts)}
    write_durably(directory / "identity", json.dumps(raw))


def identity_of(directory: Path, name: str, cluster_id: str) -> Identity:
    """The directory's identity, made when there is none. `cluster_id`: by the node's settings; a directory that has
    joined a cluster keeps that one's. Raises WrongIdentity, OSError."""
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


DATA: Final = {JOURNAL: "journal/index/data.mdb", WIRING: "wiring/data.mdb", RAFT: "raft/identity"}
"""The file without which a part is missing."""
WHAT_TO_DO: Final = (
    "Nothing was changed. Put the right one back (is its disk mounted?) and start again; to begin without what it "
    "held, give the node an empty data directory"
)
WHAT_A_MEMBER_DOES: Final = (
    "Nothing was changed. Put the right one back (is its disk mounted?) and start again; else let the node join anew "
    "with an empty data directory"
)


class DamagedDirectory(Unstarted):
    """The parts of a data directory do not belong together: one line names it and says what to do."""

    exit_code = 70


class Parts:
    """Parts of one directory at its start `number`: judged, stamped, then listed in the identity. Nothing is written by
    the constructor."""

    def __init__(self, directory: Path) -> None:
        """Raises WrongIdentity, OSError."""
        self.directory = directory
        known = stored(directory)
        self._kept = known is not None
        self.identity = known or Identity("", uuid.uuid4().hex, "", counted(directory))
        self.number = self.identity.starts + 1

    def is_there(self, part: str) -> bool:
        try:
            return (self.directory / DATA[part]).stat().st_size > 0
        except OSError:
            return False

    @property
    def journal_was_used(self) -> bool:
        """Whether the journal holds, or has held, anything."""
        return any((self.directory / "journal" / "segments").glob("*.seg"))

    def verdict(self, part: str, found: Found, lived: bool = False) -> Verdict:
        identity = self.identity
        return judge(identity.disk_id, identity.starts, identity.parts.get(part), found, lived)

    def trouble(self, part: str, found: Found, lived: bool = False) -> str | None:
        """A line about the damage, without the directory's name; None: there is none."""
        verdict, identity = self.verdict(part, found, lived), self.identity
        return trouble(part, verdict, identity.starts, identity.parts.get(part), found) if verdict.is_damage else None

    def check(self, part: str, found: Found, lived: bool = False) -> None:
        """For a node that cannot be rebuilt. Raises DamagedDirectory."""
        what = self.trouble(part, found, lived)
        if what is not None:
            raise DamagedDirectory(f"{self.directory / part}: {what}. {WHAT_TO_DO}")

    def recognise(self, stamps: Iterable[Stamp | None]) -> None:
        """Restores the lost identity of a node that was alone from its parts, if they agree on disk and last start."""
        known = set(stamps)
        if not self._kept and len({(stamp and stamp.disk_id, stamp and stamp.starts) for stamp in known}) == 1:
            stamp = known.pop()
            if stamp is not None:
                self.identity = replace(self.identity, disk_id=stamp.disk_id, starts=stamp.starts)
                self.number = stamp.starts + 1

    def belong_to(self, name: str, cluster_id: str) -> Identity:
        """The directory is a member's: its identity, kept. Raises WrongIdentity, OSError."""
        self.identity, self._kept = identity_of(self.directory, name, cluster_id), True
        self.number = self.identity.starts + 1
        return self.identity

    def keep_identity(self) -> None:
        """A directory has its id before any part is stamped with it. Raises OSError."""
        if not self._kept:
            keep(self.directory, self.identity)
            self._kept = True

    def stamp_of(self, found: Found) -> Stamp:
        """The stamp for this start of a part that is used."""
        part_id = uuid.uuid4().hex if found.stamp is None else found.stamp.part_id
        return Stamp(self.identity.disk_id, part_id, self.number)

    def list_parts(self, stamps: dict[str, Stamp], without: str = "") -> None:
        """The parts are stamped, and may speak from now on. `without`: a part that is gone. Raises OSError."""
        parts = {name: listed for name, listed in self.identity.parts.items() if name != without}
        parts |= {name: Listed(stamp.part_id, stamp.starts) for name, stamp in stamps.items()}
        self.identity = replace(self.identity, starts=self.number, parts=parts, stopped=False)
        keep(self.directory, self.identity)
        (self.directory / STARTS).unlink(missing_ok=True)

    def begins(self) -> None:
        """From here on a crash is not an end in order. Raises OSError."""
        self.identity = replace(self.identity, stopped=False)
        keep(self.directory, self.identity)

    def stopped(self) -> None:
        """The start ended in order. Raises OSError."""
        if self.identity.starts == self.number:
            self.identity = replace(self.identity, stopped=True)
            keep(self.directory, self.identity)


def put_aside(path: Path) -> Path:
    """Renames a damaged part of a data directory; the new path. Raises OSError."""
    aside = unused(path.with_name(f"{path.name}.damaged-{moment()}"))
    path.rename(aside)
    sync_directory(path.parent)
    return aside


def moment() -> str:
    """For names of parts that were put aside."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def unused(path: Path) -> Path:
    """The path, with a number behind it if that exists."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


# DOC
