"""The cluster map: the fold of the wiring log, equal on all nodes.

    apply(index, command) -> Applied(result or error, changes)

It is a function of the commands alone: no clock, no chance, no configuration, no iteration in hash order. So
equal logs give equal maps, `digest()` proves it, and a snapshot followed by the tail of the log is the same
as the whole log. A refused command changes nothing; a command that changed nothing has no changes.

The map consists of parts, each with its data and its commands (parts.py), and of the import that is under way
(importing.py). The questions that the map answers are in view.py.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from clusterbroker.cluster.errors import Unavailable, WiringError
from clusterbroker.cluster.ids import LogIndex

from . import commands as c
from .changes import Change
from .parts import Handler
from .snapshot import Snapshot
from .view import ClusterView

DEFAULT_VHOST: Final = "/"


class Applied(msgspec.Struct, frozen=True):
    """What came of a command.

    `result` by command: DeclareQueue the Queue, DeclareExchange the Exchange, Bind the Binding (each the
    existing one when it is equivalent; `changes` is empty then); deletions and Unbind whether the thing
    existed, or was still the one that was meant; AddMember and RegisterNode the Member, FailNode whether
    it was alive; ChangeInSync the queue_ids that were changed, TransferOwner, ForceOwner and MoveReplica
    the Queue as it is now; ImportDefinitions whether all is carried out, ApplyImport and DropImport whether there
    was something to do; CommitTransaction an Outcome; all else None.
    """

    index: LogIndex
    command: c.AnyCommand
    error: WiringError | Unavailable | None

    result: Any
    changes: tuple[Change, ...]

    @property
    def ok(self) -> bool:
        """Whether the command was not refused."""
        return self.error is None


class ClusterMap(ClusterView):
    """Vhosts with their wiring, users, permissions, policies, parameters and members.

    Invariants: (1) commands are applied in ascending index; (2) an error leaves the digest as it was, but that a
    refused part of an import takes those before it away; (3) a command that changed the digest has changes.
    """

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        """A new cluster's map: the default vhost with its exchanges, and no user who may open it."""
        super().__init__()
        self._handlers: Final[dict[type, Handler]] = {
            **self._parts.handlers,
            c.ImportDefinitions: self._imports.import_definitions,
            c.ApplyImport: self._imports.apply,
            c.DropImport: self._imports.drop,
        }
        self._parts.fold(c.AddVhost(name=DEFAULT_VHOST), [])

    def apply(self, index: LogIndex, command: c.AnyCommand) -> Applied:
        """Apply the next command of the log; WiringErrors become part of the answer."""
        assert index > self.applied, f"command {index} comes after {self.applied}"
        self._parts.clock.applied = index
        changes: list[Change] = []
        try:
            self._imports.refuse_contended(command)
            self._parts.check_room(command)
            result = self._handlers[type(command)](command, changes)
        except WiringError as error:
            assert not changes or isinstance(command, c.ImportDefinitions), "a refused command changed nothing"
            return Applied(index, command, error.with_traceback(None), None, tuple(changes))
        self._imports.end_if_contended(changes)
        return Applied(index, command, None, result, tuple(changes))

    @classmethod
    def restored(cls, snapshot: Snapshot) -> ClusterMap:
        """The map that `snapshot()` was taken of. Raises ValueError when the snapshot contradicts itself."""
        self = cls()
        try:
            self._parts.restore(snapshot)
            self._imports.restore(snapshot)
        except (KeyError, AssertionError) as error:
            raise ValueError(f"contradicts itself ({error!r})") from error
        return self
