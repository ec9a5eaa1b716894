"""Snapshot of the cluster map: the state at one log index, as a list of independent chunks.

    chunk    u8 version (1) | msgpack [kind, [entity, entity, ...]]       at most CHUNK_ENTITIES entities
    kinds    vhost, limits, exchange, queue, binding, policy, operator_policy, user, permission, topic_permission,
             parameter, member, forgotten_disk, import, import_command, producer, segment, time, deserted; in this
             order, within a kind in the map's order, so that order survives too

A snapshot holds transient things as well: what a later command of the log answered may have depended on them,
and replay must give that answer again. A restart ends them by a command of its own (ForgetTransient).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from clusterbroker.cluster.errors import NewerRelease
from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.journal.values import restored

from .arguments import ENCODER
from .commands import Defining
from .entities import (
    Binding,
    Deserted,
    Exchange,
    ForgottenDisk,
    LogTime,
    Member,
    OperatorPolicy,
    Parameter,
    Permission,
    Policy,
    Producer,
    Queue,
    Segment,
    TopicPermission,
    User,
    Vhost,
    VhostLimits,
)

VERSION: Final = 1
CHUNK_ENTITIES: Final = 1000


class StagedImport(msgspec.Struct, frozen=True, array_like=True):
    """An import of definitions that is under way, without its commands."""

    import_id: str
    parts: int
    accepted: bool
    done: int


_KINDS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("vhost", "vhosts", Vhost),
    ("limits", "limits", VhostLimits),
    ("exchange", "exchanges", Exchange),
    ("queue", "queues", Queue),
    ("binding", "bindings", Binding),
    ("policy", "policies", Policy),
    ("operator_policy", "operator_policies", OperatorPolicy),
    ("user", "users", User),
    ("permission", "permissions", Permission),
    ("topic_permission", "topic_permissions", TopicPermission),
    ("parameter", "parameters", Parameter),
    ("member", "members", Member),
    ("forgotten_disk", "forgotten_disks", ForgottenDisk),
    ("import", "imports", StagedImport),
    ("import_command", "import_commands", Defining),
    ("producer", "producers", Producer),
    ("segment", "segments", Segment),
    ("time", "times", LogTime),
    ("deleted_queue", "deleted_queues", QueueId),
    ("deserted", "deserted", Deserted),
)
_FIELDS: Final = {kind: field for kind, field, _ in _KINDS}
_LISTS: Final[dict[str, Any]] = {
    kind: msgspec.msgpack.Decoder(list[entity], ext_hook=restored)  # type: ignore[valid-type]
    for kind, _, entity in _KINDS
}
_OUTER: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


class Snapshot(msgspec.Struct):
    """The entities of a cluster map after the command at `index`; a restored node continues with `index + 1`."""

    index: LogIndex
    vhosts: list[Vhost] = []
    limits: list[VhostLimits] = []
    exchanges: list[Exchange] = []
    queues: list[Queue] = []
    bindings: list[Binding] = []
    policies: list[Policy] = []
    operator_policies: list[OperatorPolicy] = []
    users: list[User] = []
    permissions: list[Permission] = []
    topic_permissions: list[TopicPermission] = []
    parameters: list[Parameter] = []
    members: list[Member] = []
    forgotten_disks: list[ForgottenDisk] = []
    imports: list[StagedImport] = []
    """One at most."""
    import_commands: list[Defining] = []
    producers: list[Producer] = []
    segments: list[Segment] = []
    times: list[LogTime] = []
    """One; none of a log that no time has passed in."""
    deleted_queues: list[QueueId] = []
    """The last ones, oldest first."""
    deserted: list[Deserted] = []
    """One, of a broker that had users and has none; else none."""

    def sections(self) -> Iterator[tuple[str, list[Any]]]:
        """(kind, entities) in the stored order."""
        for kind, field, _ in _KINDS:
            yield kind, getattr(self, field)

    def __len__(self) -> int:
        """How many entities there are."""
        return sum(len(entities) for _, entities in self.sections())


def encode(snapshot: Snapshot) -> Iterator[bytes]:
    """The chunks of a snapshot, one at a time, so that a writer thread gives others a turn in between."""
    for kind, entities in snapshot.sections():
        for start in range(0, len(entities), CHUNK_ENTITIES):
            yield bytes((VERSION,)) + ENCODER.encode((kind, entities[start : start + CHUNK_ENTITIES]))


def decode(index: LogIndex, chunks: Iterable[bytes]) -> Snapshot:
    """The snapshot behind stored chunks; ValueError when they are none, NewerRelease when this release knows less."""
    snapshot = Snapshot(index)
    for chunk in chunks:
        if not chunk or chunk[0] != VERSION:
            newer = bool(chunk) and chunk[0] > VERSION
            version = chunk[0] if chunk else "missing"
            raise (NewerRelease if newer else ValueError)(f"snapshot version {version} is not {VERSION}")
        try:
            kind, raw = _OUTER.decode(chunk[1:])
            getattr(snapshot, _FIELDS[kind]).extend(_LISTS[kind].decode(raw))
        except (msgspec.ValidationError, KeyError) as error:
            raise NewerRelease(f"not a chunk of a snapshot: {error}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not a chunk of a snapshot: {error}") from error
    return snapshot
