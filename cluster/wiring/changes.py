"""Changes of an applied command: the events for the rest of the node.

Past participles, small and frozen. A command that changed nothing has no changes, and every change of the
map's state is in them: the two facts are one invariant (tests/property/test_cluster_map.py).
"""

from __future__ import annotations

import msgspec

from clusterbroker.cluster.ids import Epoch, NodeId

from .entities import Binding, Exchange, LogTime, Member, Queue, RecoverableLink, Segment, SoleConnection
from .pool_entities import Assignment, Group, Launch, Pool


class QueueDeclared(msgspec.Struct, frozen=True, tag=True):
    """A queue began to exist."""

    queue: Queue


class QueueDeleted(msgspec.Struct, frozen=True, tag=True):
    """A queue ended: cancel its consumers, drop its messages."""

    queue: Queue


class QueuePaused(msgspec.Struct, frozen=True, tag=True):
    """An operator paused a queue, or resumed it."""

    queue: Queue


class ExchangeDeclared(msgspec.Struct, frozen=True, tag=True):
    """An exchange began to exist."""

    exchange: Exchange


class ExchangeDeleted(msgspec.Struct, frozen=True, tag=True):
    """An exchange ended, by command or because its last binding went (auto-delete)."""

    exchange: Exchange


class Bound(msgspec.Struct, frozen=True, tag=True):
    """A binding began: routes of its source exchange changed."""

    binding: Binding


class Unbound(msgspec.Struct, frozen=True, tag=True):
    """A binding ended, by command or with one of its ends."""

    binding: Binding


class VhostAdded(msgspec.Struct, frozen=True, tag=True):
    """A vhost began to exist; its own exchanges follow as ExchangeDeclared."""

    vhost: str


class VhostChanged(msgspec.Struct, frozen=True, tag=True):
    """Description, tags, metadata, default queue type, tracing or limits of a vhost changed."""

    vhost: str


class VhostDeleted(msgspec.Struct, frozen=True, tag=True):
    """A vhost ended; the end of all that was in it came before."""

    vhost: str


class PolicyChanged(msgspec.Struct, frozen=True, tag=True):
    """A policy came, changed or went: ask again for the settings of the vhost's queues and exchanges."""

    vhost: str
    name: str
    operator: bool = False


class UserChanged(msgspec.Struct, frozen=True, tag=True):
    """A user came, changed or went."""

    user: str
    deleted: bool = False


class PermissionChanged(msgspec.Struct, frozen=True, tag=True):
    """What a user may do in a vhost changed (permission or topic permission)."""

    user: str
    vhost: str


class ParameterChanged(msgspec.Struct, frozen=True, tag=True):
    """A runtime parameter came, changed or went."""

    vhost: str
    component: str
    name: str


class MemberChanged(msgspec.Struct, frozen=True, tag=True):
    """A member was added, registered, failed, or one of its flags changed; what that did to queues follows."""

    member: Member


class MemberForgotten(msgspec.Struct, frozen=True, tag=True):
    """A member is none any more."""

    name: NodeId


class OwnerChanged(msgspec.Struct, frozen=True, tag=True):
    """A queue's epoch rose: it has another owner, or none, or the same one anew; its in-sync set may differ too."""

    queue: Queue
    previous: NodeId | None
    """Its owner until now."""
    previous_epoch: Epoch


class InSyncChanged(msgspec.Struct, frozen=True, tag=True):
    """A queue's version rose, its epoch did not: another in-sync or eligible set, or a proposal was cancelled."""

    queue: Queue


class ReplicasChanged(msgspec.Struct, frozen=True, tag=True):
    """Others than before shall hold a queue."""

    queue: Queue
    previous: tuple[NodeId, ...]


class CopyLost(msgspec.Struct, frozen=True, tag=True):
    """A member's copy of a queue is damaged: it begins anew there, empty. Comes after the changes of owner and sets."""

    queue: Queue
    node: NodeId


class ImportChanged(msgspec.Struct, frozen=True, tag=True):
    """An import of definitions began, went on or ended; what was carried out of it came before."""

    import_id: str


