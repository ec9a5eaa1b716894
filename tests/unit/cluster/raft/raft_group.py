"""Guarded cores in memory, whose messages a test carries by hand."""

from __future__ import annotations

import random

from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.core import Core
from clusterbroker.cluster.raft.fold import REGULAR
from clusterbroker.cluster.raft.journal import NO_OP, Journal
from clusterbroker.cluster.raft.messages import Entry
from clusterbroker.cluster.raft.snapshots import Snapshots, StoredSnapshot
from tests.simulation.raft.sim_disk import SimDisk


class Member:
    """A core whose machine is the list of what was applied."""

    def __init__(self, name: str, voters: tuple[str, ...], *, founded: bool = True) -> None:
        self.name = name
        self.disk = SimDisk(name, random.Random(1))
        self.applied: list[bytes] = []
        self.sent: list[tuple[str, m.AnyMessage]] = []
        snapshots = Snapshots(self.disk, self.dump)
        journal = Journal(self.disk)
        stored = None
        if founded:
            first: tuple[Entry, Entry] = ((NO_OP, 2, 0), (NO_OP, 3, 0))
            stored = StoredSnapshot(*first, voters, (), 3, ())
            snapshots.write(stored)
            journal.align(*first)
        self.core = Core(
            name,
            stored,
            journal,
            snapshots,
            self,
            send=lambda to, message: self.sent.append((to, message)),
            chance=lambda: 0.5,
            now_s=1.0,
        )

    def apply(self, index: int, entry: bytes) -> None:
        if entry[:1] == REGULAR:
            self.applied.append(entry)

    def restore(self, stored: StoredSnapshot) -> None:
        self.applied = list(stored.chunks)

    def dump(self, previous: Entry, last: Entry) -> StoredSnapshot:
        return StoredSnapshot(previous, last, self.core.voters_at_applied(), (), last[1], tuple(self.applied))

    def turn(self) -> list[tuple[str, m.AnyMessage]]:
        """One turn; what it sent."""
        self.core.turn()
        self.core.flush()
        sent, self.sent = self.sent, []
        return sent

    def log(self) -> list[tuple[int, int]]:
        """(index, term) of every entry."""
        return [(index, term) for _, index, term in self.core.journal[:]]


class Group:
    """Members that are linked to each other; `carry` brings messages until nobody has any."""

    def __init__(self, *names: str, learners: tuple[str, ...] = ()) -> None:
        self.members = {name: Member(name, names) for name in names}
        self.members |= {name: Member(name, names, founded=False) for name in learners}
        self.now_s = 1.0
        self.deaf: set[str] = set()
        for one in self.members.values():
            for other in self.members:
                if other != one.name:
                    one.core.linked(other)

    def carry(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            moved = False
            for member in self.members.values():
                if member.name in self.deaf:
                    continue
                for to, message in member.turn():
                    if to not in self.deaf:
                        moved = True
                        self.members[to].core.received(member.name, m.decode(m.encode(message)))
            if not moved:
                return

    def pass_time(self, span_s: float) -> None:
        end_s = self.now_s + span_s
        while self.now_s < end_s:
            self.now_s += 0.05
            for member in self.members.values():
                member.core.tick(self.now_s)
            self.carry()

    def elect(self, name: str) -> Member:
        """Let this one lead."""
        member = self.members[name]
        for _ in range(100):
            for other in self.members.values():
                other.core._heard_s = -100.0
                other.core._election_s = self.now_s if other is member else self.now_s + 5
            self.carry()
            if member.core.leads:
                return member
        raise AssertionError(f"{name} was not elected")
