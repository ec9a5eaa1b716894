"""As `broker.server.upkeep`: whoever orders the wiring says how time passes in it, and ends what is over.

The wiring log of most seeds has no member that orders it (`atomic_log`); then one of the members does this, until it is
gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.passing import Passing

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World

UPKEEP_S: Final = 5.0
BEGINS_S: Final = 0.2
"""The log's calendar begins before a clock is wrong."""


class Upkeep:
    """Begins with the first call of `look`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._site: Site | None = None
        self._life = 0
        self._passing = Passing()

    def look(self) -> None:
        world = self._world
        begun = world.newest_map.time.wall_ms > 0
        world.schedule.after(UPKEEP_S if begun else BEGINS_S, self.look)
        site = self._who()
        if site is None:
            return
        if (site, site.life) != (self._site, self._life):
            self._site, self._life, self._passing = site, site.life, Passing()
        map_, monotonic_ms, wall_ms = world.newest_map, int(site.boot_s() * 1000), site.wall_ms()
        passing = self._passing
        passing.look(True, map_.time, monotonic_ms, wall_ms)
        lived_ms = passing.lived_ms(monotonic_ms)
        over = tuple(map_.due(lived_ms))
        command = passing.proposal(monotonic_ms, wall_ms, False, wanted=True)
        if command is not None:
            world.control.commit(command)
        for vhost, segments, producers in over:
            if segments:
                command = c.ExpireTransactions(at_ms=wall_ms, vhost=vhost, names=segments, lived_ms=lived_ms)
                world.control.commit(command)
            if producers:
                world.control.commit(c.ForgetProducers(at_ms=wall_ms, vhost=vhost, names=producers, lived_ms=lived_ms))

    def _who(self) -> Site | None:
        """The leader; or, where the log orders itself, the member that does it until it is gone."""
        sites = self._world.sites
        if self._world.raft:
            leader: Site | None = self._world.control.leader()
            return leader
        up = [sites[name] for name in sorted(sites) if sites[name].up]
        chance = self._world.clocks
        if chance is not None and up and chance.random() < 0.5:
            return chance.choice(up)  # an election: any clock may be the one
        return self._site if self._site in up else next(iter(up), None)
