"""The commands that declare, pause and delete queues, and the ends of transient ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from clusterbroker.cluster.errors import PreconditionFailed, no_queue
from clusterbroker.cluster.ids import NodeId

from . import commands as c
from .changes import Change, QueuePaused
from .entities import Exchange, Queue
from .members import Members
from .passing import LogClock
from .queue_index import QueueIndex
from .replicas import Replicas
from .vhosts import Vhosts


@dataclass(slots=True, eq=False)
class Queues:
    """Begins and ends of queues. The queues are the topologies' and the index'."""

    _clock: LogClock
    """Ids of new queues."""
    _members: Members
    _vhosts: Vhosts
    _index: QueueIndex
    _replicas: Replicas
    """Places of new queues."""

    def declare(self, command: c.DeclareQueue, changes: list[Change]) -> Queue:
        """Fold DeclareQueue."""
        topology = self._vhosts.require(command.vhost)
        return topology.declare_queue(self._clock.queue_id(), command, changes, self._replicas.placed)

    def declare_exchange(self, command: c.QueuedExchange, changes: list[Change]) -> Exchange:
        """Fold the declaration of an exchange with a queue: the existing exchange, or a new one with its queue."""
        topology = self._vhosts.require(command.vhost)
        return topology.declare_queued_exchange(self._clock.queue_id(), command, changes, self._replicas.placed)

    def keep_delays(self, command: c.KeepDelays, changes: list[Change]) -> bool:
        """Fold KeepDelays."""
        topology = self._vhosts.by_name.get(command.vhost)
        if topology is None:
            return False
        return topology.keep_delays(self._clock.queue_id(), command, changes, self._replicas.placed)

    def end_delays(self, command: c.EndDelays, changes: list[Change]) -> bool:
        """Fold EndDelays."""
        queue = self._index.by_id.get(command.queue_id)
        if queue is None or not queue.key_bits or queue.epoch != command.epoch:
            return False
        topology = self._vhosts.by_name[queue.vhost]
        if topology.wants_delays(queue):
            return False
        topology.end_queue(queue, changes)
        return True

    def delete(self, command: c.DeleteQueue, changes: list[Change]) -> bool:
        """Fold DeleteQueue."""
        queue = self._index.by_id.get(command.queue_id)
        if queue is None or queue.staging or queue.part_of or command.epoch not in (0, queue.epoch):
            return False
        self._vhosts.by_name[queue.vhost].end_queue(queue, changes)
        return True

    def pause(self, command: c.PauseQueue, changes: list[Change]) -> None:
        """Fold PauseQueue."""
        topology = self._vhosts.require(command.vhost)
        before = (topology.staged if command.staging else topology.queues).get(command.name)
        if before is None:
            raise no_queue(command.vhost, command.name)
        why = command.why or before.paused_why if command.paused else ""
        if (before.paused, before.paused_why) != (command.paused, why):
            queue = topology.adopt_queue(replace(before, paused=command.paused, paused_why=why))
            changes.append(QueuePaused(queue))
        elif not command.paused:  # its owner may have set it aside without being able to order that here
            changes.append(QueuePaused(before))

    def remove_connection(self, command: c.RemoveConnection, changes: list[Change]) -> bool:
        """Fold RemoveConnection."""
        queues = self._index.ending_with(command.connection)
        for queue in queues:
            self._vhosts.by_name[queue.vhost].end_queue(queue, changes)
        return bool(queues)

    def forget_transient(self, command: c.ForgetTransient, changes: list[Change]) -> None:
        """Fold ForgetTransient."""
        if self._members:
            raise PreconditionFailed(f"'{command.node}' is in a cluster: its transient queues end when it registers")
        if command.alone:
            self.end_all_transient(changes)
        else:
            self.end_transient_of(command.node, changes)

    def end_all_transient(self, changes: list[Change]) -> None:
        """A single node has stopped: end every queue and exchange that does not survive a restart."""
        topologies = self._vhosts.by_name.values()
        self._end_transient([queue for topology in topologies for queue in topology.queues.values()], changes)
        for topology in topologies:
            topology.end_transient_exchanges(changes)

    def end_transient_of(self, node: NodeId, changes: list[Change]) -> None:
        """A member has stopped: end its transient queues."""
        self._end_transient(self._index.transient_of(node), changes)

    def _end_transient(self, queues: Iterable[Queue], changes: list[Change]) -> None:
        for queue in queues:
            if queue.transient:
                self._vhosts.by_name[queue.vhost].end_queue(queue, changes)
