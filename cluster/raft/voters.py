"""Choice of voters: a pure function of the members, and the single steps to it.

Voters are 1, 3 or 5, and 2 when there are just two members: an even number gains no majority over one less. A living
voter stays. A place is filled with the living member that joined first. A dead voter keeps its place while no living
member can take it, since removing it would not make the rest safer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterbroker.cluster.wiring.entities import Member

from .identity import name_of, raft_id


class Candidate(NamedTuple):
    """A member as the choice sees it."""

    raft_id: str
    alive: bool


class Change(NamedTuple):
    """One step: one voter more or less."""

    verb: str
    """"add" or "rem"."""
    raft_id: str


def places(members: int) -> int:
    """How many voters so many members have."""
    if members >= 5:
        return 5
    return 3 if members >= 3 else members


def wanted_voters(members: Sequence[Candidate], voters: Sequence[str]) -> tuple[str, ...]:
    """The voters there should be, sorted; `members` in the order in which they joined."""
    voting = set(voters)
    order = [
        *(m.raft_id for m in members if m.alive and m.raft_id in voting),
        *(m.raft_id for m in members if m.alive and m.raft_id not in voting),
        *(m.raft_id for m in members if not m.alive and m.raft_id in voting),
    ]
    return tuple(sorted(order[: places(len(members))]))


def next_change(wanted: Sequence[str], voters: Sequence[str], ready: Iterable[str], me: str) -> Change | None:
    """The next single step; a voter that is added must be `ready` (has caught up); the leader never removes itself."""
    able = set(ready)
    for voter in wanted:
        if voter not in voters and voter in able:
            return Change("add", voter)
    for voter in voters:
        if voter not in wanted and voter != me and set(wanted) <= set(voters):
            return Change("rem", voter)
    return None


def raft_id_of(member: Member, voters: Sequence[str]) -> str:
    """A member that never registered is known by its place among the founders."""
    if member.disk_id:
        return raft_id(member.name, member.log_id or member.disk_id)
    return next((voter for voter in voters if name_of(voter) == member.name), raft_id(member.name, ""))
