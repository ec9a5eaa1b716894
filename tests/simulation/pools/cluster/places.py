"""Places of a pool's workers in virtual time: the real desk of a node, the real foreman, and a driver with a temper.

    node --ForemanDesk, ForemanLink--> frames, late or lost with a process --> Foreman, Books --> Driver --> processes

Foremen are asyncio programs. They run on one loop whose time is the simulation's: `Clockwork.pump` lets everything run
that is due. A foreman winds up when its node's process ends, as `foreman/main.py` does; it may also be killed.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.foreman import frames
from clusterbroker.broker.foreman.drivers import port
from clusterbroker.broker.foreman.drivers.noop import Noop
from clusterbroker.broker.foreman.drivers.port import Capacity, DriverError
from clusterbroker.broker.foreman.foreman import Foreman
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import Template
from clusterbroker.broker.node.foreman_link import Event, ForemanLink
from clusterbroker.broker.server.foreman_desk import ForemanDesk

if TYPE_CHECKING:
    from .nodes import Member
    from .world import World

CLUSTER: Final = "this cluster"
OTHER: Final = "another cluster"
NOWHERE: Final = Path("/nonexistent/clusterbroker/pools")
POLL_MS: Final = 200
"""A foreman's process is begun so long after its node, or after the end of the one before."""


class _Nobody(selectors.SelectSelector):
    """No file is ever ready."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop that goes by the simulation's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        super().__init__(_Nobody())
        self.errors: list[BaseException] = []
        """Of what ran on it: mistakes, and broken invariants."""
        self.set_exception_handler(lambda _loop, facts: self._note(facts))

    def _note(self, facts: dict[str, Any]) -> None:
        self.errors.append(facts.get("exception") or AssertionError(facts["message"]))

    def time(self) -> float:
        return self._now_ms() / 1000

    @property
    def due(self) -> bool:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        return bool(self._ready) or bool(scheduled and scheduled[0].when() <= self.time() + 1e-6)  # type: ignore[attr-defined]

    @property
    def timers(self) -> int:
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]

    def pump(self) -> None:
        """Whatever is due runs, and what follows of it."""
        while self.due:
            self.call_soon(self.stop)
            self.run_forever()

    def end(self) -> None:
        while tasks := asyncio.all_tasks(self):
            for task in tasks:
                task.cancel()
            self.pump()
        self.close()


@dataclass(slots=True)
class Temper:
    """What a driver does wrong: chances, and seconds."""

    slow_s: float = 0.0
    fails: float = 0.0
    """Of a start; half of those that failed are there all the same."""
    forgets: float = 0.0
    """A start is a success, and nothing is there."""
    unlisted: float = 0.0
    """A list fails."""
    lies: float = 0.0
    """A list is empty by mistake."""
    late_s: float = 0.0
    """A list is so old when it comes."""


class SimDriver:
    """Of one place. It outlives foremen and nodes, as a daemon does, but for those whose machine dies."""

    name = "subprocess"
    shared = False

    def __init__(self, world: World, place: str, memory_bytes: int) -> None:
        self.world = world
        self.place = place
        self.memory_bytes = memory_bytes
        self.temper = Temper()
        self.processes: dict[str, Any] = {}
        """By worker id: those that have ended as well, until they are removed."""
        self.lied_ms = -1_000_000
        self.silent_ms = -1_000_000
        """When it was asked last, and told nothing."""
        self.foreign = [Seen(f"w{number}-0", State.RUNNING, OTHER, place, pool="core") for number in (1, 9_999_999)]
        """Of another cluster that uses the same daemon."""
        self._changed = asyncio.Event()
        self._rng: random.Random = world.rng

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        temper, rng = self.temper, self._rng
        fate = rng.random()
        if temper.slow_s:
            await asyncio.sleep(rng.random() * temper.slow_s)
        if spec.worker_id in self.processes:
            return
        if fate < temper.forgets:
            return
        if fate > temper.fails or rng.random() < 0.5:
            try:
                self.processes[spec.worker_id] = self.world.begin_process(self, spec)
            except AssertionError as error:
                self.world.loop.errors.append(error)
            self.changed()
        if fate < temper.fails:
            raise DriverError("simulated: the start failed")

    def changed(self) -> None:
        self._changed.set()

    async def stop(self, worker_id: str, grace_s: float) -> None:
        if (process := self._mine(worker_id)) is not None:
            process.term()

    async def kill(self, worker_id: str) -> None:
        if (process := self._mine(worker_id)) is not None:
            process.end(137)

    def _mine(self, worker_id: str) -> Any:
        for one in [one for one in self.foreign if one.worker_id == worker_id]:
            self.foreign.remove(one)
        return self.processes.get(worker_id)

    async def remove(self, worker_id: str) -> None:
        process = self.processes.get(worker_id)
        if process is not None and not process.alive:
            del self.processes[worker_id]

    async def list(self) -> tuple[Seen, ...]:
        temper, rng = self.temper, self._rng
        if rng.random() < temper.unlisted:
            self.silent_ms = self.world.now_ms
            raise DriverError("simulated: the daemon is away")
        lies = rng.random() < temper.lies
        rows = [process.seen for process in self.processes.values()] + self.foreign
        if temper.late_s:
            await asyncio.sleep(rng.random() * temper.late_s)
        if lies:
            self.lied_ms = self.world.now_ms
            return ()
        return tuple(rows)

    async def watch(self) -> AsyncIterator[str]:
        while True:
            self._changed.clear()
            await self._changed.wait()
            yield ""

    async def capacity(self) -> Capacity:
        return Capacity(memory_bytes=self.memory_bytes)

    async def close(self) -> None:
        pass


class SharedDriver(SimDriver):
    """Of a place that is shared: its daemon is nobody's machine, and has the workers of all places."""

    name = "kubernetes"
    shared = True

    async def list(self) -> tuple[Seen, ...]:
        own = await super().list()
        if self.lied_ms == self.world.now_ms:
            return own
        others = [site.driver for site in self.world.sites.values() if site.driver is not self]
        return (*own, *(process.seen for driver in others for process in driver.processes.values()))

    def _mine(self, worker_id: str) -> Any:
        found = super()._mine(worker_id)
        if found is None:
            self.world.checkers.ended_elsewhere(worker_id)
            for site in self.world.sites.values():
                found = found or site.driver.processes.get(worker_id)
        return found

    async def remove(self, worker_id: str) -> None:
        await super().remove(worker_id)
        if self._mine(worker_id) is not None:
            for site in self.world.sites.values():
                await SimDriver.remove(site.driver, worker_id)


