"""Operations of a running node about its cluster (waits).

    members                                   who is there, who votes, who leads, what each owns and holds
    copies                                    how many copies here are not in sync, are critical; caught up or not
    queues                                    every queue: owner, epoch, copies, messages as its owner counts them
    drain [undo]                              this node's queues to others, its clients elsewhere
    leave [timeout_s, force, accept_loss]     this node, once others have copies in the place of its own
    leave member [accept_loss]                a dead one by name
    leave.progress                            what still has to go elsewhere
    queues.move vhost queue to                ownership to another in-sync member
    queues.rebalance                          ownership until each member owns about as many
    queues.force-owner vhost queue to         the last way out: a copy that may lack messages owns the queue
    level.raise [level]                       the cluster's feature level; without a number to what this release knows

A queue's owner alone can hand it over, since its consumers have to stop first. So another member asks it to
(`HandOver`, over the data link), looks at the map for what came of it, and asks again after a while: the request may be
lost with a link, or come at a bad moment, and to come twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.node.messages import HandOver
from clusterbroker.broker.server.control.operations import Facts, Refused
from clusterbroker.broker.server.goodbye import turn_clients_away
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.errors import queue_text
from clusterbroker.cluster.ids import LOCAL_NODE, Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import rebalance, waits_for
from clusterbroker.cluster.wiring.entities import Member, Queue
from clusterbroker.cluster.wiring.levels import LEVEL

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

MOVE_S: Final = 10.0
ASK_AGAIN_S: Final = 0.5
LOOK_S: Final = 0.01
COUNTS_S: Final = 2.0
DRAIN_S: Final = 60.0
MOVES_AT_ONCE: Final = 32


def _cluster(shell: ServerPort) -> ClusterPort:
    if shell.cluster is None:
        raise Refused("this node is alone: start it with --cluster HOST:PORT, then others can join it")
    return shell.cluster


def _queue(shell: ServerPort, asked: Facts) -> Queue:
    vhost, name = asked.get("vhost", "/"), asked.get("queue")
    queue = shell.node.map.queue(str(vhost), str(name))
    if queue is None and (segment := shell.node.map.segment(str(vhost), str(name))) is not None:
        queue = shell.node.map.queue_by_id(segment.queue_id)  # it too may need an owner
    if queue is None:
        raise Refused(f"there is no queue '{name}' in vhost '{vhost}'")
    return queue


def _member(shell: ServerPort, name: Any) -> Member:
    member = shell.node.map.member(NodeId(str(name)))
    if member is None:
        known = ", ".join(member.name for member in shell.node.map.members())
        raise Refused(f"there is no member '{name}': choose of {known}")
    return member


# -- to look at -------------------------------------------------------------------------------------------------


def facts(shell: ServerPort) -> Facts:
    """What `status` tells of a member beside what it tells of any node."""
    cluster, view = _cluster(shell), shell.node.map
    name = NodeId(cluster.name)
    awaited = [f"{member} ({count} queues)" for member, count in waits_for(view).items()]
    return {
        "cluster_id": cluster.mesh.identity.cluster,
        "members": [member.name for member in view.members()],
        "alive": [member.name for member in view.alive_members()],
        "leader": cluster.raft.leader,
        "term": cluster.raft.term,
        "lease": cluster.heart.lease_state().name.lower(),
        "blocked": cluster.blocked(),
        "wiring_index": view.applied,
        "wiring_digest": view.digest(),
        "queues_owned": view.owned(name),
        "replicas_held": view.held(name),
        "draining": cluster.draining,
        "feature_level": view.level,
        "waits_for": awaited,
    }


async def _members(shell: ServerPort, _: Facts) -> Facts:
    cluster, view = _cluster(shell), shell.node.map
    leader = cluster.raft.leader
    clocks = cluster.heart.clocks_ahead_ms()
    return {
        "members": [
            {
                "name": member.name,
                "address": member.address,
                "amqp": list(member.amqp),
                "alive": member.alive,
                "voter": member.name in cluster.raft.voters,
                "leader": member.name == leader,
                "draining": member.draining,
                "leaving": member.leaving,
                "witness": member.witness,
                "owns": view.owned(member.name),
                "holds": view.held(member.name),
                "feature_level": _supported(cluster, member.name),
                "clock_ahead_ms": clocks.get(member.name),
                "trouble": None if member.name == cluster.name else cluster.mesh.trouble(member.name),
            }
            for member in view.members()
        ]
    }


def _supported(cluster: ClusterPort, name: NodeId) -> int | None:
    """The highest feature level that a member's release knows; None: it is not linked."""
    if name == cluster.name:
        return LEVEL
    hello = cluster.mesh.hello(name)
    return None if hello is None else hello.level


