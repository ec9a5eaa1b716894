"""The metadata leader's orders about time, and the end of expired transactions (waits).

Expired are segments without a commit in time, and producers that were silent for longer than they are remembered.
Both follow the log's age (`cluster.passing`), which no wall clock moves.

Every member also compares its clocks with the others': the machine's, and the node's own time, which began with the
machine's at its start. One that is more than a minute away from the median raises the alert `clock.differs` and ends
nothing meanwhile: neither items due in the log nor, at the streams that it owns, old messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.liveness.clocks import DIFFERS_MS
from clusterbroker.cluster.liveness.steady import steady
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.passing import Passing

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort

EVERY_S: Final = 10.0
SOON_S: Final = 1.0
"""As long as no other member has been heard, and when its clock differs from the first that are: a look is no alert."""
AHEAD_MS: Final = 24 * 3_600_000
"""A wall clock that is so far ahead of the log's calendar may be wrong: an operator should know."""
DIFFERS: Final = "clock.differs"
AHEAD: Final = "clock.ahead"


class Upkeep:
    """Looks at the map and at the clocks every EVERY_S."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._passing = Passing()
        self._doubted = False
        self._look()

    def _look(self) -> None:
        shell = self._shell
        if shell.ended.done():
            return
        before, self._doubted = self._doubted, self._compare()
        self._pass_time(self._doubted)
        compared = shell.cluster is None or shell.cluster.heart.clocks_ahead_ms()
        sure = compared and before is self._doubted
        shell.loop.call_later(EVERY_S if sure else SOON_S, self._look)

    def _compare(self) -> bool:
        """Whether this node's clocks are not to be believed."""
        shell = self._shell
        off_ms = 0
        if shell.cluster is not None:
            ahead_ms = shell.clock.wall_ms() - shell.clock.now_ms()
            clocks, now = shell.cluster.heart.clocks, steady()
            off_ms = max((clocks.off_ms(now, own_ms) for own_ms in (0, ahead_ms)), key=abs)
        doubted = abs(off_ms) > DIFFERS_MS
        shell.node.log_clock.doubted = doubted
        name = shell.options.node.name
        if doubted and self._doubted:
            which = "ahead of" if off_ms > 0 else "behind"
            shell.node.alerts.set(
                DIFFERS,
                name,
                f"the clock of {name} is {_span(abs(off_ms))} {which} the other members': it ends nothing by age "
                "meanwhile, and dates messages wrongly; set the clock, and start the node again",
            )
        elif not doubted:
            shell.node.alerts.clear(DIFFERS, name)
        return doubted

    def _pass_time(self, doubted: bool) -> None:
        shell, wiring = self._shell, self._shell.storage.wiring
        orders = shell.cluster is None or shell.cluster.raft.is_leader
        monotonic_ms, wall_ms = shell.clock.monotonic_ms(), shell.clock.wall_ms()
        passing, map_ = self._passing, wiring.map
        passing.look(orders, map_.time, monotonic_ms, wall_ms)
        over = tuple(map_.due(passing.lived_ms(monotonic_ms))) if orders and not doubted else ()
        command = passing.proposal(monotonic_ms, wall_ms, doubted, bool(over))
        if command is not None:
            wiring.propose(command)
        lived_ms = passing.lived_ms(monotonic_ms)
        for vhost, segments, producers in over:
            if segments:
                wiring.propose(c.ExpireTransactions(at_ms=wall_ms, vhost=vhost, names=segments, lived_ms=lived_ms))
            if producers:
                wiring.propose(c.ForgetProducers(at_ms=wall_ms, vhost=vhost, names=producers, lived_ms=lived_ms))
        self._tell_ahead(passing.behind_ms(monotonic_ms, wall_ms))

    def _tell_ahead(self, ahead_ms: int) -> None:
        alerts, name = self._shell.node.alerts, self._shell.options.node.name
        if ahead_ms <= AHEAD_MS:
            alerts.clear(AHEAD, name)
            return
        alerts.set(
            AHEAD,
            name,
            f"the wall clock is {_span(ahead_ms)} ahead of what the wiring log knows: nobody was up for so long, or "
            "the clock is wrong; ages of streams follow it slowly, from ten minutes after its last jump on",
        )


def _span(ms: int) -> str:
    """For people."""
    for unit, name in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes")):
        if ms >= 2 * unit:
            return f"{ms / unit:.1f} {name}"
    return f"{ms / 1000:.0f} s"
