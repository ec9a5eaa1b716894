"""The commands about policies and runtime parameters, and how many of each a vhost may have.

The limits hold for single commands. An import is an operator's, and not held to them.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterbroker.cluster.errors import LimitReached

from . import commands as c
from .arguments import same
from .changes import Change, ParameterChanged, PolicyChanged
from .entities import PARAMETERS_MAX, POLICIES_MAX, OperatorPolicy, Parameter, Policy
from .policies import check_policy
from .snapshot import Snapshot
from .vhosts import Vhosts


class Policies:
    """Policies and operator policies of all vhosts. The tables are the topologies'."""

    __slots__ = ("_settled", "_vhosts")

    def __init__(self, vhosts: Vhosts, settled: Callable[[list[Change]], None]) -> None:
        """`settled`: adapts the queues after a change of policies, and appends what it changed."""
        self._vhosts = vhosts
        self._settled = settled

    def check_room(self, command: c.PutPolicy | c.PutOperatorPolicy) -> None:
        """Raise LimitReached for one policy too many."""
        topology = self._vhosts.look(command.vhost)
        if topology.policies.get(command.name, operator=isinstance(command, c.PutOperatorPolicy)) is None:
            limit = None if topology.limits is None else topology.limits.policies_max
            most = POLICIES_MAX if limit is None else limit
            _check_room("policy", command.name, command.vhost, len(topology.policies), most)

    def put(self, command: c.PutPolicy | c.PutOperatorPolicy, changes: list[Change]) -> None:
        """Fold PutPolicy or PutOperatorPolicy."""
        topology = self._vhosts.require(command.vhost)
        operator = isinstance(command, c.PutOperatorPolicy)
        policy = (OperatorPolicy if operator else Policy)(
            command.vhost, command.name, command.pattern, command.definition, command.apply_to, command.priority
        )
        check_policy(policy)
        if topology.policies.put(policy):
            changes.append(PolicyChanged(command.vhost, command.name, operator))
            self._settled(changes)

    def delete(self, command: c.DeletePolicy | c.DeleteOperatorPolicy, changes: list[Change]) -> bool:
        """Fold DeletePolicy or DeleteOperatorPolicy."""
        topology = self._vhosts.by_name.get(command.vhost)
        operator = isinstance(command, c.DeleteOperatorPolicy)
        if topology is None or not topology.policies.delete(command.name, operator=operator):
            return False
        changes.append(PolicyChanged(command.vhost, command.name, operator))
        self._settled(changes)
        return True


class Parameters:
    """Runtime parameters by (vhost, component, name), oldest first; vhost "" for global ones."""

    __slots__ = ("_by_key", "_vhosts")

    def __init__(self, vhosts: Vhosts) -> None:
        """No parameters."""
        self._vhosts = vhosts
        self._by_key: dict[tuple[str, str, str], Parameter] = {}

    def get(self, vhost: str, component: str, name: str) -> Parameter | None:
        """A runtime parameter."""
        return self._by_key.get((vhost, component, name))

    def all(self) -> tuple[Parameter, ...]:
        """All runtime parameters, oldest first."""
        return tuple(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def check_room(self, command: c.PutParameter) -> None:
        """Raise LimitReached for one parameter too many."""
        if (command.vhost, command.component, command.name) in self._by_key:
            return
        limits = self._vhosts.look(command.vhost).limits
        limit = None if limits is None else limits.parameters_max
        count = sum(vhost == command.vhost for vhost, _, _ in self._by_key)
        _check_room("parameter", command.name, command.vhost, count, PARAMETERS_MAX if limit is None else limit)

    def put(self, command: c.PutParameter, changes: list[Change]) -> None:
        """Fold PutParameter."""
        if command.vhost:
            self._vhosts.require(command.vhost)
        key = (command.vhost, command.component, command.name)
        parameter = Parameter(*key, command.value)
        if not same(self._by_key.get(key), parameter):
            self._by_key[key] = parameter
            changes.append(ParameterChanged(*key))

    def delete(self, command: c.DeleteParameter, changes: list[Change]) -> bool:
        """Fold DeleteParameter."""
        key = (command.vhost, command.component, command.name)
        if self._by_key.pop(key, None) is None:
            return False
        changes.append(ParameterChanged(*key))
        return True

    def delete_vhost(self, vhost: str, changes: list[Change]) -> None:
        """A vhost has ended, and its parameters with it."""
        for key in [key for key in self._by_key if key[0] == vhost]:
            del self._by_key[key]
            changes.append(ParameterChanged(*key))

    def copy_parameter(self, vhost: str, component: str, name: str, to: Parameters) -> None:
        """Let another map know this parameter, if it is there."""
        key = (vhost, component, name)
        if key in self._by_key:
            to._by_key[key] = self._by_key[key]

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        snapshot.parameters = list(self._by_key.values())

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot."""
        for parameter in snapshot.parameters:
            self._by_key[(parameter.vhost, parameter.component, parameter.name)] = parameter


def _check_room(what: str, name: str, vhost: str, count: int, most: int) -> None:
    if 0 <= most <= count:
        where = f"in vhost '{vhost}'" if vhost else "of global parameters"
        raise LimitReached(f"cannot set {what} '{name}': {what} limit {where} ({most}) is reached")
