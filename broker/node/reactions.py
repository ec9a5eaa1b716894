"""The node and the wiring: its reactions to each change, in log order, and the order of what it proposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.node.renewals import keep_delays
from clusterbroker.broker.node.vhost import VirtualHost
from clusterbroker.broker.pools.losses import WorkerEnd
from clusterbroker.cluster.wiring import changes
from clusterbroker.cluster.wiring.commands import AnyCommand, Bind, Ending, Loosen
from clusterbroker.cluster.wiring.deduplication import cache_queue
from clusterbroker.cluster.wiring.delays import delay_queue
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.exchange_rules import DEDUPLICATING, DELAYED, HISTORY, STAGING, routing_type
from clusterbroker.cluster.wiring.histories import history_queue
from clusterbroker.cluster.wiring.map import Applied

if TYPE_CHECKING:
    from clusterbroker.broker.node.counts import Churn
    from clusterbroker.broker.node.log_clock import LogClock
    from clusterbroker.broker.node.member import MemberNode, MemberRole
    from clusterbroker.broker.node.pools import NodePools
    from clusterbroker.broker.node.postponed import Postponed
    from clusterbroker.broker.node.sole_connections import SoleConnections
    from clusterbroker.broker.node.watching import Watching
    from clusterbroker.broker.queues.ring import Ring

    class ReactingNode(MemberNode, Protocol):
        """The node."""

        authorization_generation: int
        churn: Churn
        exchange_count: int
        log_clock: LogClock
        pools: NodePools
        postponed: Postponed
        set_aside: dict[int, Ring]
        sole_connections: SoleConnections
        watching: Watching

        @property
        def role(self) -> MemberRole | None: ...

    from clusterbroker.broker.node.ports import NodeCore


def queue_declared(node: ReactingNode, change: changes.QueueDeclared) -> None:
    assert change.queue.queue_id not in node.set_aside, (
        "an index is given once, also to a queue that nobody knows any more"
    )
    node.churn.queues_created += node.role is None or change.queue.owner == node.options.name
    if node.role is not None:
        node.role.declared(change.queue)
    else:
        node.add_queue(change.queue)


def queue_begins(node: NodeCore, vhost: VirtualHost, entity: Queue) -> None:
    """There is a queue to deliver to: by command, or at the start."""
    if entity.key_bits:
        keep_delays(node, vhost, entity.delays)


def queue_deleted(node: ReactingNode, change: changes.QueueDeleted) -> None:
    entity = change.queue
    vhost = node.vhosts[entity.vhost]
    if (vhost.staging if entity.staging else vhost.queues).pop(entity.name, None) is None:
        return
    if not entity.staging:
        vhost.remove_queue(entity.name)
    if entity.key_bits:
        keep_delays(node, vhost, entity.delays)
    node.streams.deleted(entity.queue_id)
    if node.role is not None:
        node.role.deleted(entity)
    queue = node.queues.pop(entity.queue_id, None)
    if queue is not None:
        node.churn.queues_deleted += 1
        node.moving.lose(queue)
        node.setting_aside.forget(queue)
        node.damages.ended(entity.queue_id)
        queue.drop()
        node.writes.pop(queue, None)
        node.forget_ring(queue.ring)


def queue_paused(node: ReactingNode, change: changes.QueuePaused) -> None:
    queue = node.queues.get(change.queue.queue_id)
    if queue is not None:
        queue.halt(change.queue)
        if change.queue.paused:
            node.setting_aside.began(queue)  # it may be another member that could not read a message
        else:
            node.setting_aside.resumed(queue)
    if node.role is not None:
        node.role.remote_queues.paused(change.queue)


def queue_set(node: ReactingNode, change: changes.QueueSet) -> None:
    entity = change.queue
    if node.role is not None:
        node.role.remote_queues.paused(entity)
    settings = node.map.effective(entity)
    owned, handle = node.queues.get(entity.queue_id), node.vhosts[entity.vhost].queues.get(entity.name)
    if owned is not None:
        owned.entity = entity
        owned.adopt(settings)
    if handle is not None and handle is not owned:
        handle.adopt(settings)


def exchange_declared(node: ReactingNode, change: changes.ExchangeDeclared) -> None:
    exchange = change.exchange
    if exchange.type == STAGING:
        return
    node.exchange_count += 1
    if exchange.name:
        node.vhosts[exchange.vhost].router.add_exchange(
            exchange.name, routing_type(exchange), exchange.arguments,
            node.map.exchange_settings(exchange).alternate_exchange, exchange.internal,
            delay_queue(exchange.name) if exchange.type == DELAYED else None,
            history_queue(exchange.name) if exchange.type == HISTORY else None,
            cache_queue(exchange.name) if exchange.type == DEDUPLICATING else None,
        )  # fmt: skip
        keep_delays(node, node.vhosts[exchange.vhost], exchange.name)


def exchange_deleted(node: ReactingNode, change: changes.ExchangeDeleted) -> None:
    if change.exchange.type == STAGING:
        return
    node.exchange_count -= 1
    vhost = node.vhosts[change.exchange.vhost]
    vhost.remove_exchange(change.exchange.name)
    keep_delays(node, vhost, change.exchange.name)


def segment_known(node: ReactingNode, change: changes.SegmentOpened | changes.SegmentCommitted) -> None:
    node.vhosts[change.segment.vhost].stage(change.segment)
    node.moving.known(change.segment)


def segment_ended(node: ReactingNode, change: changes.SegmentEnded) -> None:
    node.vhosts[change.segment.vhost].unstage(change.segment)
    node.moving.ended(change.segment)


def vhost_added(node: ReactingNode, change: changes.VhostAdded) -> None:
    node.vhosts[change.vhost] = VirtualHost(
        change.vhost,
        node.labour,
        lambda: node.now_ms,
        lambda queue: node.role is None or queue.entity.owner == node.options.name,
    )
    node.watching.review(change.vhost)


def vhost_deleted(node: ReactingNode, change: changes.VhostDeleted) -> None:
    del node.vhosts[change.vhost]
    node.watching.review(change.vhost)
    for connection in tuple(node.clients.values()):
        node.setting_aside.notify(connection, connection.vhost_deleted, change.vhost)


def pool_changed(node: ReactingNode, change: changes.PoolChanged) -> None:
    node.authorization_generation += 1  # whether its workers may call it
    node.pools.pool_changed(change.pool)


def authorization_changed(node: ReactingNode, change: changes.UserChanged | changes.PermissionChanged) -> None:
    node.authorization_generation += 1
    for connection in tuple(node.clients.values()):
        if connection.user == change.user:
            node.setting_aside.notify(connection, connection.review_rights)


def launch_changed(node: ReactingNode, change: changes.LaunchChanged) -> None:
    node.pools.launch_changed(change.launch)
    node.pool_desk.launch_changed(change.launch, ended=False)


def launch_ended(node: ReactingNode, change: changes.LaunchEnded) -> None:
    node.pools.launch_ended(change.launch, WorkerEnd(change.exit_status, change.out_of_memory))
    node.pool_desk.launch_changed(change.launch, True, change.exit_status, change.peak_bytes)


def assignment_changed(node: ReactingNode, change: changes.AssignmentChanged) -> None:
    node.pool_desk.key_changed(change.assignment, ended=False)


def assignment_ended(node: ReactingNode, change: changes.AssignmentEnded) -> None:
    node.pools.key_ended(change.assignment)
    node.pool_desk.key_changed(change.assignment, ended=True)


def level_raised(node: ReactingNode, _change: changes.LevelRaised) -> None:
    node.pool_desk.level_raised()


OF_MEMBERS: Final = {
    changes.MemberChanged: "member_changed",
    changes.MemberForgotten: "member_forgotten",
    changes.OwnerChanged: "owner_changed",
    changes.InSyncChanged: "in_sync_changed",
    changes.ReplicasChanged: "replicas_changed",
    changes.CopyLost: "copy_lost",
}
"""What concerns nodes in a cluster, and the method of theirs."""
WITHOUT: Final = {
    changes.ParameterChanged, changes.ImportChanged, changes.ProducerChanged, changes.ContainerHeld,
}  # fmt: skip
"""What changes nothing of a node."""
REACTIONS: Final[dict[type, Callable[[ReactingNode, Any], None]]] = {
    changes.LevelRaised: level_raised,
    changes.QueueDeclared: queue_declared,
    changes.QueueDeleted: queue_deleted,
    changes.QueuePaused: queue_paused,
    changes.QueueSet: queue_set,
    changes.PoolChanged: pool_changed,
    changes.PoolEnded: lambda node, change: node.pools.pool_ended(change.pool),
    changes.GroupChanged: lambda node, change: node.pools.group_changed(change.group),
    changes.GroupDirected: lambda node, change: node.pools.group_directed(change.group, change.word),
    changes.GroupEnded: lambda node, change: node.pools.group_ended(change.group),
    changes.LaunchChanged: launch_changed,
    changes.LaunchEnded: launch_ended,
    changes.AssignmentChanged: assignment_changed,
    changes.AssignmentEnded: assignment_ended,
    changes.ExchangeDeclared: exchange_declared,
    changes.ExchangeDeleted: exchange_deleted,
    changes.Bound: lambda node, change: node.vhosts[change.binding.vhost].bind(change.binding),
    changes.Unbound: lambda node, change: node.vhosts[change.binding.vhost].unbind(change.binding),
    changes.VhostAdded: vhost_added,
    changes.VhostChanged: lambda node, change: node.watching.review(change.vhost),
    changes.VhostDeleted: vhost_deleted,
    changes.PolicyChanged: lambda node, change: node.postponed.renewals.begin(change.vhost),
    changes.UserChanged: authorization_changed,
    changes.PermissionChanged: authorization_changed,
    changes.LinkAttached: lambda node, change: node.recovery.attached(change),
    changes.LinkSuspended: lambda node, change: node.recovery.suspended(change),
    changes.LinkEnded: lambda node, change: node.recovery.ended(change),
    changes.ContainerLost: lambda node, change: node.sole_connections.lost(change),
    changes.SegmentOpened: segment_known,
    changes.SegmentCommitted: segment_known,
    changes.SegmentEnded: segment_ended,
    changes.TimePassed: lambda node, change: node.log_clock.passed(change.time, node.now_ms),
}


def react(node: ReactingNode, change: changes.Change) -> None:
    """Carries out one change."""
    kind = type(change)
    if kind in OF_MEMBERS:
        if node.role is not None:
            getattr(node.role, OF_MEMBERS[kind])(change)
    elif kind not in WITHOUT:
        REACTIONS[kind](node, change)


def carry_out(node: ReactingNode, happened: Sequence[changes.Change]) -> None:
    """What a command changed; of thousands of queues perhaps later (`broker.node.arrears`)."""
    role = node.role
    if role is not None and role.arrears.takes(happened):
        role.arrears.take(happened)
    else:
        for change in happened:
            node.react(change)
    if role is not None:
        role.changed()


ROUNDS_MAX: Final = 10_000
"""Who declares new things in a vhost that ends does not keep it alive."""


def order(node: NodeCore, command: AnyCommand, done: Callable[[Applied], None]) -> None:
    """Proposes it. A binding to an exchange with a history is answered when that was recalled."""
    if isinstance(command, Bind):
        done = node.histories.after(command, done)
    if isinstance(command, Ending) and node.map.in_pieces(command):
        ending = command
        rounds = iter(range(ROUNDS_MAX))

        def loosened(applied: Applied) -> None:
            more = applied.ok and applied.result and next(rounds, None) is not None
            node.proposals.append((Loosen(ending=ending), loosened) if more else (ending, done))

        node.proposals.append((Loosen(ending=ending), loosened))
    else:
        node.proposals.append((command, done))
