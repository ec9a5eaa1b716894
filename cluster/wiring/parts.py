"""The parts of the cluster map, and which of them folds which command.

    LogClock                        place and age of the log
    Members, QueueIndex, Vhosts     what there is: members; queues by id; each vhost's wiring by name
    Levels                          the feature level: what may be written
    Replicas, Queues, Membership    owners and copies; begins and ends of queues; lives of members
    Policies, Parameters, Accounts  what holds for queues and exchanges; values of plugins; users and their rights
    Links                           links that outlive their connections
    Pools, Launches                 worker pools with their groups and launches; closed to other commands
    Transactions, Cascades          what producers stage and commit; ends in several commands

Each part gets those that it asks by its constructor. An import of definitions stands above them: it folds its
commands one by one, and first into parts of its own (importing.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from clusterbroker.cluster.ids import NodeId

from . import commands as c
from .authorization import Accounts
from .cascade import Cascades
from .changes import Change, VhostDeleted
from .containers import Containers
from .entities import Exchange, Member
from .exchange_rules import EXCHANGE_DECLARATIONS, STAGING
from .levels import Levels
from .links import Links
from .members import Members
from .membership import Membership
from .parameters import Parameters, Policies
from .passing import LogClock
from .pool_launches import Launches
from .pools import Pools
from .queue_index import QueueIndex
from .queues import Queues
from .replicas import Replicas
from .snapshot import Snapshot
from .transactions import Transactions
from .vhosts import Vhosts

Handler = Callable[[Any, list[Change]], Any]
"""Folds a command of one kind: checks first, then changes, each of which it appends. Returns the result. Raises
WiringError before the first change."""


CLOSED_TO: Final = (
    *EXCHANGE_DECLARATIONS, c.DeleteExchange, c.DeclareQueue, c.DeleteQueue, c.Bind, c.Unbind, c.Loosen,
)  # fmt: skip
"""Commands that the pools' own exchanges, queues and bindings are closed to."""


