"""Links between nodes: in order, without loss but by a reset, as TCP gives it; cut, one way or both, by the faults.

A link is a session between two names on one channel. What is sent arrives after a chance delay, never before what was
sent earlier. A cut direction delivers nothing, and then the link cannot live on: both ends hear of its end, each in its
own time, and dial again until it works. What a process had sent when it ended is lost with it, or arrives until the
other end hears: the kernel may still have carried it.

Beats are datagrams and know no link: each for itself may be lost, come late, twice, or before an earlier one, and
nobody notices that they are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.simulation.schedule import Schedule

DATA, CONTROL, BEATS = "data", "control", "beats"
LOST_SHARE = TWICE_SHARE = 0.02
"""So many datagrams are lost, and so many come twice."""
DIAL_S = 0.1


class End(Protocol):
    """Who has links."""

    @property
    def reachable(self) -> bool:
        """Its process runs: it accepts connections."""

    def linked(self, channel: str, peer: str, session: int) -> None: ...

    def unlinked(self, channel: str, peer: str, session: int) -> None: ...

    def arrived(self, channel: str, peer: str, session: int, message: Any) -> None: ...


class Network:
    """Of all names, on both channels."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.ends: dict[str, End] = {}
        self.pairs: dict[str, list[tuple[str, str]]] = {DATA: [], CONTROL: []}
        self.cuts: dict[tuple[str, str, str], None] = {}
        """(channel, from, to): nothing arrives."""
        self.late_share = 0.01
        """So many messages take up to half a second."""
        self.sessions: dict[tuple[str, str, str], int] = {}
        self._last_s: dict[tuple[str, str, str], float] = {}
        self._last_words: dict[tuple[str, str, str], int] = {}
        """Sessions whose sender has ended, and whose receiver has not heard of it."""
        self._count = 0
        self.on_sent: Callable[[str, str, str, Any], None] | None = None

    def pair(self, channel: str, one: str, other: str) -> None:
        """These two have a link on the channel whenever they can."""
        pair = (one, other) if one < other else (other, one)
        if pair not in self.pairs[channel]:  # a name that returns has its old pairs
            self.pairs[channel].append(pair)
            self._dial(channel, *pair)

    def _dial(self, channel: str, one: str, other: str) -> None:
        if (channel, one, other) not in self.sessions:
            up = self.ends[one].reachable and self.ends[other].reachable
            if up and (channel, one, other) not in self.cuts and (channel, other, one) not in self.cuts:
                self._count += 1
                session = self._count
                for here, there in ((one, other), (other, one)):
                    self.sessions[channel, here, there] = session
                    self._last_s[channel, here, there] = self.schedule.now_s
                for here, there in ((one, other), (other, one)):
                    self.ends[here].linked(channel, there, session)
        self.schedule.after(DIAL_S * (0.5 + self.schedule.rng.random()), self._dial, channel, one, other)

    def send(self, channel: str, source: str, target: str, message: Any, size: int = 0) -> None:
        session = self.sessions.get((channel, source, target))
        if session is None:
            return
        rng = self.schedule.rng
        delay_s = 0.0003 + rng.random() * 0.002
        if rng.random() < self.late_share:
            delay_s += rng.random() * 0.5
        arrive_s = max(self.schedule.now_s + delay_s, self._last_s[channel, source, target] + 1e-6)
        self._last_s[channel, source, target] = arrive_s
        self.schedule.at(arrive_s, self._arrive, channel, source, target, session, message)

    def cast(self, source: str, target: str, message: Any) -> None:
        """A beat, or the answer to one."""
        rng = self.schedule.rng
        chance = rng.random()
        if chance < LOST_SHARE:
            return
        for _ in range(1 + (chance > 1 - TWICE_SHARE)):
            delay_s = 0.0003 + rng.random() * 0.002
            if rng.random() < self.late_share:
                delay_s += rng.random() * 0.5
            self.schedule.after(delay_s, self._land, source, target, message)

    def _land(self, source: str, target: str, message: Any) -> None:
        end = self.ends.get(target)
        if end is not None and end.reachable and (BEATS, source, target) not in self.cuts:
            end.arrived(BEATS, source, 0, message)

    def _arrive(self, channel: str, source: str, target: str, session: int, message: Any) -> None:
        way = (channel, source, target)
        if self.sessions.get(way, self._last_words.get(way)) != session:
            return
        if way in self.cuts:
            self.reset(channel, source, target)
            return
        self.ends[target].arrived(channel, source, session, message)

    def reset(self, channel: str, one: str, other: str) -> None:
        """The link breaks, with all that is under way on it."""
        self._last_words.pop((channel, one, other), None)
        self._last_words.pop((channel, other, one), None)
        session = self.sessions.pop((channel, one, other), None)
        if session is None:
            return
        del self.sessions[channel, other, one]
        for here, there in ((one, other), (other, one)):
            delay_s = 0.001 + self.schedule.rng.random() * 0.1
            self.schedule.after(delay_s, self._unlinked, channel, here, there, session)

    def _unlinked(self, channel: str, here: str, there: str, session: int) -> None:
        if self._last_words.get((channel, there, here)) == session:
            del self._last_words[channel, there, here]
        self.ends[here].unlinked(channel, there, session)

    def gone(self, name: str) -> None:
        """A process ended."""
        for channel, pairs in self.pairs.items():
            for one, other in pairs:
                session = self.sessions.get((channel, one, other))
                if name in (one, other) and session is not None:
                    self.reset(channel, one, other)
                    if self.schedule.rng.random() < 0.5:
                        self._last_words[channel, name, other if name == one else one] = session

    # -- faults

    def stall(self, channel: str, source: str, target: str, span_s: float) -> None:
        """What `source` sends from now on takes so much longer."""
        way = (channel, source, target)
        if way in self.sessions:
            self._last_s[way] = max(self.schedule.now_s, self._last_s[way]) + span_s

    def cut(self, channel: str, source: str, target: str) -> None:
        """Nothing of what `source` sends reaches `target`."""
        if (channel, source, target) in self.cuts or source == target:
            return
        self.cuts[channel, source, target] = None
        self.schedule.after(0.1 + self.schedule.rng.random(), self._notice, channel, source, target)

    def _notice(self, channel: str, source: str, target: str) -> None:
        if (channel, source, target) in self.cuts:
            self.reset(channel, source, target)

    def part(self, one: str, other: str, channels: tuple[str, ...] = (DATA, CONTROL, BEATS)) -> None:
        for channel in channels:
            self.cut(channel, one, other)
            self.cut(channel, other, one)

    def heal(self) -> None:
        """A link that lost something does not outlive it."""
        cuts, self.cuts = self.cuts, {}
        for channel, source, target in cuts:
            self.reset(channel, source, target)
