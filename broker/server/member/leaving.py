"""Departure of this member: `clusterbroker leave`, and the hand-over of all its queues (waits).

    1  drain, as one that leaves: nothing new comes, and the leader has its copies made elsewhere (Membership)
    2  hand over the queues; a queue without another copy in sync gets one first
    3  wait until no queue counts on the copy here: for the given time, or until success is impossible
    4  ask the clients to go elsewhere, and be forgotten, which the map refuses as long as a queue counts on this node
    5  stay until the others do without this node's vote, then end

Without success the node stays a member, as before, and names the queues; with `force` it leaves anyway, and queues have
too few copies. A process that ends meanwhile is still leaving at its next start: its copies go elsewhere, and the
command may be repeated, or taken back (`drain --undo`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.control.operations import Facts, Refused
from clusterbroker.broker.server.goodbye import turn_clients_away
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import MOVES_AT_ONCE, Load
from clusterbroker.cluster.wiring.entities import Member, Queue
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.membership import Short
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

LEAVE_S: Final = 300.0
"""Time for others to catch up, if the command names none."""
LEAVE_MAX_S: Final = 7 * 86400.0
HAND_OVER_S: Final = 60.0
TELL_S: Final = 5.0
LOOK_S: Final = 0.2
MOVED_S: Final = 0.02
HAND_OVERS_AT_ONCE: Final = 256
"""Each has a deadline and holds up its queue's clients, and all wait in one line, the metadata log's."""
ASK_AGAIN_S: Final = 1.0
"""An order for another copy without any effect is repeated after so long."""
LOOK_AT_VOTERS_S: Final = 0.01
RETIRE_S: Final = 15.0
ABDICATE_S: Final = 5.0
NAMED_MAX: Final = 10


def need_somebody_else(shell: ServerPort) -> None:
    """Raises Refused when no other member could take over queues now."""
    others = [
        member
        for member in shell.node.map.data_members()
        if member.name != shell.node.options.name and member.alive and not member.draining
    ]
    if not others:
        raise Refused("there is no other member that is alive and could take over: start or join one first")


def progress(view: ClusterView, name: NodeId) -> Facts:
    """How many queues the member still owns, and how many count on its copy."""
    member = view.member(name)
    leaving = member is not None and member.leaving
    return {"leaving": leaving, "owns": view.owned(name), "counting": sum(1 for _ in view.counting_on(name))}


def about_loss(text: str) -> str:
    """A refusal of the map in the command's words."""
    return text.replace("or accept the loss", "or say --accept-loss")


async def leave(shell: ServerPort, cluster: ClusterPort, timeout_s: float, force: bool, accept_loss: bool) -> None:
    """Returns when this node is no member any more. Raises Refused when it stays one."""
    before = shell.node.map.member(NodeId(cluster.name))
    assert before is not None, "who runs is a member"
    if not before.witness:
        need_somebody_else(shell)
    end_s = shell.loop.time() + timeout_s
    await _drained(cluster, draining=True, leaving=True)
    while True:
        await cluster.hand_over_all(HAND_OVER_S, thoroughly=True)
        short = await _awaited(shell, cluster, end_s)
        if short and not force:
            await _stay(cluster, before)
            raise Refused(_about_copies(cluster.name, short))
        await turn_clients_away(shell)
        applied = await _forgotten(shell, cluster, accept_loss, bool(short))
        if applied.error is None:
            break
        if not _not_yet(shell, cluster, end_s):
            await _stay(cluster, before)
            raise Refused(about_loss(applied.error.text))
    shell.loop.call_soon(shell.retired.set)  # the answer goes out first


async def _awaited(shell: ServerPort, cluster: ClusterPort, end_s: float) -> list[Short]:
    """Queues that still count on this node's copy once the time is over or waiting is of no use; else none."""
    loop, name = shell.loop, NodeId(cluster.name)
    tell_s = loop.time()
    while True:
        member = shell.node.map.member(name)
        if member is None or not member.leaving:
            raise Refused(f"'{name}' stays: it was told so meanwhile (drain --undo)")
        short = list(shell.node.map.counting_on(name))
        if not short or loop.time() >= end_s or shell.ended.done() or not any(one.hopeful for one in short):
            return short
        if loop.time() >= tell_s:
            tell_s = loop.time() + TELL_S
            cluster.log_line("leaving", f"{len(short)} queues count on a copy here: others catch up")
        await asyncio.sleep(LOOK_S)


def _not_yet(shell: ServerPort, cluster: ClusterPort, end_s: float) -> bool:
    """Whether a refused departure may succeed yet: a replica fell behind just then, or a queue can be handed over."""
    view, name = shell.node.map, NodeId(cluster.name)
    return any(view.counting_on(name)) or (bool(view.owned(name)) and shell.loop.time() < end_s)