class Idle(Noop):
    """Of the place's other endpoint, where nothing is started."""

    def __init__(self, place: port.Place, beside: SimDriver) -> None:
        super().__init__(place)
        self._beside = beside

    async def capacity(self) -> Capacity:
        return await self._beside.capacity()


class _Process:
    """The node's end of its foreman's process (`ForemanProcess`)."""

    def __init__(self, place: Site) -> None:
        self._place = place
        self.link = ForemanLink()
        self.heard: Callable[[Event], None] = lambda _event: None

    def lease(self, held: bool, caught_up: bool) -> None:
        self._place.send(self.link.lease(held, caught_up))

    def wants(self, rows: Any, index: int, elsewhere: Any = None) -> None:
        self._place.send(self.link.wants(rows, index, elsewhere))


@dataclass(slots=True)
class _Life:
    """Of a foreman's process."""

    foreman: Foreman
    over: asyncio.Event = field(default_factory=asyncio.Event)
    frames: frames.Frames = field(default_factory=lambda: frames.Frames(frames.ToForeman))
    task: Any = None
    winds_up: bool = False


class _Loop:
    """The node's loop as its desk has it: it stands still while the node is paused."""

    def __init__(self, loop: Clockwork, member: Member) -> None:
        self._loop = loop
        self._member = member

    def time(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, self._run, call)

    def call_at(self, at_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(at_s, self._run, call)

    def _run(self, call: Callable[[], None]) -> None:
        if self._member.paused:
            self._loop.call_later(0.1, self._run, call)
        else:
            call()


class Site:
    """A node's place: its desk, its foreman, its driver."""

    def __init__(self, world: World, member: Member, memory_bytes: int) -> None:
        self.world = world
        self.member = member
        self.driver = (SharedDriver if world.shared else SimDriver)(world, member.name, memory_bytes)
        self.templates = world.templates
        self.process = _Process(self)
        self.life: _Life | None = None
        self.gone_ms = -1_000_000
        """When there was no foreman last."""
        self.hears_ms = 0
        """A frame is so long on its way."""
        self._desk: ForemanDesk | None = None
        self._ways: tuple[deque[tuple[int, _Life, bytes]], ...] = (deque(), deque())
        member.born, member.died = self.born, self.died
        if member.alive:
            self.born()

    # -- the node

    def born(self) -> None:
        member, loop = self.member, self.world.loop
        listener = SimpleNamespace(protocol="amqp", addresses=(f"{member.name}:5672",))
        shell = SimpleNamespace(
            node=member.node,
            loop=_Loop(loop, member),
            schedule=lambda: None,
            listeners=[listener],
            options=SimpleNamespace(advertised_amqp=()),
        )
        self._desk = ForemanDesk(shell, self.process)  # type: ignore[arg-type]
        self._desk.begin()
        self._begin()

    def died(self) -> None:
        """This life of the node is over. Whether its process is, is for whoever ended it to say."""
        if self._desk is not None:
            self._desk.end()
            self._desk = None

    def node_is_over(self) -> None:
        """The lifeline is closed: the foreman winds up."""
        self.process.link.detached()
        if self.life is not None:
            self.life.winds_up = True
            self.life.over.set()

    def machine_dies(self) -> None:
        """With everything that runs there, which is nothing of a shared place."""
        self.kill(again=False)
        self.process.link.detached()
        if self.driver.shared:
            return
        for process in tuple(self.driver.processes.values()):
            process.end(None)
        self.driver.processes.clear()

    # -- the foreman

    def _begin(self) -> None:
        if self.life is not None:  # it goes on, or winds up: the next one waits for its lock
            if self.life.winds_up:
                self.world.loop.call_later(POLL_MS / 1000, self._begin)
            return
        if not self.member.alive or self.world.over:
            return
        place = port.Place(CLUSTER, self.member.name, {})
        foreman = Foreman(
            place, NOWHERE, self.templates, "file", lambda frame: self._told(life, frame), _unlogged, self._made
        )
        life = self.life = _Life(foreman)
        self.gone_ms = self.world.now_ms
        life.task = self.world.loop.create_task(self._serve(life))
        self.send(self.process.link.attached())
        if self._desk is not None:
            self._desk._soon()

    async def _made(self, template: Template, place: port.Place, _directory: Path) -> Any:
        return self.driver if template.driver == self.driver.name else Idle(place, self.driver)

    async def _serve(self, life: _Life) -> None:
        rounds = self.world.loop.create_task(life.foreman.run())
        ending = self.world.loop.create_task(life.over.wait())
        try:
            await asyncio.wait((rounds, ending), return_when=asyncio.FIRST_COMPLETED)
            if rounds.done():
                rounds.result()
        finally:
            ending.cancel()
            rounds.cancel()
        await asyncio.wait((rounds,))
        await life.foreman.wind_up()
        await life.foreman.close()
        if self.life is life:
            self.life = None
            self.gone_ms = self.world.now_ms

    def kill(self, again: bool = True) -> None:
        """kill -9."""
        life, self.life = self.life, None
        self.gone_ms = self.world.now_ms
        if life is not None:
            life.winds_up = True
            life.task.cancel()
        self.process.link.detached()
        if again:
            self.world.loop.call_later(POLL_MS / 1000, self._begin)

    def send(self, data: bytes) -> None:
        if data and self.life is not None:
            self._carry(self._hears, self.life, data)

    def _carry(self, to: Callable[[_Life, bytes], None], life: _Life, data: bytes) -> None:
        """Either way in order; what a process that ends has not read is lost."""
        waiting = self._ways[to == self._reads]
        due_ms = max(self.world.now_ms + self.hears_ms, waiting[-1][0] if waiting else 0)
        waiting.append((due_ms, life, data))
        self.world.loop.call_at(due_ms / 1000, self._arrive, waiting, to)

    def _arrive(self, waiting: deque[tuple[int, _Life, bytes]], to: Callable[[_Life, bytes], None]) -> None:
        if to == self._reads and self.member.paused:
            self.world.loop.call_later(0.1, self._arrive, waiting, to)
            return
        while waiting and waiting[0][0] <= self.world.now_ms:
            _, life, data = waiting.popleft()
            to(life, data)

    def _hears(self, life: _Life, data: bytes) -> None:
        if self.life is life and not life.winds_up:
            for frame in life.frames.feed(data):
                life.foreman.hear(frame)

    def _told(self, life: _Life, frame: frames.Frame) -> None:
        self._carry(self._reads, life, frames.encode(frame))

    def _reads(self, life: _Life, data: bytes) -> None:
        if self.life is not life or life.winds_up:
            return
        for event in self.process.link.heard(data):
            self.process.heard(event)


def _unlogged(_level: str, _event: str, **_facts: Any) -> None:
    """Its log."""
