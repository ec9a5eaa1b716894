"""A simulated node's beats beside its lease: contact, words for the beats of others, and whom it gives up.

What `cluster.liveness.pulse`, `broker.server.member.liveness` and `broker.server.member.liveness` do with threads,
sockets and tasks, over the real Contact, Hearing and Verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.liveness.beats import Beat, ReplayGuard
from clusterbroker.cluster.liveness.contact import SETTLED_S, Contact, Hearing, Verdicts
from clusterbroker.cluster.liveness.lease import LeaseOptions
from clusterbroker.cluster.wiring import commands as c

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.simulation.site import Site

LOOK_S = 0.02
NOTHING = c.ClearPermission(user="", vhost="")
Verdict = tuple[str, str, int, bool]
"""("verdict", name, incarnation, taken back)."""


class Pulse:
    """Of one process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        options = LeaseOptions()
        self.contact = Contact(site.name, options)
        self.hearing = Hearing(options, site.boot_s())
        self._guard = ReplayGuard()
        self._looked_at: set[tuple[str, int]] = set()

    def allows(self) -> bool:
        """Whether there is contact."""
        return self._site.boot_s() < self.contact.until

    def set_voters(self, voters: Collection[str]) -> None:
        if self.contact.voters != set(voters):
            self.contact.set_voters(voters)

    # -- beats and words

    def sent(self, seq: int) -> float:
        """A beat is about to leave; what goes with it."""
        self.contact.sent(seq, self._site.boot_s())
        return self.contact.rely_s

    def beaten(self, peer: str, incarnation: int, seq: int, rely_s: float) -> bool:
        """A beat came. Returns whether it is new."""
        if not self._guard.is_new(Beat(peer, incarnation, 0, seq, 0)):
            return False
        site = self._site
        member = site.wiring.map.member(NodeId(peer))
        if (
            member is not None
            and member.alive
            and member.incarnation == incarnation
            and self.hearing.heard(peer, incarnation, rely_s, site.boot_s(), site.leased())
        ):
            site.world.network.cast(site.name, peer, ("word", incarnation, seq))
        return True

    def word(self, peer: str, incarnation: int, seq: int) -> None:
        """Somebody has heard a beat of this node."""
        site = self._site
        if incarnation == site.keeper.incarnation and self.contact.confirmed(peer, seq, site.boot_s()):
            site.loop.wake()

    # -- who is given up

    def refused(self, peer: str, incarnation: int) -> None:
        """Its port refused twice."""
        if (peer, incarnation) not in self._looked_at:
            self._looked_at.add((peer, incarnation))
            self._look(peer, incarnation)

    def _again(self, call: Any, *arguments: Any) -> None:
        self._site.world.schedule.after(LOOK_S, self._site.do, self._site.life, call, *arguments)

    def _over(self, peer: str, incarnation: int) -> bool:
        member = self._site.wiring.map.member(NodeId(peer))
        return member is None or not member.alive or member.incarnation != incarnation

    def _look(self, peer: str, incarnation: int) -> None:
        if self._over(peer, incarnation) or peer in self._site.data_links:
            self._looked_at.discard((peer, incarnation))
        elif self.hearing.give_up(peer, incarnation, self._site.boot_s()):
            self._given_up(peer, incarnation, None)
        else:
            self._again(self._look, peer, incarnation)

    def _given_up(self, peer: str, incarnation: int, told: object) -> None:
        wiring = self._site.wiring
        if self._over(peer, incarnation):
            self._looked_at.discard((peer, incarnation))
        elif self.hearing.spoke_since(peer) or peer in self._site.data_links:
            wiring.verdict(peer, incarnation, True, told)

            def back(_: object) -> None:
                self.hearing.take_back(peer, incarnation)
                self._looked_at.discard((peer, incarnation))

            wiring.propose_now(NOTHING, back)
        else:
            self._again(self._given_up, peer, incarnation, wiring.verdict(peer, incarnation, False, told))


class Judge:
    """The leader's count."""

    def __init__(self) -> None:
        self.verdicts = Verdicts()
        self._voters: frozenset[str] = frozenset()
        self._changed_s = 0.0

    def voters(self, voters: Collection[str], now_s: float) -> None:
        """To be told often."""
        if self._voters != set(voters):
            self._voters, self._changed_s = frozenset(voters), now_s

    def heard(self, voter: str, verdict: Verdict, now_s: float) -> bool:
        """Whether the member is to be failed now."""
        _, name, incarnation, taken_back = verdict
        if taken_back:
            self.verdicts.taken_back(voter, name, incarnation)
            return False
        self.verdicts.given_up(voter, name, incarnation)
        settled = now_s >= self._changed_s + SETTLED_S
        return settled and self.verdicts.agreed(name, incarnation, self._voters)
