"""The cluster map: the fold of the wiring log, equal on all nodes.

    apply(index, command) -> Applied(result or error, changes)

It is a function of the commands alone: no clock, no chance, no configuration, no iteration in hash order. So
equal logs give equal maps, `digest()` proves it, and a snapshot followed by the tail of the log is the same
as the whole log. A refused command changes nothing; a command that changed nothing has no changes.

The questions that the map answers are in view.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from . import changes as told
from . import commands as c
from .arguments import same
from .cascade import end_piece, is_much, piece
from .changes import Change
from .entities import (
    PARAMETERS_MAX,
    POLICIES_MAX,
    Exchange,
    LogTime,
    OperatorPolicy,
    Parameter,
    Permission,
    Policy,
    Queue,
    TopicPermission,
    User,
    UserLimits,
    Vhost,
    VhostLimits,
)
from .errors import LimitReached, NotFound, PreconditionFailed, Unavailable, WiringError, no_queue, no_vhost
from .exchange_rules import STAGING
from .ids import NTH_BITS, LogIndex, QueueId
from .importing import Importing
from .policies import check_policy
from .queue_rules import check_length
from .snapshot import Snapshot
from .topology import Topology
from .view import DELETED_KEPT, QUEUES_AT_ONCE

DEFAULT_VHOST: Final = "/"
_OF_MANY: Final = (c.ImportDefinitions, c.ApplyImport)


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


class ClusterMap(Importing):
    """Vhosts with their wiring, users, permissions, policies, parameters and members.

    Invariants: (1) commands are applied in ascending index; (2) an error leaves the digest as it was, but that a
    refused part of an import takes those before it away; (3) a command that changed the digest has changes.
    """

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        """A new cluster's map: the default vhost with its exchanges and nobody who may use it."""
        super().__init__()
        self._handlers: dict[type, Callable[[Any, list[Change]], Any]] = {
            c.AddVhost: self._add_vhost,
            c.DeleteVhost: self._delete_vhost,
            c.DeclareExchange: self._declare_exchange,
            c.DeleteExchange: self._delete_exchange,
            c.DeclareQueue: self._declare_queue,
            c.DeleteQueue: self._delete_queue,
            c.PauseQueue: self._pause_queue,
            c.Bind: lambda command, log: self._topology(command).bind(command, log),
            c.Unbind: self._unbind,
            c.RemoveConnection: self._remove_connection,
            c.Loosen: self._loosen,
            c.ForgetTransient: self._forget_transient,
            c.PutUser: self._put_user,
            c.SetUserLimits: self._set_user_limits,
            c.DeleteUser: self._delete_user,
            c.SetPermission: self._set_permission,
            c.ClearPermission: self._clear_permission,
            c.SetTopicPermission: self._set_topic_permission,
            c.ClearTopicPermission: self._clear_topic_permission,
            c.PutPolicy: self._put_policy,
            c.DeletePolicy: self._delete_policy,
            c.PutOperatorPolicy: self._put_operator_policy,
            c.DeleteOperatorPolicy: self._delete_operator_policy,
            c.PutParameter: self._put_parameter,
            c.DeleteParameter: self._delete_parameter,
            c.SetVhostLimits: self._set_vhost_limits,
            c.ClearVhostLimits: self._clear_vhost_limits,
            c.PassTime: self._pass_time,
            **self._membership_handlers(),
            **self._importing_handlers(),
            **self._transaction_handlers(),
        }
        self._add_vhost(c.AddVhost(name=DEFAULT_VHOST), [])

    # ---- the fold ----

    def apply(self, index: LogIndex, command: c.AnyCommand) -> Applied:
        """Apply the next command of the log; WiringErrors become part of the answer."""
        assert index > self._applied, f"command {index} comes after {self._applied}"
        self._applied = index
        log: list[Change] = []
        try:
            self._refuse_contended(command)
            self._check_room(command)
            result = self._carried_out(command, log)
        except WiringError as error:
            assert not log or isinstance(command, c.ImportDefinitions), "a refused command changed nothing"
            return Applied(index, command, error.with_traceback(None), None, tuple(log))
        self._contended(log)
        return Applied(index, command, None, result, tuple(log))

    def _carried_out(self, command: Any, log: list[Change]) -> Any:
        first = len(log)
        result = self._handlers[type(command)](command, log)
        if not isinstance(command, _OF_MANY):  # each of them comes by here
            for change in log[first:]:
                self._index(change)
        return result

    def _new(self) -> ClusterMap:
        return ClusterMap()

    @classmethod
    def restored(cls, snapshot: Snapshot) -> ClusterMap:
        """The map that `snapshot()` was taken of; KeyError or AssertionError when it contradicts itself."""
        self = cls()
        self._vhosts.clear()
        self._applied = snapshot.index
        for vhost in snapshot.vhosts:
            self._vhosts[vhost.name] = Topology(vhost)
        for limits in snapshot.limits:
            self._vhosts[limits.vhost].limits = limits
        for exchange in snapshot.exchanges:
            self._vhosts[exchange.vhost].exchanges[exchange.name] = exchange
        for queue in snapshot.queues:
            self._index(told.QueueDeclared(self._vhosts[queue.vhost].adopt_queue(queue)))
        for binding in snapshot.bindings:
            self._vhosts[binding.vhost].adopt_binding(binding)
        for policy in snapshot.policies:
            self._vhosts[policy.vhost].policies.put(policy)
        for operator_policy in snapshot.operator_policies:
            self._vhosts[operator_policy.vhost].policies.put_operator(operator_policy)
        self._accounts.restore(snapshot.users, snapshot.permissions, snapshot.topic_permissions)
        self._accounts.had_users = bool(snapshot.users or snapshot.deserted)
        for parameter in snapshot.parameters:
            self._parameters[(parameter.vhost, parameter.component, parameter.name)] = parameter
        for member in snapshot.members:
            self._members.put(member)
        for disk in snapshot.forgotten_disks:
            self._members.forbid(disk)
        for producer in snapshot.producers:
            self._vhosts[producer.vhost].ledger.producers[producer.name] = producer
        for segment in snapshot.segments:
            self._vhosts[segment.vhost].ledger.put(segment)
        for time in snapshot.times:
            self._time = time
        self._deleted = dict.fromkeys(snapshot.deleted_queues)
        for header in snapshot.imports:
            self._taken_up(header, list(snapshot.import_commands))
        return self

    # ---- handlers: one per command; checks first, then changes ----

    def _topology(self, command: Any) -> Topology:
        topology = self._vhosts.get(command.vhost)
        if topology is None:
            raise no_vhost(command.vhost)
        return topology

    def _index(self, change: Change) -> None:
        """Keep the indices over all vhosts in step with the begin or end of a queue."""
        match change:
            case told.QueueDeclared(queue=queue):
                self._by_id[queue.queue_id] = queue
                self._members.replaced(None, queue)
                if queue.exclusive_owner is not None:
                    self._exclusive.setdefault(queue.exclusive_owner, {})[queue.queue_id] = queue
            case told.QueueDeleted(queue=queue):
                del self._by_id[queue.queue_id]
                self._members.replaced(queue, None)
                if not queue.transient:
                    self._deleted[queue.queue_id] = None
                    if len(self._deleted) > DELETED_KEPT:
                        del self._deleted[next(iter(self._deleted))]
                if queue.exclusive_owner is not None:
                    owned = self._exclusive[queue.exclusive_owner]
                    del owned[queue.queue_id]
                    if not owned:
                        del self._exclusive[queue.exclusive_owner]

    def _add_vhost(self, command: c.AddVhost, log: list[Change]) -> None:
        check_length("vhost", command.name)
        if command.default_queue_type not in {None, "classic", "quorum"}:
            raise PreconditionFailed(f"unsupported default queue type '{command.default_queue_type}'")
        topology = self._vhosts.get(command.name)
        vhost = Vhost(
            name=command.name,
            description=command.description,
            tags=command.tags,
            metadata=command.metadata,
            default_queue_type=command.default_queue_type,
            tracing=topology is not None and topology.vhost.tracing if command.tracing is None else command.tracing,
        )
        if command.only:
            if topology is None:
                raise no_vhost(command.name)
            vhost = in_part(topology.vhost, vhost, command.only)
        if topology is None:
            topology = self._vhosts[command.name] = Topology(vhost)
            log.append(told.VhostAdded(vhost.name))
            topology.predeclare(log)
            if self._members:
                topology.predeclare_failover(log)
        elif not same(topology.vhost, vhost):
            topology.vhost = vhost
            log.append(told.VhostChanged(vhost.name))

    def _delete_vhost(self, command: c.DeleteVhost, log: list[Change]) -> bool:
        topology = self._vhosts.pop(command.name, None)
        if topology is None:
            return False
        topology.end_everything(log)
        users = self._accounts.delete_vhost(command.name)
        log.extend(told.PermissionChanged(user, command.name) for user in users)
        for key in [key for key in self._parameters if key[0] == command.name]:
            del self._parameters[key]
            log.append(told.ParameterChanged(*key))
        log.append(told.VhostDeleted(command.name))
        return True

    def _declare_exchange(self, command: c.DeclareExchange, log: list[Change]) -> Exchange:
        if command.type == STAGING:
            return self._open_segment(command, log)
        return self._topology(command).declare_exchange(command, log)

    def _delete_exchange(self, command: c.DeleteExchange, log: list[Change]) -> bool:
        topology = self._vhosts.get(command.vhost)
        if topology is not None and command.name in topology.ledger.segments:
            return self._delete_segment(topology, command.name, log)
        return topology is not None and topology.delete_exchange(command, log)

    def _declare_queue(self, command: c.DeclareQueue, log: list[Change]) -> Queue:
        queue_id = QueueId(self._applied | self._nth << NTH_BITS)
        return self._topology(command).declare_queue(queue_id, command, log, self._placed)

    def _delete_queue(self, command: c.DeleteQueue, log: list[Change]) -> bool:
        queue = self._by_id.get(command.queue_id)
        if queue is None or queue.staging or command.epoch not in (0, queue.epoch):
            return False
        self._vhosts[queue.vhost].end_queue(queue, log)
        return True

    def _pause_queue(self, command: c.PauseQueue, log: list[Change]) -> None:
        topology = self._topology(command)
        before = (topology.staged if command.staging else topology.queues).get(command.name)
        if before is None:
            raise no_queue(command.vhost, command.name)
        why = command.why or before.paused_why if command.paused else ""
        if (before.paused, before.paused_why) == (command.paused, why):
            if not command.paused:  # its owner may have set it aside without being able to say so here
                log.append(told.QueuePaused(before))
            return
        queue = topology.adopt_queue(msgspec.structs.replace(before, paused=command.paused, paused_why=why))
        self._by_id[queue.queue_id] = queue
        self._members.replaced(before, queue)
        if queue.exclusive_owner is not None:
            self._exclusive[queue.exclusive_owner][queue.queue_id] = queue
        log.append(told.QueuePaused(queue))

    def _unbind(self, command: c.Unbind, log: list[Change]) -> bool:
        topology = self._vhosts.get(command.vhost)
        return topology is not None and topology.unbind(command, log)

    def _remove_connection(self, command: c.RemoveConnection, log: list[Change]) -> bool:
        queues = self.exclusive_queues(command.connection)[:QUEUES_AT_ONCE]
        for queue in queues:
            self._vhosts[queue.vhost].end_queue(queue, log)
        return bool(queues)

    def _loosen(self, command: c.Loosen, log: list[Change]) -> bool:
        if isinstance(command.ending, c.DeleteVhost):
            whole = self._vhosts.get(command.ending.name)
            if whole is None or not is_much(whole):
                return False
            end_piece(whole, log)
            return is_much(whole)
        for topology, order in self._cascades(command.ending):
            some = piece(order)
            if len(some) < len(order):
                topology.end_some(some, log)
                return True
        return False

    def _forget_transient(self, command: c.ForgetTransient, log: list[Change]) -> None:
        if self._members:
            raise PreconditionFailed(f"'{command.node}' is in a cluster: its transient queues end when it registers")
        if command.alone:
            self._end_all_transient(log)
        else:
            self._end_transient_of(command.node, log)

    def _put_user(self, command: c.PutUser, log: list[Change]) -> None:
        if not command.name:
            raise PreconditionFailed("user name is empty")
        check_length("user", command.name)
        tags, limits = command.tags, command.limits
        present = self._accounts.user(command.name)
        if limits is None:
            limits = UserLimits() if present is None else present.limits
        if command.only_if_hash is not None:
            if present is None or present.password_hash != command.only_if_hash:
                raise PreconditionFailed(f"user '{command.name}' was changed or deleted meanwhile: it stays as it is")
            tags, limits = present.tags, present.limits
        user = User(
            name=command.name,
            password_hash=command.password_hash,
            hash_algorithm=command.hash_algorithm,
            tags=tags,
            limits=limits,
        )
        if command.only:
            user = in_part(self._user(command.name), user, command.only)
        if self._accounts.put_user(user):
            log.append(told.UserChanged(command.name))

    def _set_user_limits(self, command: c.SetUserLimits, log: list[Change]) -> None:
        user = self._user(command.name)
        limits = in_part(user.limits, command.limits, command.only)
        if self._accounts.put_user(replace(user, limits=limits)):
            log.append(told.UserChanged(command.name))

    def _user(self, name: str) -> User:
        user = self._accounts.user(name)
        if user is None:
            raise NotFound(f"user '{name}' not found")
        return user

    def _delete_user(self, command: c.DeleteUser, log: list[Change]) -> bool:
        vhosts = self._accounts.delete_user(command.name)
        if vhosts is None:
            return False
        log.extend(told.PermissionChanged(command.name, vhost) for vhost in vhosts)
        log.append(told.UserChanged(command.name, deleted=True))
        return True

    def _set_permission(self, command: c.SetPermission, log: list[Change]) -> None:
        self._topology(command)
        permission = Permission(
            user=command.user,
            vhost=command.vhost,
            configure=command.configure,
            write=command.write,
            read=command.read,
        )
        if self._accounts.set_permission(permission):
            log.append(told.PermissionChanged(command.user, command.vhost))

    def _clear_permission(self, command: c.ClearPermission, log: list[Change]) -> bool:
        existed = self._accounts.clear_permission(command.user, command.vhost)
        if existed:
            log.append(told.PermissionChanged(command.user, command.vhost))
        return existed

    def _set_topic_permission(self, command: c.SetTopicPermission, log: list[Change]) -> None:
        self._topology(command)
        permission = TopicPermission(
            user=command.user,
            vhost=command.vhost,
            exchange=command.exchange,
            write=command.write,
            read=command.read,
        )
        if self._accounts.set_topic_permission(permission):
            log.append(told.PermissionChanged(command.user, command.vhost))

    def _clear_topic_permission(self, command: c.ClearTopicPermission, log: list[Change]) -> bool:
        existed = self._accounts.clear_topic_permission(command.user, command.vhost, command.exchange)
        if existed:
            log.append(told.PermissionChanged(command.user, command.vhost))
        return existed

    def _check_room(self, command: c.AnyCommand) -> None:
        """Raise LimitReached for one policy or parameter too many. An import is an operator's, and not held to it."""
        match command:
            case c.PutPolicy() | c.PutOperatorPolicy():
                topology = self._vhosts.get(command.vhost)
                operator = isinstance(command, c.PutOperatorPolicy)
                if topology is None or topology.policies.has(command.name, operator=operator):
                    return
                what, limit = "policy", topology.limits.policies_max if topology.limits is not None else None
                count, most = len(topology.policies), POLICIES_MAX if limit is None else limit
            case c.PutParameter():
                if (command.vhost, command.component, command.name) in self._parameters:
                    return
                limit = self.vhost_limits(command.vhost).parameters_max
                count = sum(vhost == command.vhost for vhost, _, _ in self._parameters)
                what, most = "parameter", PARAMETERS_MAX if limit is None else limit
            case _:
                return
        if 0 <= most <= count:
            where = f"in vhost '{command.vhost}'" if command.vhost else "of global parameters"
            raise LimitReached(f"cannot set {what} '{command.name}': {what} limit {where} ({most}) is reached")

    def _put_policy(self, command: c.PutPolicy, log: list[Change]) -> None:
        topology = self._topology(command)
        policy = Policy(
            vhost=command.vhost,
            name=command.name,
            pattern=command.pattern,
            definition=command.definition,
            apply_to=command.apply_to,
            priority=command.priority,
        )
        check_policy(policy)
        if topology.policies.put(policy):
            log.append(told.PolicyChanged(command.vhost, command.name))
            self._settle_eligible(log)

    def _delete_policy(self, command: c.DeletePolicy, log: list[Change]) -> bool:
        topology = self._vhosts.get(command.vhost)
        if topology is None or not topology.policies.delete(command.name):
            return False
        log.append(told.PolicyChanged(command.vhost, command.name))
        self._settle_eligible(log)
        return True

    def _put_operator_policy(self, command: c.PutOperatorPolicy, log: list[Change]) -> None:
        topology = self._topology(command)
        policy = OperatorPolicy(
            vhost=command.vhost,
            name=command.name,
            pattern=command.pattern,
            definition=command.definition,
            apply_to=command.apply_to,
            priority=command.priority,
        )
        check_policy(policy)
        if topology.policies.put_operator(policy):
            log.append(told.PolicyChanged(command.vhost, command.name, operator=True))
            self._settle_eligible(log)

    def _delete_operator_policy(self, command: c.DeleteOperatorPolicy, log: list[Change]) -> bool:
        topology = self._vhosts.get(command.vhost)
        if topology is None or not topology.policies.delete_operator(command.name):
            return False
        log.append(told.PolicyChanged(command.vhost, command.name, operator=True))
        self._settle_eligible(log)
        return True

    def _put_parameter(self, command: c.PutParameter, log: list[Change]) -> None:
        if command.vhost and command.vhost not in self._vhosts:
            raise no_vhost(command.vhost)
        key = (command.vhost, command.component, command.name)
        parameter = Parameter(*key, value=command.value)
        if not same(self._parameters.get(key), parameter):
            self._parameters[key] = parameter
            log.append(told.ParameterChanged(*key))

    def _delete_parameter(self, command: c.DeleteParameter, log: list[Change]) -> bool:
        key = (command.vhost, command.component, command.name)
        if self._parameters.pop(key, None) is None:
            return False
        log.append(told.ParameterChanged(*key))
        return True

    def _set_vhost_limits(self, command: c.SetVhostLimits, log: list[Change]) -> None:
        topology = self._topology(command)
        limits = VhostLimits(
            command.vhost, command.queues_max, command.connections_max, command.bindings_max,
            command.exchange_bindings_max, command.policies_max, command.parameters_max,
        )  # fmt: skip
        if command.only:
            limits = in_part(topology.limits or VhostLimits(command.vhost), limits, command.only)
            if limits == VhostLimits(command.vhost) and topology.limits is None:
                return
        if topology.limits != limits:
            topology.limits = limits
            log.append(told.VhostChanged(command.vhost))

    def _clear_vhost_limits(self, command: c.ClearVhostLimits, log: list[Change]) -> bool:
        topology = self._vhosts.get(command.vhost)
        if topology is None or topology.limits is None:
            return False
        topology.limits = None
        log.append(told.VhostChanged(command.vhost))
        return True

    def _pass_time(self, command: c.PassTime, log: list[Change]) -> None:
        if command.after_ms == self._time.lived_ms < command.lived_ms:
            self._time = LogTime(command.lived_ms, command.wall_ms)
            log.append(told.TimePassed(self._time))


_Row = TypeVar("_Row", Vhost, User, UserLimits, VhostLimits)


def in_part(present: _Row, wanted: _Row, only: tuple[str, ...]) -> _Row:
    """The row that is there, with the fields of the other that are named; none: the other."""
    if not only:
        return wanted
    unknown = [name for name in only if name not in present.__struct_fields__]
    if unknown:
        raise PreconditionFailed(f"no such field: '{unknown[0]}'")
    return replace(present, **{name: getattr(wanted, name) for name in only})
