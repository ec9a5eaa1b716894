"""What happens to a node's directory: the edges at which the protocol believes what it is told.

    lose_journal    nothing is where the journal was: a mount is missing. Put back where a copy was the only one
    old_journal     a journal of an earlier start of this node is in its place
    lose_raft       nothing is where the Raft log was

each alone, or with every process killed before; and what happens to its machine:

    pause_machine   it stands still, and its clocks with it: a snapshot, a live migration
    slew            its clocks go faster or slower by 8 %, as chrony may have them, but for the raw one

They have a chance of their own, so that the story of a seed without
them is what it was.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.site import Site

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

EDGES: Final = ("lose_journal", "lose_journal", "old_journal", "lose_raft", "pause_machine", "slew")
RARE_S: Final = 6.0
"""Between two of them, on average; a run that is restricted to some of them has more."""
AIMED_S: Final = 2.0


class Edges:
    """Those of a run. `only`: the faults that may happen, by name; all if empty."""

    def __init__(self, faults: Faults, only: tuple[str, ...] = ()) -> None:
        self.faults = faults
        self.world = faults.world
        self.schedule = self.world.schedule
        self.rng = Random(f"edges {self.schedule.seed}")
        self.names = tuple(name for name in EDGES if not only or name in only)
        self.every_s = AIMED_S if only else RARE_S

    def begin(self) -> None:
        if self.names:
            self.schedule.after(self.rng.expovariate(1 / self.every_s), self._next)

    def _next(self) -> None:
        if not self.faults.active:
            return
        self.begin()
        name = self.rng.choice(self.names)
        if getattr(self, name)():
            self.schedule.counts[f"fault {name}"] += 1

    def _one(self) -> Site | None:
        """Somebody whose directory is whole."""
        sites = [site for site in self.world.sites.values() if not site.journal.lost and not site.voice_lost]
        return self.rng.choice(sites) if sites else None

    def _counts_on_a_lost_disk(self) -> bool:
        """Whether copies might be given up because somebody else has all, whose disk is lost as well: one too many."""
        members = {member.name: member.disk_id for member in self.world.newest_map.members()}
        return any(members.get(site.name, "") not in ("", site.disk_id) for site in self.world.sites.values())

    def _kill(self, site: Site) -> None:
        """It, or all. They come back."""
        for one in tuple(self.world.sites.values()) if self.rng.random() < 0.5 else (site,):
            if one.up:
                one.kill()
            self.schedule.after(self.rng.uniform(0.1, 3), one.start)

    def lose_journal(self) -> bool:
        site = self._one()
        if site is None or site.journal.stamp is None or self._counts_on_a_lost_disk():
            return False
        self._kill(site)
        site.lose_journal()
        return True

    def old_journal(self) -> bool:
        sites = [] if self._counts_on_a_lost_disk() else list(self.world.sites.values())
        self.rng.shuffle(sites)
        for site in sites:
            old = None if site.journal.lost else site.directory.old_copy()
            if old is not None:
                self._kill(site)
                site.lose_journal(old.copy())
                return True
        return False

    def lose_raft(self) -> bool:
        """No second voter may be missing, or there is no majority for ever."""
        site = self._one()
        world = self.world
        if site is None or not world.raft or any(o.voice_lost or o.journal.lost for o in world.sites.values()):
            return False
        voters = [member.name for member in world.newest_map.members() if member.voter]
        if len(voters) < 3:
            return False
        self._kill(site)
        site.lose_raft()
        return True

    def pause_machine(self) -> bool:
        """Perhaps its network comes back later than the machine."""
        up = [site for site in self.world.sites.values() if site.up]
        if not up:
            return False
        site, span_s = self.rng.choice(up), self.rng.choice((0.1, 1.9, 1.9)) + self.rng.uniform(0, 2)
        if self.rng.random() < 0.7:
            self.world.control.cut_off(site.name)
            self.schedule.after(span_s + self.rng.uniform(0.1, 2), self.faults.heal)
        site.pause(span_s, machine=True)
        return True

    def slew(self) -> bool:
        site = self.rng.choice(list(self.world.sites.values()))
        site.slew(self.rng.choice((0.917, 1.083)))
        self.schedule.after(self.rng.uniform(2, 10), site.slew, 1.0)
        return True