async def _copies(shell: ServerPort, _: Facts) -> Facts:
    """Whether this node has all that it shall have, whether it has had that since it began, and whether it may go."""
    if shell.cluster is None:
        return {"behind": 0, "critical": 0, "first": "", "caught_up": True}
    view, name = shell.node.map, NodeId(shell.cluster.name)
    behind = [queue for queue in view.replicas_of(name) if name not in queue.in_sync]
    others = len(view.data_members()) > 1
    critical = [queue for queue in view.replicas_of(name) if others and view.is_critical(queue, name)]
    first = next(iter((*behind, *critical)), None)
    # what no owner brings up to date is nothing to wait for: a queue that is lost would keep all nodes from clients
    shell.cluster.caught_up = shell.cluster.caught_up or not any(queue.owner for queue in behind)
    return {
        "caught_up": shell.cluster.caught_up,
        "behind": len(behind),
        "critical": len(critical),
        "first": "" if first is None else queue_text(first.vhost, first.name),
    }


async def _queues(shell: ServerPort, _: Facts) -> Facts:
    loop, node = shell.loop, shell.node  # of a node that is alone as well
    counted: dict[int, tuple[int, int]] = {}
    all_counted = loop.create_future()
    queues = node.map.queues()
    owned = [queue for queue in queues if queue.owner is not None]

    def count(queue_id: int, ready: int, consumers: int) -> None:
        counted[queue_id] = ready, consumers
        if len(counted) >= len(owned) and not all_counted.done():
            all_counted.set_result(None)

    for queue in owned:
        face = node.vhosts[queue.vhost].queues.get(queue.name)
        if face is not None:
            face.counts(node.now_ms, lambda ready, consumers, queue=queue: count(queue.queue_id, ready, consumers))  # type: ignore[misc]
    shell.schedule()
    if len(counted) < len(owned):
        await asyncio.wait((all_counted,), timeout=COUNTS_S)
    here = shell.options.node.name
    return {"queues": [_row(queue, counted.get(queue.queue_id), here) for queue in queues]}


def _row(queue: Queue, counted: tuple[int, int] | None, here: str) -> Facts:
    def named(node: str) -> str:
        """A node that is alone has another name in its map."""
        return here if node == LOCAL_NODE else node

    ready, consumers = counted if counted is not None else (None, None)
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "owner": None if queue.owner is None else named(queue.owner),
        "epoch": queue.epoch,
        "replicas": list(map(named, queue.replicas)),
        "in_sync": list(map(named, queue.in_sync)),
        "messages": ready,
        "consumers": consumers,
        "waits_for": [] if queue.owner is not None else sorted({*queue.in_sync, *queue.eligible}),
    }


# -- ownership --------------------------------------------------------------------------------------------------


async def _handed_over(shell: ServerPort, queue_id: QueueId, to: NodeId, timeout_s: float) -> Queue | None:
    """The queue once `to` owns it; None: it does not in time, or the queue is gone."""
    node, loop = shell.node, shell.loop
    role = node.role
    assert role is not None, "a member has a role"
    end_s, again_s = loop.time() + timeout_s, loop.time()
    while loop.time() < end_s and not shell.ended.done():
        queue = node.map.queue_by_id(queue_id)
        if queue is None or queue.owner == to:
            return queue
        if loop.time() >= again_s:
            again_s = loop.time() + ASK_AGAIN_S
            if queue.owner == role.name:
                role.hand_over(queue_id, to)
            elif queue.owner is not None:
                role.send(queue.owner, HandOver(queue_id, to))
            shell.schedule()
        await asyncio.sleep(LOOK_S)
    return None


async def _move(shell: ServerPort, asked: Facts) -> Facts:
    cluster, queue, to = _cluster(shell), _queue(shell, asked), _member(shell, asked.get("to"))
    if queue.transient:
        raise Refused(f"queue '{queue.name}' is transient: it lives and dies with '{queue.owner}'")
    if queue.owner is None:
        awaited = ", ".join(sorted({*queue.in_sync, *queue.eligible}))
        raise Refused(f"queue '{queue.name}' has no leader: it waits for {awaited}")
    if to.name not in queue.in_sync or not to.alive:
        choices = ", ".join(name for name in queue.in_sync if name != queue.owner) or "nobody"
        raise Refused(f"'{to.name}' has no copy of queue '{queue.name}' that is in sync: in sync is {choices}")
    moved = await _handed_over(shell, queue.queue_id, to.name, MOVE_S)
    if moved is None:
        now = shell.node.map.queue_by_id(queue.queue_id)
        raise Refused(
            f"queue '{queue.name}' was not handed over within {MOVE_S:g} s: "
            + ("it was deleted" if now is None else f"'{now.owner}' leads it; try again, or look at its log")
        )
    await cluster.barrier()
    return {"owner": moved.owner, "epoch": moved.epoch}


async def _rebalance(shell: ServerPort, _: Facts) -> Facts:
    cluster = _cluster(shell)
    moves: Sequence[tuple[QueueId, NodeId]] = rebalance(shell.node.map)
    moved = 0
    for first in range(0, len(moves), MOVES_AT_ONCE):
        batch = moves[first : first + MOVES_AT_ONCE]
        ends = await asyncio.gather(*(_handed_over(shell, queue_id, to, MOVE_S) for queue_id, to in batch))
        moved += sum(queue is not None for queue in ends)
    await cluster.barrier()
    return {"moved": moved, "left": len(moves) - moved}


