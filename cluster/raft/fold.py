"""The fold of Raft's entries: the cluster map, each proposal applied once, in the order of its origin's numbers.

    entry   u8 0 | msgpack [origin, session, number, stored command, generation]

A proposal may come into the log more than once, and a later one before an earlier: its origin repeats proposals
without an outcome. The fold therefore applies of each origin number n + 1 after n, and nothing else: a repetition is
dropped, and so is a number behind a gap (its origin sends again, from the gap on). An empty command fills the place
of a proposal that was given up. `session` counts the starts of an origin; its numbers begin with 1 in each, and a
lower session is dropped. The table of the numbers is part of the state: equal on all nodes, in every snapshot.
"""

from __future__ import annotations

from typing import Final

import msgspec

from clusterbroker.cluster.errors import DamagedLog, FormatTooNew, LogFailure, NewerRelease, Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.map import Applied, ClusterMap

from .messages import Entry
from .outcomes import Outcomes
from .snapshots import StoredSnapshot

REGULAR: Final = b"\x00"
BLANK: Final = b""
"""Stands for a command that was given up."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A proposal as it stands in the log."""

    origin: str
    session: int
    number: int
    command: bytes
    generation: int = 0
    """Made anew with each start of the origin: a session comes twice when a copy of its disk is put back."""


_DECODER: Final = msgspec.msgpack.Decoder(Envelope)
_FAILED: Final = msgspec.msgpack.encode(c.FailNode.__struct_config__.tag)
_HEAD_BYTES: Final = 256
"""In so many bytes stands what kind of command it is: behind a member's name and two numbers."""


def seal(envelope: Envelope) -> bytes:
    """The entry of the log."""
    return REGULAR + msgspec.msgpack.encode(envelope)


def unseal(entry: bytes) -> Envelope:
    """The proposal in an entry; ValueError when there is none."""
    if entry[:1] != REGULAR:
        raise ValueError("not a proposal")
    return _DECODER.decode(entry[1:])


def is_proposal(entry: bytes, bytes_max: int) -> bool:
    """Whether what another member forwards may stand in the log."""
    if len(entry) > bytes_max:
        return False
    try:
        unseal(entry)
    except ValueError:
        return False
    return True


def takes_long(entry: bytes) -> bool:
    """Whether an entry may be the end of a member, of which something follows for each of its queues. (Another one that
    looks like it is sent in one more frame, and that is all.)"""
    return _FAILED in entry[:_HEAD_BYTES]


class Fold:
    """Map and table of numbers."""

    __slots__ = ("map", "origins", "outcomes")

    def __init__(self, map_: ClusterMap | None = None) -> None:
        self.map = map_ if map_ is not None else ClusterMap()
        self.origins: dict[str, tuple[int, int]] = {}
        """origin -> (session, last number applied)"""
        self.outcomes = Outcomes()

    def apply(self, index: LogIndex, envelope: Envelope) -> Applied | None:
        """Apply a proposal; None when its turn was before or is not yet. Raises LogFailure (FormatTooNew, DamagedLog).

        A command never raises: what is wrong with it, even in our own code, is its answer, the same on every
        node. Memory that is short is this node's alone: half of the command may be in the map, and no other
        member has that answer, so the node ends and folds the log anew.
        """
        applied = self._apply(index, envelope)
        self.outcomes.add(index, applied)
        return applied

    def _apply(self, index: LogIndex, envelope: Envelope) -> Applied | None:
        if not self._is_next(envelope):
            return None
        self.origins[envelope.origin] = (envelope.session, envelope.number)
        if envelope.command == BLANK:
            return None
        try:
            command = c.decode(envelope.command)
        except NewerRelease as error:
            raise _too_new(index, error) from error
        except ValueError as error:
            raise DamagedLog(
                f"metadata entry {index} cannot be read ({error}): start this node with the release that its cluster "
                "runs"
            ) from error
        try:
            return self.map.apply(index, command)
        except NewerRelease as error:
            raise _too_new(index, error) from error
        except MemoryError as error:
            raise LogFailure(
                f"metadata entry {index} could not be applied: memory is short; restart this node"
            ) from error
        except Exception as error:
            return Applied(index, command, Unavailable(f"internal error: {error!r}"), None, ())

    def _is_next(self, envelope: Envelope) -> bool:
        session, last = self.origins.get(envelope.origin, (0, 0))
        if envelope.session > session:
            return envelope.number == 1
        return envelope.session == session and envelope.number == last + 1

    def is_known(self, origin: str, session: int, number: int) -> bool:
        """Whether this proposal has been applied."""
        return self.origins.get(origin, (0, 0)) >= (session, number)

    def dump(self, previous: Entry, last: Entry, voters: tuple[str, ...]) -> StoredSnapshot:
        """Everything, as of the entry `last`."""
        taken = self.map.snapshot()
        origins = tuple((origin, *numbers) for origin, numbers in sorted(self.origins.items()))
        chunks = tuple(snapshot.encode(taken))
        return StoredSnapshot(previous, last, voters, origins, taken.index, chunks)

    @classmethod
    def restored(cls, stored: StoredSnapshot, where: str) -> Fold:
        """The fold that was dumped; `where`: its directory, for the text of errors. Raises DamagedLog, FormatTooNew."""
        try:
            fold = cls(ClusterMap.restored(snapshot.decode(LogIndex(stored.applied), stored.chunks)))
        except NewerRelease as error:
            raise FormatTooNew(
                f"the snapshot of the metadata cannot be read ({error}): it comes from a newer release; upgrade this "
                "node"
            ) from error
        except ValueError as error:
            raise DamagedLog(f"{where}: the snapshot {error}") from error
        fold.origins = {origin: (session, number) for origin, session, number in stored.origins}
        return fold


def _too_new(index: int, why: NewerRelease) -> FormatTooNew:
    return FormatTooNew(
        f"metadata entry {index} cannot be read ({why}): it comes from a newer release; upgrade this node"
    )
