"""The vhosts of the cluster with their wiring: one topology for each, and the commands about vhosts and bindings."""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.errors import PreconditionFailed, no_vhost

from . import changes as events
from . import commands as c
from .arguments import same
from .changes import Change
from .entities import Binding, Exchange, OperatorPolicy, Policy, Vhost, VhostLimits, in_part
from .members import Members
from .queue_index import QueueIndex
from .queue_rules import check_length
from .snapshot import Snapshot
from .topology import Topology

NOWHERE: Final = Topology(Vhost(""), QueueIndex(Members()))
"""The wiring of a vhost that does not exist; for reading only."""


class Vhosts:
    """Topologies by the name of their vhost, oldest first."""

    __slots__ = ("_index", "_members", "by_name")

    def __init__(self, members: Members, index: QueueIndex) -> None:
        """No vhost at all. `members`: a cluster has an exchange more in each; `index`: hears of all queues."""
        self._members = members
        self._index = index
        self.by_name: dict[str, Topology] = {}

    def require(self, name: str) -> Topology:
        """The vhost of this name. Raises NotFound."""
        topology = self.by_name.get(name)
        if topology is None:
            raise no_vhost(name)
        return topology

    def look(self, name: str) -> Topology:
        """The vhost of this name for reading: an empty one when there is none."""
        return self.by_name.get(name, NOWHERE)

    def predeclare_failover(self, changes: list[Change]) -> None:
        """The first member has come: each vhost has the exchange of clusters."""
        for topology in self.by_name.values():
            topology.predeclare_failover(changes)

    def copy_vhost(self, name: str, to: Vhosts) -> None:
        """Let another map know this vhost and its limits, without what is in it."""
        topology = self.by_name.get(name)
        if topology is not None:
            copy = to.by_name[name] = Topology(topology.vhost, to._index)
            copy.limits = topology.limits

    # ---- commands ----

    def add(self, command: c.AddVhost, changes: list[Change]) -> None:
        """Fold AddVhost."""
        check_length("vhost", command.name)
        if command.default_queue_type not in {None, "classic", "quorum"}:
            raise PreconditionFailed(f"unsupported default queue type '{command.default_queue_type}'")
        topology = self.by_name.get(command.name)
        traced = topology is not None and topology.vhost.tracing
        vhost = Vhost(
            command.name, command.description, command.tags, command.metadata, command.default_queue_type,
            traced if command.tracing is None else command.tracing,
        )  # fmt: skip
        if command.only:
            vhost = in_part(self.require(command.name).vhost, vhost, command.only)
        if topology is None:
            topology = self.by_name[command.name] = Topology(vhost, self._index)
            changes.append(events.VhostAdded(vhost.name))
            topology.predeclare(changes)
            if self._members:
                topology.predeclare_failover(changes)
        elif not same(topology.vhost, vhost):
            topology.vhost = vhost
            changes.append(events.VhostChanged(vhost.name))

    def set_limits(self, command: c.SetVhostLimits, changes: list[Change]) -> None:
        """Fold SetVhostLimits."""
        topology = self.require(command.vhost)
        limits = VhostLimits(
            command.vhost, command.queues_max, command.connections_max, command.bindings_max,
            command.exchange_bindings_max, command.policies_max, command.parameters_max,
        )  # fmt: skip
        if command.only:
            limits = in_part(topology.limits or VhostLimits(command.vhost), limits, command.only)
            if limits == VhostLimits(command.vhost) and topology.limits is None:
                return
        self._limit(topology, limits, changes)

    def clear_limits(self, command: c.ClearVhostLimits, changes: list[Change]) -> bool:
        """Fold ClearVhostLimits."""
        topology = self.by_name.get(command.vhost)
        return topology is not None and self._limit(topology, None, changes)

    @staticmethod
    def _limit(topology: Topology, limits: VhostLimits | None, changes: list[Change]) -> bool:
        if topology.limits == limits:
            return False
        topology.limits = limits
        changes.append(events.VhostChanged(topology.vhost.name))
        return True

    def declare_exchange(self, command: c.DeclareExchange, changes: list[Change]) -> Exchange:
        """Fold DeclareExchange, but of a staging exchange."""
        return self.require(command.vhost).declare_exchange(command, changes)

    def declare_choosing_exchange(self, command: c.DeclareChoosingExchange, changes: list[Change]) -> Exchange:
        """Fold DeclareChoosingExchange."""
        return self.require(command.vhost).declare_choosing_exchange(command, changes)

    def delete_exchange(self, command: c.DeleteExchange, changes: list[Change]) -> bool:
        """Fold DeleteExchange, but of a staging exchange."""
        topology = self.by_name.get(command.vhost)
        return topology is not None and topology.delete_exchange(command, changes)

    def bind(self, command: c.Bind, changes: list[Change]) -> Binding:
        """Fold Bind."""
        return self.require(command.vhost).bind(command, changes)

    def unbind(self, command: c.Unbind, changes: list[Change]) -> bool:
        """Fold Unbind."""
        topology = self.by_name.get(command.vhost)
        return topology is not None and topology.unbind(command, changes)

    def delete(self, name: str, changes: list[Change]) -> bool:
        """End a vhost and all that is in it; whether it existed."""
        topology = self.by_name.pop(name, None)
        if topology is None:
            return False
        topology.end_everything(changes)
        return True

    # ---- snapshots ----

    def save(self, snapshot: Snapshot) -> None:
        """Write this part of the map into a snapshot."""
        topologies = self.by_name.values()
        snapshot.vhosts = [t.vhost for t in topologies]
        snapshot.limits = [t.limits for t in topologies if t.limits is not None]
        snapshot.exchanges = [exchange for t in topologies for exchange in t.exchanges.values()]
        snapshot.queues = [queue for t in topologies for queue in (*t.queues.values(), *t.staged.values())]
        snapshot.bindings = [binding for t in topologies for binding in t.bindings]
        snapshot.policies = [policy for t in topologies for policy in t.policies.policies()]
        snapshot.operator_policies = [policy for t in topologies for policy in t.policies.operator_policies()]
        snapshot.producers = [producer for t in topologies for producer in t.ledger.producers.values()]
        snapshot.segments = [segment for t in topologies for segment in t.ledger.segments.values()]

    def restore(self, snapshot: Snapshot) -> None:
        """Read this part of the map from a snapshot. KeyError, AssertionError: the snapshot contradicts itself."""
        self.by_name.clear()
        for vhost in snapshot.vhosts:
            self.by_name[vhost.name] = Topology(vhost, self._index)
        for limits in snapshot.limits:
            self.by_name[limits.vhost].limits = limits
        for exchange in snapshot.exchanges:
            self.by_name[exchange.vhost].exchanges[exchange.name] = exchange
        for queue in snapshot.queues:
            self.by_name[queue.vhost].adopt_queue(queue)
        for binding in snapshot.bindings:
            self.by_name[binding.vhost].adopt_binding(binding)
        policies: list[Policy | OperatorPolicy] = [*snapshot.policies, *snapshot.operator_policies]
        for policy in policies:
            self.by_name[policy.vhost].policies.put(policy)
        for producer in snapshot.producers:
            self.by_name[producer.vhost].ledger.producers[producer.name] = producer
        for segment in snapshot.segments:
            self.by_name[segment.vhost].ledger.put(segment)