async def _force_owner(shell: ServerPort, asked: Facts) -> Facts:
    cluster, queue, to = _cluster(shell), _queue(shell, asked), _member(shell, asked.get("to"))
    applied = await cluster.ordered(c.ForceOwner(queue_id=queue.queue_id, node=to.name))
    if applied.error is not None:
        raise Refused(applied.error.text)
    forced = shell.node.map.queue_by_id(queue.queue_id)
    return {"owner": forced.owner if forced else None, "epoch": forced.epoch if forced else None}


# -- members ----------------------------------------------------------------------------------------------------


async def _drain(shell: ServerPort, asked: Facts) -> Facts:
    from clusterbroker.broker.server.member.leaving import need_somebody_else  # a node that is alone has no use for it

    cluster = _cluster(shell)
    if asked.get("undo"):
        await _order_drained(cluster, False)
        return {"moved": 0, "left": 0}
    need_somebody_else(shell)
    await _order_drained(cluster, True)
    moved, left = await cluster.hand_over_all(DRAIN_S, thoroughly=True)
    await turn_clients_away(shell)
    return {"moved": moved, "left": left}


async def _order_drained(cluster: ClusterPort, draining: bool) -> None:
    applied = await cluster.ordered(c.DrainNode(node=NodeId(cluster.name), draining=draining))
    if applied.error is not None:
        raise Refused(applied.error.text)


async def _leave(shell: ServerPort, asked: Facts) -> Facts:
    from clusterbroker.broker.server.member.leaving import LEAVE_MAX_S, LEAVE_S, about_loss, leave

    cluster, name = _cluster(shell), asked.get("member")
    accept_loss = asked.get("accept_loss") is True
    if name is None or name == cluster.name:
        timeout_s, force = asked.get("timeout_s", LEAVE_S), asked.get("force") is True
        if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= LEAVE_MAX_S:
            raise Refused(f"the time to wait for copies is a number of seconds, {LEAVE_MAX_S:g} at most")
        await leave(shell, cluster, timeout_s, force or accept_loss, accept_loss)
        return {}
    member = _member(shell, name)
    if not cluster.heart.leased():
        raise Refused(
            "this node is in no contact with a majority of the members: what it knows of them may be old, and nothing "
            "can be changed. Start the others; if they are gone for good, stop it and see clusterbroker rescue"
        )
    if member.alive:
        raise Refused(f"member '{name}' is alive: run clusterbroker leave there, or stop it first")
    applied = await cluster.ordered(c.ForgetNode(node=member.name, accept_loss=accept_loss))
    if applied.error is not None:
        raise Refused(about_loss(applied.error.text))
    return {}


async def _raise_level(shell: ServerPort, asked: Facts) -> Facts:
    cluster, view = _cluster(shell), shell.node.map
    level, before = asked.get("level") or LEVEL, view.level
    if not isinstance(level, int) or not 1 <= level <= LEVEL:
        raise Refused(f"this node's release (clusterbroker {VERSION}) knows feature levels 1 to {LEVEL}, not {level}")
    if level == before:
        return {"level": level, "before": before}
    wanting = [why for member in view.members() if (why := _wanting(cluster, member, level))]
    if wanting:
        raise Refused(f"feature level {level} needs all members: {'; '.join(wanting)}")
    members: tuple[tuple[NodeId, Incarnation], ...] = tuple((one.name, one.incarnation) for one in view.members())
    applied = await cluster.ordered(c.RaiseLevel(level=level, members=members))
    if applied.error is not None:
        raise Refused(applied.error.text)
    return {"level": level, "before": before}


def _wanting(cluster: ClusterPort, member: Member, level: int) -> str:
    """Why it is not known that this member can read what a level brings; "" when it is."""
    known = _supported(cluster, member.name)
    if known is None:
        away = f"'{member.name}' is not linked with '{cluster.name}', so its release is not known: start it, or remove "
        return f"{away}it (clusterbroker leave {member.name})" if member.disk_id else ""  # one that has yet to register
    if known >= level:
        return ""
    hello = cluster.mesh.hello(member.name)
    release = VERSION if hello is None else hello.software
    return (
        f"'{member.name}' runs clusterbroker {release}, which knows level {known}: install the release of "
        f"'{cluster.name}' (clusterbroker {VERSION}) or a newer one on it"
    )


async def _leave_progress(shell: ServerPort, _: Facts) -> Facts:
    from clusterbroker.broker.server.member.leaving import progress

    return progress(shell.node.map, NodeId(_cluster(shell).name))


CLUSTER: dict[str, Callable[[ServerPort, Facts], Awaitable[Facts]]] = {
    "members": _members,
    "queues": _queues,
    "copies": _copies,
    "drain": _drain,
    "leave": _leave,
    "leave.progress": _leave_progress,
    "queues.move": _move,
    "queues.rebalance": _rebalance,
    "queues.force-owner": _force_owner,
    "level.raise": _raise_level,
}
