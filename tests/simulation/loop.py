"""The loop of a node's process: its turns, and the world of a turn (`driver.World`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.node.core import Group, Node
from clusterbroker.broker.node.driver import Driver, Proposal
from clusterbroker.broker.node.effects import GOOD, WRONG, StreamLoad
from clusterbroker.broker.server.copy_forward import CopyForward
from clusterbroker.journal.record import DamagedRecord, GroupWriter
from clusterbroker.journal.stream_catalogue import NOTHING
from tests.simulation.network import DATA
from tests.simulation.real_journal import RealJournal

if TYPE_CHECKING:
    from tests.simulation.sim_journal import SimJournal
    from tests.simulation.site import Site

TURN_S = 0.0002


class Loop:
    """Of one site, over all its processes. `submitted_s`: when the group under way was handed to the disk."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._schedule = site.world.schedule
        self._turn_due = False
        self.end()

    def begin(self, node: Node) -> None:
        """A process has built its node."""
        self._driver = Driver(node, self, self._site.now_ms)

    def forward(self, node: Node) -> None:
        """The node is whole: thin segments of its journal are copied forward, if that has any."""
        site = self._site
        if isinstance(site.journal, RealJournal):
            self._copy_forward = CopyForward(
                site.journal.inner,
                node,
                self,
                self.wake,
                site.log.crashed_forward,  # type: ignore[arg-type]
            )

    def end(self) -> None:
        """The process is gone."""
        self._wake_s: float | None = None
        self._group: Group | None = None
        self.submitted_s: float | None = None
        self._copy_forward: CopyForward | None = None
        self._later_due = False

    @property
    def journal(self) -> SimJournal:
        return self._site.journal

    @property
    def may_speak(self) -> bool:
        return self._site.may_speak

    def wake(self, delay_s: float = TURN_S) -> None:
        if not self._turn_due and self._site.up:
            self._turn_due = True
            self._schedule.after(delay_s, self._due)

    def _due(self) -> None:
        self._turn_due = False
        site = self._site
        if site.node is not None and site.up and site.paused_until_s is None:  # else its end brings one
            site.node.now_ms = site.now_ms()
            self.turn()

    def turn(self) -> None:
        node = self._site.node
        if node is None:
            return
        self._turn_due = True  # what happens in here needs no other turn
        for socket in tuple(self._site.unread):
            socket.feed()
        again = self._driver.turn(node.now_ms)
        if node.wants_group_now and self._schedule.rng.random() < 0.02:
            self._site.world.checkpoint(self._site)
        self._turn_due = False
        if again:
            self.wake()
        wake_ms = node.next_wake_ms
        if wake_ms is not None:
            self._site.world.checkers.wakes(self._site, wake_ms)
            self._wake_at(max(0.0005, (wake_ms - node.now_ms) / 1000))

    # -- the world of a turn (`driver.World`)

    def order(self, proposals: Sequence[Proposal]) -> None:
        for command, done in proposals:
            self._site.wiring.propose(command, done)

    def read(self, loads: Sequence[Any]) -> None:
        for load in loads:
            longer_s = self._site.journal.delay_s  # the reader's thread is there before what it reads goes away
            if isinstance(load, StreamLoad):
                content = self._read_stream(load)
                longer_s += self._site.world.on_stream_read(self._site)
            else:
                content = self._site.journal.read(load.queue_id, load.locations)
                longer_s += self._site.world.slow_read_s
            site = self._site
            self._schedule.after(0.0005 + longer_s, site.do, site.life, self._loaded, site.node, load, content)

    def verify(self, checks: Sequence[Any]) -> None:
        for check in checks:
            check.then(GOOD if check.user is not None and check.secret == b"guest" else WRONG)

    def file(self) -> None:
        """Checkpoints come by chance, after a turn."""

    def submit(self, writer: GroupWriter, group: Group) -> None:
        journal, node = self._site.journal, self._site.node
        assert node is not None, "a node persists"
        journal.submit(writer, group.sync, node.now_ms)
        self._site.world.checkers.submitted(self._site, group.number, journal.last)
        self._group, self.submitted_s = group, self._schedule.now_s
        delay_s = 0.0003 + self._schedule.rng.random() * 0.002 + journal.delay_s
        self._schedule.after(delay_s, self._site.do, self._site.life, self._complete)

    def later(self, delay_ms: int) -> None:
        if not self._later_due:
            self._later_due = True
            self._schedule.after(delay_ms / 1000, self._site.do, self._site.life, self._later)

    def _later(self) -> None:
        self._later_due = False

    def send(self, now_ms: int) -> None:
        """The gate: without lease and contact nothing is written to clients (`may_speak`)."""
        node = self._site.node
        assert node is not None, "a node flushes"
        for connection in tuple(node.sending):
            del node.sending[connection]
            socket = self._site.sockets.get(connection)
            if socket is not None:
                socket.flush()

    def exchange(self) -> None:
        for peer, frames in self._site.role.hub.take().items():
            # else it has not heard yet that the link is gone
            if self._site.world.network.sessions.get((DATA, self._site.name, peer)) == self._site.data_links.get(peer):
                self._site.world.network.send(DATA, self._site.name, peer, frames)

    # -- what comes of it

    def _wake_at(self, delay_s: float) -> None:
        at_s = self._schedule.now_s + delay_s
        if self._wake_s is None or at_s < self._wake_s - 1e-4:
            self._wake_s = at_s
            self._schedule.at(at_s, self._woken, at_s)

    def _woken(self, at_s: float) -> None:
        if at_s == self._wake_s:  # else another time took its place
            self._wake_s = None
            self.wake(0)

    def _loaded(self, node: Node, load: Any, content: Any) -> None:
        """As `broker.server.scrub` does it, if something cannot be read."""
        if node is not self._site.node or not load.wanted():
            return
        if isinstance(content, DamagedRecord):
            self._schedule.counts["damaged reads of streams"] += 1
            node.damages.found(load.queue_id, (), content.args[1])
            return
        if isinstance(load, StreamLoad) or None not in content:
            node.loaded(load, content)
            return
        self._schedule.counts["damaged reads"] += 1
        damaged = [seq for (seq, *_), message in zip(load.locations, content, strict=True) if message is None]
        node.damages.found(load.queue_id, damaged, "bits were flipped", lambda: load.unread(content))

    def _read_stream(self, load: StreamLoad) -> Any:
        """Where it is now, as the loop says it."""
        part, streams = load.part(), self._site.journal.streams
        assert streams is not None, "a stream's files are read where there are some"
        return streams.take(load.queue_id, part, load.wish) if part is not None else NOTHING

    # -- the disk

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        self._schedule.after(0.0005, self._site.do, self._site.life, call, *arguments)

    def checkpointed(self) -> None:
        """A checkpoint is durable; thin segments are copied forward."""
        if self._copy_forward is not None:
            self._copy_forward.checkpointed()
            self.call_soon(self._read_forward)

    def _read_forward(self) -> None:
        journal = self._site.journal
        assert isinstance(journal, RealJournal), "models are not copied forward"
        if journal.checkpoint is None and journal.inner.checkpointing.run():  # else the checkpoint's end does it
            self._schedule.counts["segments read to be copied forward"] += 1
            self.call_soon(self._read_forward)

    def _complete(self) -> None:
        self._site.journal.complete_group()
        group, self._group, self.submitted_s = self._group, None, None
        assert group is not None and self._site.node is not None, "a group is under way"  # noqa: PT018
        self._site.node.group_committed(group, self._site.node.now_ms)