def _about_copies(name: str, short: list[Short]) -> str:
    named = [f"'{one.queue.name}' {one.in_sync} of {one.wanted}" for one in short[:NAMED_MAX]]
    more = f", and {len(short) - NAMED_MAX} more" if len(short) > NAMED_MAX else ""
    what = "others are catching up: give it more time (--timeout)"
    if not any(one.hopeful for one in short):
        what = "no other member can hold a copy now: start or join one"
    return (
        f"without '{name}' these queues had fewer copies in sync than they shall have: {', '.join(named)}{more}; "
        f"{what}, or say --force"
    )


async def _drained(cluster: ClusterPort, draining: bool, leaving: bool) -> None:
    applied = await cluster.ordered(c.DrainNode(node=NodeId(cluster.name), draining=draining, leaving=leaving))
    if applied.error is not None:
        raise Refused(applied.error.text)


async def _stay(cluster: ClusterPort, before: Member) -> None:
    await _drained(cluster, before.draining, before.leaving)


async def _forgotten(shell: ServerPort, cluster: ClusterPort, accept_loss: bool, accept_fewer: bool) -> Applied:
    """This node is taken out of the map; then it stays until the others do without its vote."""
    cluster.leaving = True  # failed meanwhile, it need not begin again
    command = c.ForgetNode(node=NodeId(cluster.name), accept_loss=accept_loss, leaves=True, accept_fewer=accept_fewer)
    applied = await cluster.ordered(command)
    if applied.error is not None:
        cluster.stays()
        return applied
    end_s = shell.loop.time() + RETIRE_S
    while cluster.name in cluster.raft.voters and shell.loop.time() < end_s and not shell.ended.done():
        if cluster.raft.is_leader:
            cluster.raft.abdicate(ABDICATE_S)  # a leader never removes itself
        await asyncio.sleep(LOOK_AT_VOTERS_S)
    return applied


async def hand_over_all(shell: ServerPort, timeout_s: float, thoroughly: bool = False) -> tuple[int, int]:
    """Hands every queue to another in-sync member, as far as there is one: (handed over, left here).

    `thoroughly`: a queue that nobody else can own now gets another copy first, if a member can hold one.
    """
    node, loop = shell.node, shell.loop
    role = node.role
    assert role is not None, "a member has a role"
    end_s = loop.time() + timeout_s
    first: int | None = None
    copying: dict[int, float] = {}  # queues for which another copy was ordered, and when, s
    while True:
        owned = [queue for queue in node.queues.values() if queue.ring.replicated]
        left = [queue for queue in owned if thoroughly or heirs(node.map, queue.entity)]
        first = len(left) if first is None else first
        if not left or loop.time() >= end_s or shell.ended.done():
            return first - len(left), len(left)
        now_s = loop.time()
        copying = {queue.entity.queue_id: at_s for queue in left if (at_s := copying.get(queue.entity.queue_id))}
        moving = 0
        for queue in left:
            queue_id = queue.entity.queue_id
            able = heirs(node.map, queue.entity)
            if able:
                copying.pop(queue_id, None)
                if moving < HAND_OVERS_AT_ONCE:
                    to = min(able, key=lambda name: (node.map.owned(name), name))
                    role.hand_over(queue_id, to)
                    moving += role.copying.primary.moves(queue_id)
            elif (asked_s := copying.get(queue_id)) is None and len(copying) >= MOVES_AT_ONCE:
                continue
            elif asked_s is not None and now_s - asked_s < ASK_AGAIN_S:
                continue  # the order waits in a line with all others of this node
            elif (move := one_copy_more(node.map, queue.entity)) is not None:
                copying[queue_id] = now_s
                shell.storage.wiring.propose(move)
        shell.schedule()
        await asyncio.sleep(max(MOVED_S, loop.time() - now_s))


def heirs(view: ClusterView, entity: Queue) -> list[NodeId]:
    """Members that could own the queue instead of its owner."""
    members = (view.member(name) for name in entity.in_sync if name != entity.owner)
    return [member.name for member in members if member is not None and member.alive and not member.draining]


def one_copy_more(view: ClusterView, entity: Queue) -> c.MoveReplica | None:
    """An order for a copy elsewhere; None: there is one, or no member can hold it."""
    load = Load(view)
    if any(name in load.ready for name in entity.replicas):
        return None
    to = load.emptiest(entity)
    return None if to is None else c.MoveReplica(queue_id=entity.queue_id, add=(to,))