class SegmentOpened(msgspec.Struct, frozen=True, tag=True):
    """A staging exchange takes rows; its queue, if it has one, came before."""

    segment: Segment


class SegmentCommitted(msgspec.Struct, frozen=True, tag=True):
    """The owner of its queue moves the rows of a segment from now on, and it takes no more."""

    segment: Segment


class SegmentEnded(msgspec.Struct, frozen=True, tag=True):
    """A segment was dropped, or its last row was moved; the end of its queue came before."""

    segment: Segment


class ProducerChanged(msgspec.Struct, frozen=True, tag=True):
    """A producer came, committed, was fenced or went."""

    vhost: str
    name: str


class LevelRaised(msgspec.Struct, frozen=True, tag=True):
    """The cluster's feature level rose: what it brings may be written."""

    level: int


class LinkAttached(msgspec.Struct, frozen=True, tag=True):
    """A recoverable link is attached at a node: whatever was said of it before does not count any more."""

    link: RecoverableLink


class LinkSuspended(msgspec.Struct, frozen=True, tag=True):
    """A recoverable link is attached nowhere."""

    link: RecoverableLink


class LinkEnded(msgspec.Struct, frozen=True, tag=True):
    """A recoverable link ended: what queues know of it is of nobody."""

    link: RecoverableLink


class ContainerHeld(msgspec.Struct, frozen=True, tag=True):
    """A connection is its container's sole one."""

    sole: SoleConnection


class ContainerLost(msgspec.Struct, frozen=True, tag=True):
    """A connection is not its container's sole one any more."""

    sole: SoleConnection


class QueueSet(msgspec.Struct, frozen=True, tag=True):
    """A pool's queue has other arguments."""

    queue: Queue


class PoolChanged(msgspec.Struct, frozen=True, tag=True):
    """A worker pool came, or changed; its exchanges and queues came before."""

    pool: Pool


class PoolEnded(msgspec.Struct, frozen=True, tag=True):
    """A worker pool ended; the end of all that was its came before."""

    pool: Pool


class GroupChanged(msgspec.Struct, frozen=True, tag=True):
    """A group of a pool came, or changed; its queue and binding came, or went, before."""

    group: Group


class GroupDirected(msgspec.Struct, frozen=True, tag=True):
    """An operator's word about a group was carried out; what it changed in the map came before."""

    group: Group
    word: str


class GroupEnded(msgspec.Struct, frozen=True, tag=True):
    """A group of a pool ended; the end of its queue came before."""

    group: Group


class LaunchChanged(msgspec.Struct, frozen=True, tag=True):
    """A worker was ordered, retired or revoked."""

    launch: Launch


class LaunchEnded(msgspec.Struct, frozen=True, tag=True):
    """A worker is gone."""

    launch: Launch
    exit_status: int | None = None
    peak_bytes: int = 0
    out_of_memory: bool = False


class AssignmentChanged(msgspec.Struct, frozen=True, tag=True):
    """A worker of several keys has one more, or gets no more requests of it."""

    assignment: Assignment


class AssignmentEnded(msgspec.Struct, frozen=True, tag=True):
    """A worker of several keys has this one no more; if the worker is gone, that comes later."""

    assignment: Assignment


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """The log is older."""

    time: LogTime


Change = (
    QueueDeclared | QueueDeleted | QueuePaused | ExchangeDeclared | ExchangeDeleted | Bound | Unbound | VhostAdded
    | VhostChanged | VhostDeleted | PolicyChanged | UserChanged | PermissionChanged | ParameterChanged | MemberChanged
    | MemberForgotten | OwnerChanged | InSyncChanged | ReplicasChanged | CopyLost | ImportChanged | SegmentOpened
    | SegmentCommitted | SegmentEnded | ProducerChanged | LevelRaised | TimePassed | LinkAttached
    | LinkSuspended | LinkEnded | ContainerHeld | ContainerLost | QueueSet | PoolChanged | PoolEnded | GroupChanged
    | GroupEnded | GroupDirected | LaunchChanged | LaunchEnded | AssignmentChanged | AssignmentEnded
)  # fmt: skip
