"""Snapshot of the cluster map: the state at one log index, as a list of independent chunks.

    chunk    u8 version (1) | msgpack [kind, [entity, entity, ...]]       at most CHUNK_ENTITIES entities
    kinds    vhost, limits, exchange, queue, binding, policy, operator_policy, user, permission, topic_permission,
             parameter, member, forgotten_disk, import, import_command, producer, segment, time, deserted, level, link,
             container, pool, group, launch, pin, spares, keys_per_worker, assignment, more, learnt,
             event_stream;
             in this order, within a kind in the map's order, so that order survives too

A snapshot holds transient things as well: what a later command of the log answered may have depended on them,
and replay must give that answer again. A restart ends them by a command of its own (ForgetTransient).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.journal.values import restored

from . import entities as e
from .arguments import ENCODER, VERSION, decoded
from .commands import Defining
from .pool_entities import Assignment, EventStream, Group, KeysPerWorker, Launch, Learnt, More, Pin, Pool, Spares

CHUNK_ENTITIES: Final = 1000


class StagedImport(msgspec.Struct, frozen=True, array_like=True):
    """An import of definitions that is under way, without its commands."""

    import_id: str
    parts: int
    accepted: bool
    done: int


class Snapshot(msgspec.Struct):
    """The entities of a cluster map after the command at `index`; a restored node continues with `index + 1`."""

    index: LogIndex
    vhosts: list[e.Vhost] = []
    limits: list[e.VhostLimits] = []
    exchanges: list[e.Exchange] = []
    queues: list[e.Queue] = []
    bindings: list[e.Binding] = []
    policies: list[e.Policy] = []
    operator_policies: list[e.OperatorPolicy] = []
    users: list[e.User] = []
    permissions: list[e.Permission] = []
    topic_permissions: list[e.TopicPermission] = []
    parameters: list[e.Parameter] = []
    members: list[e.Member] = []
    forgotten_disks: list[e.ForgottenDisk] = []
    imports: list[StagedImport] = []
    """One at most."""
    import_commands: list[Defining] = []
    producers: list[e.Producer] = []
    segments: list[e.Segment] = []
    times: list[e.LogTime] = []
    """One; none of a log that no time has passed in."""
    deleted_queues: list[QueueId] = []
    """The last ones, oldest first."""
    deserted: list[e.Deserted] = []
    """One, of a broker that had users and has none; else none."""
    levels: list[int] = []
    """One, of a cluster above the first feature level."""
    links: list[e.RecoverableLink] = []
    containers: list[e.SoleConnection] = []
    pools: list[Pool] = []
    groups: list[Group] = []
    launches: list[Launch] = []
    pins: list[Pin] = []
    spares: list[Spares] = []
    keys_per_worker: list[KeysPerWorker] = []
    assignments: list[Assignment] = []
    more: list[More] = []
    learnt: list[Learnt] = []
    event_streams: list[EventStream] = []

    def sections(self) -> Iterator[tuple[str, list[Any]]]:
        """(kind, entities) in the stored order. Of kinds that came with a feature level those that there are: below it
        snapshot and digest are those of an older release."""
        for kind, field in _FIELDS.items():
            entities = getattr(self, field)
            if entities or kind not in _OF_LEVELS:
                yield kind, entities

    def __len__(self) -> int:
        """How many entities there are."""
        return sum(len(entities) for _, entities in self.sections())


_KINDS: Final = """
    vhost limits exchange queue binding policy operator_policy user permission topic_permission parameter member
    forgotten_disk import import_command producer segment time deleted_queue deserted level link
    container pool group launch pin spares keys_per_worker assignment more learnt
    event_stream
"""
"""Of the fields of a snapshot behind its index, in their order, which is the stored one."""
_OF_LEVELS: Final = frozenset(
    ("level", "link", "container", "pool", "group", "launch", "pin", "spares", "keys_per_worker", "assignment", "more",
     "learnt", "event_stream")
)  # fmt: skip
_FIELDS: Final = dict(zip(_KINDS.split(), Snapshot.__struct_fields__[1:], strict=True))
_LISTS: Final[dict[str, Any]] = {
    kind: msgspec.msgpack.Decoder(entities.type, ext_hook=restored)
    for kind, entities in zip(_FIELDS, msgspec.structs.fields(Snapshot)[1:], strict=True)
}
_OUTER: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def encode(snapshot: Snapshot) -> Iterator[bytes]:
    """The chunks of a snapshot, one at a time, so that a writer thread gives others a turn in between."""
    for kind, entities in snapshot.sections():
        for start in range(0, len(entities), CHUNK_ENTITIES):
            yield bytes((VERSION,)) + ENCODER.encode((kind, entities[start : start + CHUNK_ENTITIES]))


def decode(index: LogIndex, chunks: Iterable[bytes]) -> Snapshot:
    """The snapshot behind stored chunks; ValueError when they are none, NewerRelease when this release knows less."""
    snapshot = Snapshot(index)
    for chunk in chunks:
        kind, entities = decoded(chunk, "a chunk of a snapshot", "snapshot", _entities)
        getattr(snapshot, _FIELDS[kind]).extend(entities)
    return snapshot


def _entities(chunk: bytes | memoryview) -> tuple[str, list[Any]]:
    kind, raw = _OUTER.decode(chunk)
    return kind, _LISTS[kind].decode(raw)
