"""Commands that a node proposes by itself: about time, imports of definitions, queues of delays in keys, and the first
user (waits).

*Time* is the metadata leader's. Expired are segments without a commit in time, and producers that were silent for
longer than they are remembered. Both follow the log's age (`cluster.passing`), which no wall clock moves. Every member
also compares its clocks with the others': the machine's, and the node's own time, which began with the machine's at its
start. One that is more than a minute away from the median raises the alert `clock.differs` and ends nothing meanwhile:
neither items due in the log nor, at the streams that it leads, old messages.

*Imports* are brought to their end by the leader; every node looks, so the next leader goes on.

    accepted    the next slice, as soon as the one before is applied
    staged      dropped after ABANDONED_S without progress: its proposer is gone

*Delays in keys*: who orders the log makes the queues that policies want (`cluster.wiring.delay_bits`), after a command
that makes one wanted, and every EVERY_S.

A slice says where it begins, so one that is proposed twice is carried out once. Slices are small, and the loop has its
turn between two.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.liveness.clocks import DIFFERS_MS
from clusterbroker.cluster.liveness.steady import steady
from clusterbroker.cluster.passwords import SCRYPT, hashed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.changes import ExchangeDeclared, PolicyChanged, QueueDeleted
from clusterbroker.cluster.wiring.passing import Passing

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ServerPort
    from clusterbroker.cluster.wiring.map import Applied

EVERY_S: Final = 10.0
SOON_S: Final = 1.0
"""Without a beat of another member yet, and after a first look at which clocks differ: one look is no alert."""
AHEAD_MS: Final = 24 * 3_600_000
"""A wall clock so far ahead of the log's calendar may be wrong, which an operator should know."""
DIFFERS: Final = "clock.differs"
AHEAD: Final = "clock.ahead"
AGAIN_S: Final = 0.5
"""A slice not applied by then is proposed again: the leader has changed, or a member is missing."""
ABANDONED_S: Final = 15.0
GUEST_HASH: Final = "$scrypt$ln=14,r=8,p=1$Y2x1c3RlcmJyb2tlci0wMA$ZnLafsfnVR9QKJnC/OhXEnONAR2QHZEcGvrP2rrTeVE"
"""Of the well-known password: a salt of its own would protect nothing, and take a first start 50 ms."""


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
        """Whether this node's clocks are wrong."""
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
        self._check_ahead(passing.behind_ms(monotonic_ms, wall_ms))

    def _check_ahead(self, ahead_ms: int) -> None:
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


class Imports:
    """Looks at the map after every command, as long as it has an import."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._wiring = shell.storage.wiring
        self._timer: asyncio.TimerHandle | None = None
        self._place: tuple[str, int, int] | None = None
        self._since_s = 0.0
        self._wiring.listen(self._applied)
        self._review()

    def _applied(self, _applied: Applied) -> None:
        if self._wiring.map.importing is not None:
            self._shell.loop.call_soon(self._review)

    @property
    def _leads(self) -> bool:
        return self._shell.cluster is None or self._shell.cluster.raft.is_leader

    def _again(self) -> None:
        self._timer = None
        self._review(again=True)

    def _review(self, again: bool = False) -> None:
        """Proposes the next step of the import: once, and again when nothing came of it."""
        held = self._wiring.map.importing
        if held is None or self._shell.ended.done():
            self._place = None
            return
        if self._timer is None:
            self._timer = self._shell.loop.call_later(AGAIN_S, self._again)
        now_s = self._shell.loop.time()
        place = (held.import_id, held.parts, held.done)
        if place != self._place:
            self._place, self._since_s = place, now_s
            again = True
        if not self._leads:
            return
        if held.accepted and again:
            count = self._wiring.map.next_slice(held.commands, held.done)
            self._wiring.propose(c.ApplyImport(import_id=held.import_id, start=held.done, count=count))
        elif not held.accepted and now_s - self._since_s > ABANDONED_S:
            self._wiring.propose(c.DropImport(import_id=held.import_id))


class KeyDelays:
    """Orders the queues in which messages with delays in their keys wait."""

    def __init__(self, shell: ServerPort) -> None:
        self._shell = shell
        self._wiring = shell.storage.wiring
        self._wiring.listen(self._applied)
        self._look()

    def _look(self) -> None:
        if self._shell.ended.done():
            return
        for vhost in self._wiring.map.vhosts():
            self._order(vhost.name)
        self._shell.loop.call_later(EVERY_S, self._look)

    def _applied(self, applied: Applied) -> None:
        for change in applied.changes:
            match change:
                case PolicyChanged(vhost=vhost):
                    self._soon(vhost, None)
                case ExchangeDeclared(exchange=exchange):
                    self._soon(exchange.vhost, exchange.name)
                case QueueDeleted(queue=queue) if queue.key_bits:
                    self._soon(queue.vhost, queue.delays)

    def _soon(self, vhost: str, exchange: str | None) -> None:
        if self._leads and self._wiring.map.lacking_delays(vhost, exchange):
            self._shell.loop.call_soon(self._order, vhost, exchange)

    @property
    def _leads(self) -> bool:
        return self._shell.cluster is None or self._shell.cluster.raft.is_leader

    def _order(self, vhost: str, exchange: str | None = None) -> None:
        if self._leads and not self._shell.ended.done():
            at_ms = self._shell.clock.wall_ms()
            for name in self._wiring.map.lacking_delays(vhost, exchange):
                self._wiring.propose(c.KeepDelays(at_ms=at_ms, vhost=vhost, exchange=name))


def begin(shell: ServerPort) -> None:
    """Looks from now on at what the node has to propose."""
    Imports(shell)
    Upkeep(shell)
    KeyDelays(shell)


async def first_user(shell: ServerPort) -> None:
    """Makes the default user of a broker that never had one; a deleted user does not come back."""
    name, password = shell.options.default_user, shell.options.default_password
    if not name or shell.node.map.had_users:
        return
    if (name, password) == ("guest", "guest"):
        stored = GUEST_HASH
    else:
        stored = await asyncio.to_thread(hashed, password, cost=shell.options.password_cost)
    shell.logins.credentials.remember(name, stored, SCRYPT, password.encode())
    # a member may have to wait for others
    ordered = shell.propose if shell.cluster is None else shell.cluster.ordered
    vhost = shell.options.default_vhost
    if vhost != "/":  # each broker begins with that one
        await ordered(c.AddVhost(name=vhost, description="made with the default user"))
    await ordered(c.PutUser(name=name, password_hash=stored, hash_algorithm=SCRYPT, tags=("administrator",)))
    await ordered(c.SetPermission(user=name, vhost=vhost, configure=".*", write=".*", read=".*"))