class Stored(Protocol):
    """A part of the map that a snapshot holds."""

    def save(self, snapshot: Snapshot) -> None:
        """Write this part into a snapshot."""

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part from a snapshot."""


class MapParts:
    """All parts of a map but the import that is under way; without any vhost at first."""

    __slots__ = (
        "_stored", "accounts", "cascades", "clock", "containers", "handlers", "index", "launches", "levels", "links",
        "members", "membership", "parameters", "policies", "pools", "queues", "replicas", "transactions", "vhosts",
    )  # fmt: skip

    def __init__(self) -> None:
        """Parts that know of each other what they need."""
        self.clock: Final = LogClock()
        self.members: Final = Members()
        self.levels: Final = Levels(self.members)
        self.index: Final = QueueIndex(self.members)
        self.vhosts: Final = Vhosts(self.members, self.index)
        self.replicas: Final = Replicas(self.members, self.vhosts, self.index)
        self.queues: Final = Queues(self.clock, self.members, self.vhosts, self.index, self.replicas)
        self.membership: Final = Membership(
            self.clock, self.members, self.vhosts, self.index, self.replicas, self.queues, self.levels
        )
        self.cascades: Final = Cascades(self.vhosts, self.index, self.levels)
        self.accounts: Final = Accounts(self.vhosts.require)
        self.policies: Final = Policies(self.vhosts, self.replicas.settle_eligible)
        self.parameters: Final = Parameters(self.vhosts)
        self.transactions: Final = Transactions(self.clock, self.vhosts, self.index, self.replicas)
        self.links: Final = Links(self.clock, self.members, self.vhosts)
        self.containers: Final = Containers(self.members, self.vhosts)
        self.pools: Final = Pools(self.clock, self.vhosts, self.index, self.replicas)
        self.launches: Final = Launches(self.clock, self.members, self.levels, self.pools.table)
        self._stored: Final[tuple[Stored, ...]] = (
            self.clock, self.members, self.index, self.vhosts, self.accounts, self.parameters,
            self.levels, self.links, self.containers, self.pools.table,
        )  # fmt: skip
        handlers: dict[type, Handler] = {
            c.AddVhost: self.vhosts.add,
            c.DeleteVhost: self._delete_vhost,
            c.SetVhostLimits: self.vhosts.set_limits,
            c.ClearVhostLimits: self.vhosts.clear_limits,
            c.DeclareExchange: self._declare_exchange,
            c.DeclareChoosingExchange: self.vhosts.declare_choosing_exchange,
            c.DeclareDelayedExchange: self.queues.declare_exchange,
            c.DeclareHistoryExchange: self.queues.declare_exchange,
            c.DeclareDeduplicatingExchange: self.queues.declare_exchange,
            c.DeleteExchange: self._delete_exchange,
            c.KeepDelays: self.queues.keep_delays,
            c.EndDelays: self.queues.end_delays,
            c.Bind: self.vhosts.bind,
            c.Unbind: self.vhosts.unbind,
            c.DeclareQueue: self.queues.declare,
            c.DeleteQueue: self.queues.delete,
            c.PauseQueue: self.queues.pause,
            c.RemoveConnection: self.queues.remove_connection,
            c.ForgetTransient: self._forget_transient,
            c.Loosen: self.cascades.loosen,
            c.PutUser: self.accounts.put_user,
            c.SetUserLimits: self.accounts.set_user_limits,
            c.DeleteUser: self._delete_user,
            c.SetPermission: self.accounts.set_permission,
            c.ClearPermission: self.accounts.clear_permission,
            c.SetTopicPermission: self.accounts.set_topic_permission,
            c.ClearTopicPermission: self.accounts.clear_topic_permission,
            c.PutPolicy: self.policies.put,
            c.DeletePolicy: self.policies.delete,
            c.PutOperatorPolicy: self.policies.put,
            c.DeleteOperatorPolicy: self.policies.delete,
            c.PutParameter: self.parameters.put,
            c.DeleteParameter: self.parameters.delete,
            c.AddMember: self._add_member,
            c.RegisterNode: self._register_node,
            c.FailNode: self._fail_node,
            c.DrainNode: self.membership.drain,
            c.ForgetNode: self._forget_node,
            c.SetVoters: self.membership.set_voters,
            c.ChangeInSync: self.replicas.change_in_sync,
            c.TransferOwner: self.replicas.transfer_owner,
            c.GiveUpCopy: self.replicas.give_up_copy,
            c.ForceOwner: self.replicas.force_owner,
            c.MoveReplica: self.replicas.move_replica,
            c.CommitTransaction: self.transactions.commit,
            c.AbortTransaction: self.transactions.abort,
            c.ExpireTransactions: self.transactions.expire,
            c.ForgetProducers: self.transactions.forget_producers,
            c.FinishSegments: self.transactions.finish_segments,
            c.PassTime: self.clock.pass_time,
            c.RaiseLevel: self.levels.raise_level,
            c.AttachLink: self.links.attach,
            c.SuspendLink: self.links.suspend,
            c.ExpireLink: self.links.expire,
            c.ForgetLink: self.links.forget,
            c.HoldContainer: self.containers.hold,
            c.ReleaseContainer: self.containers.release,
            c.DeclarePool: self.pools.declare,
            c.SetPool: self.pools.set,
            c.PausePool: self.pools.pause,
            c.DeletePool: self.pools.delete,
            c.RequireGroups: self.pools.require,
            c.SettleGroups: self.pools.settle,
            c.UnbindGroup: self.pools.unbind,
            c.BindGroup: self.pools.bind,
            c.DropGroup: self.pools.drop,
            c.EndPoolQueue: self.pools.end_queue,
            c.LaunchWorkers: self.launches.launch_workers,
            c.RetireWorkers: self.launches.retire_workers,
            c.DirectGroup: self.pools.direct,
            c.RevokeWorkers: self.launches.revoke_workers,
            c.WorkersGone: self.launches.workers_gone,
            c.AssignWorkers: self.launches.assign_workers,
            c.RetireKeys: self.launches.retire_keys,
            c.RevokeKeys: self.launches.revoke_keys,
        }
        self.handlers: Final[dict[type, Handler]] = {
            **handlers,
            **{kind: self._closed(handlers[kind]) for kind in CLOSED_TO},
        }

    def fold(self, command: c.AnyCommand, changes: list[Change]) -> Any:
        """Fold a command that is none of an import's. Raises WiringError, then nothing has changed."""
        return self.handlers[type(command)](command, changes)

    def _closed(self, handler: Handler) -> Handler:
        """The handler of commands that never touch what is a pool's."""

        def fold(command: Any, changes: list[Change]) -> Any:
            self.pools.table.refuse(command)
            return handler(command, changes)

        return fold

    def check_room(self, command: c.AnyCommand) -> None:
        """Raise LimitReached for one policy or parameter too many."""
        match command:
            case c.PutPolicy() | c.PutOperatorPolicy():
                self.policies.check_room(command)
            case c.PutParameter():
                self.parameters.check_room(command)

    # ---- commands of several parts ----

    def _delete_vhost(self, command: c.DeleteVhost, changes: list[Change]) -> bool:
        if not self.vhosts.delete(command.name, changes):
            return False
        self.accounts.delete_vhost(command.name, changes)
        self.parameters.delete_vhost(command.name, changes)
        self.links.end_of_vhost(command.name, changes)
        self.containers.end_of_vhost(command.name, changes)
        self.pools.end_of_vhost(command.name, changes)
        changes.append(VhostDeleted(command.name))
        return True

    def _delete_user(self, command: c.DeleteUser, changes: list[Change]) -> bool:
        deleted = self.accounts.delete_user(command, changes)
        if deleted:
            self.links.end_of_user(command.name, changes)
            self.containers.end_of_user(command.name, changes)
        return deleted

    def _forget_transient(self, command: c.ForgetTransient, changes: list[Change]) -> None:
        self.queues.forget_transient(command, changes)
        self._end_process(command.node, changes)

    def _add_member(self, command: c.AddMember, changes: list[Change]) -> Member:
        first = not self.members
        member = self.membership.add(command, changes)
        if first:
            self.links.suspend_all(changes)
            self.containers.end_of_all(changes)
        return member

    def _register_node(self, command: c.RegisterNode, changes: list[Change]) -> Member:
        member = self.membership.register(command, changes)
        self._end_process(member.name, changes)
        return member

    def _fail_node(self, command: c.FailNode, changes: list[Change]) -> bool:
        failed = self.membership.fail(command, changes)
        if failed:
            self._end_process(command.node, changes)
        return failed

    def _forget_node(self, command: c.ForgetNode, changes: list[Change]) -> None:
        self.membership.forget(command, changes)
        self.launches.end_of_place(command.node, changes)
        self._end_process(command.node, changes)

    def _end_process(self, node: NodeId, changes: list[Change]) -> None:
        """What clients had of a process of the node, which is over."""
        self.links.suspend_of(node, changes)
        self.containers.end_of_node(node, changes)

    def _declare_exchange(self, command: c.DeclareExchange, changes: list[Change]) -> Exchange:
        if command.type == STAGING:
            return self.transactions.open(command, changes)
        return self.vhosts.declare_exchange(command, changes)

    def _delete_exchange(self, command: c.DeleteExchange, changes: list[Change]) -> bool:
        segment = self.vhosts.look(command.vhost).ledger.segments.get(command.name)
        if segment is not None:
            return self.transactions.delete(segment, changes)
        return self.vhosts.delete_exchange(command, changes)

    # ---- snapshots ----

    def save(self, snapshot: Snapshot) -> None:
        """Write all parts into a snapshot."""
        for part in self._stored:
            part.save(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Read all parts from a snapshot. KeyError, AssertionError: the snapshot contradicts itself."""
        for part in self._stored:
            part.restore(snapshot)
