"""`clusterbroker leave`: the permanent departure of this member, without a copy less (waits).

    1  it drains, as one that leaves: nothing new comes, and the leader has its copies made elsewhere (Membership)
    2  it hands over its queues; a queue without another copy in sync gets one first
    3  it waits until no queue counts on its copy: for the given time, or until success is impossible
    4  it asks its clients to go elsewhere, and is forgotten, which the map refuses as long as a queue counts on it
    5  it stays until the others do without its vote, and ends

Without success it stays a member, as it was before, and names the queues; with `force` it leaves anyway, and the
queues have too few copies. A process that ends meanwhile is still leaving at its next start: its copies go elsewhere,
and the command may be repeated, or taken back (`drain --undo`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.control.operations import Facts, Refused
from clusterbroker.broker.server.goodbye import turn_clients_away
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.membership import Short
from clusterbroker.cluster.wiring.view import ClusterView

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ClusterPort, ServerPort

LEAVE_S: Final = 300.0
"""So long others may take to catch up, if nobody says how long."""
LEAVE_MAX_S: Final = 7 * 86400.0
HAND_OVER_S: Final = 60.0
TELL_S: Final = 5.0
LOOK_S: Final = 0.2
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
    """What still has to go elsewhere: how many queues it owns, and how many count on its copy."""
    member = view.member(name)
    leaving = member is not None and member.leaving
    return {"leaving": leaving, "owns": view.owned(name), "counting": sum(1 for _ in view.counting_on(name))}


def about_loss(text: str) -> str:
    """A refusal of the map, in the words of the command."""
    return text.replace("or accept the loss", "or say --accept-loss")


async def leave(shell: ServerPort, cluster: ClusterPort, timeout_s: float, force: bool, accept_loss: bool) -> None:
    """Returns when this node is a member no more. Raises Refused when it is one still."""
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
    """The queues that count on this node's copy still, when the time is over or waiting would not help; else none."""
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
            cluster.say("leaving", f"{len(short)} queues count on a copy here: others catch up")
        await asyncio.sleep(LOOK_S)


def _not_yet(shell: ServerPort, cluster: ClusterPort, end_s: float) -> bool:
    """Whether what was refused may be done yet: somebody fell behind just then, or a queue can be handed over now."""
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
    """This node is taken out of the map. If it was, it stays until the others do without its vote."""
    cluster.leaving = True  # who is failed meanwhile need not begin again
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
