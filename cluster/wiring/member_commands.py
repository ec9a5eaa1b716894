"""Commands about members: what commands.py says holds for them as well."""

from __future__ import annotations

from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId

from .command import Command, OfProcess


class AddMember(Command, frozen=True, kw_only=True, tag="add_member"):
    """A node may join under this name; it is not alive before it registers. Founders come by the first commands. The
    first member of a map takes over all queues of the map, which was a single node's: that node is this member."""

    name: NodeId
    address: str
    witness: bool = False


class RegisterNode(Command, frozen=True, kw_only=True, tag="register_node"):
    """A member's process started, or begins anew after it was failed. Refused unless the incarnation is new."""

    node: NodeId
    disk_id: str
    incarnation: Incarnation
    address: str
    amqp: tuple[str, ...] = ()
    damaged: tuple[QueueId, ...] = ()
    """Queues whose replica at this node has lost records: it begins anew, empty, when this is applied, and does not
    count before it has caught up; but for those of which nobody else may have all."""
    all_damaged: bool = False
    """So it is with every replica at this node, however many there are when the command is applied."""
    spare_last: bool = False
    """The process gives up what is damaged, and begins again: until it has, the member is not alive, and gets no queues
    that it would lose as well. Refused if nobody were left who may have all of a queue: a damaged copy is better."""
    log_id: str = ""
    """Of its wiring log: another one than before when that was lost; empty: the disk id."""
    given_up_as: Incarnation = Incarnation(0)
    """With `all_damaged`: what this incarnation gave up is damaged. If a later one has registered since, that one
    reported the same, and what is there now came afterwards, and counts. 0: it is damaged in any case."""
    level: int = 1
    """The feature level that its release knows (levels.py). Earlier releases do not say it: they know the first one."""


class FailNode(OfProcess, frozen=True, kw_only=True, tag="fail_node"):
    """A member is gone: others take over what it owned. Result: whether it was alive with that incarnation."""


class DrainNode(Command, frozen=True, kw_only=True, tag="drain_node"):
    """Place no new queue at a member, or do so again. It hands its queues over itself, and keeps its copies."""

    node: NodeId
    draining: bool = True
    leaving: bool = False
    """It drains in order to leave: its copies are made elsewhere first (membership.py). Void when not draining."""


class ForgetNode(Command, frozen=True, kw_only=True, tag="forget_node"):
    """Take a member out for good. Refused while it is alive and owns a queue; its data directory never returns."""

    node: NodeId
    accept_loss: bool = False
    """Needed when it may hold the only copy of a queue."""
    leaves: bool = False
    """It is alive and goes by itself: refused while a queue counts on its copy (membership.py); else its transient
    queues end with it."""
    accept_fewer: bool = False
    """It may leave though queues count on its copy."""


class SetVoters(Command, frozen=True, kw_only=True, tag="set_voters"):
    """The voters of the wiring log, for display and choice: the voting itself is the log's own matter."""

    voters: tuple[NodeId, ...]


class RaiseLevel(Command, frozen=True, kw_only=True, tag="raise_level"):
    """What this feature level brings may be written from now on (levels.py). Refused unless it is above the present
    one, and `members` has each member that has ever registered, in its present incarnation."""

    level: int
    members: tuple[tuple[NodeId, Incarnation], ...] = ()
    """Those of which the proposer knows that they know the level, each in the incarnation that it had in the map."""
