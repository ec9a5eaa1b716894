"""The foreman: rounds of list, decide, act, for each driver of a place (waits).

A round begins when the map changed, a driver tells of a change, or the books have something due; while nothing is
wanted and nothing runs there is none. A round that failed is told once as *suspended*, and tried again after 1, 2, 4
.. 15 s. What is decided is in `reconcile`; what is carried out here has no memory but the books'.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterbroker.broker.foreman import authorities, endpoints, frames
from clusterbroker.broker.foreman.drivers import choice
from clusterbroker.broker.foreman.drivers.port import Driver, DriverError, Marks, Place, bounded
from clusterbroker.broker.foreman.reconcile import (
    TELL_AGAIN_MS,
    Action,
    Adjust,
    Books,
    Gone,
    Kill,
    Launch,
    Listed,
    Pace,
    Remove,
    Seen,
    Start,
    State,
    Stop,
    View,
    Wanted,
)
from clusterbroker.broker.foreman.spec import BadSpec, WorkerSpec, has_tls
from clusterbroker.broker.foreman.templates import KEY, Template, fits

AGAIN_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
WATCH_AGAIN_S: Final = 1.0
LOOK_S: Final = 5.0
"""While workers run: memory is told, and what a driver's watch missed is found."""

SILENCE_MS: Final = 3_000
"""The node tells of its lease every half second: so long without a word, and it counts as unleased."""
LISTEN_S: Final = 0.5
ALWAYS_READ: Final = frozenset(("subprocess", "noop"))
"""Drivers whose lists are read, or empty, whatever the config file says."""

Make = Callable[[Template, Place, Path], Awaitable[Driver]]
Tell = Callable[[frames.Frame], None]
Log = Callable[..., None]


def now_ms() -> int:
    """Monotonic."""
    return time.monotonic_ns() // 1_000_000


class Foreman:
    """`hear` frames, `run` until it is cancelled, then `wind_up` if the node is over."""

    def __init__(
        self,
        place: Place,
        directory: Path,
        templates: Mapping[str, Template],
        file: str,
        tell: Tell,
        log: Log,
        make: Make = choice.made,
        grace_max_s: float = math.inf,
        authorities_file: Path | None = None,
    ) -> None:
        """`file`: the templates', for messages. `directory`: for what drivers keep. `log`: level, event, facts.
        `grace_max_s`: of workers that end with their node. `authorities_file`: PEM, by which they trust brokers."""
        self.grace_max_s = grace_max_s
        self.launches: dict[str, Wanted] = {}
        self._elsewhere: dict[str, bool] | None = None
        self._index = 0
        self._place = place
        self._directory = directory
        self._templates = templates
        self._file = file
        self._tell = tell
        self._emit = log
        self._make = make
        self._authorities_file = authorities_file
        self._fresh = False
        self._unleased_since_ms: int | None = None
        self._mapped = False
        self._heard_ms = now_ms()
        self._silent_since_ms: int | None = None
        pace = Pace()
        configured = choice.endpoints(templates)
        self._recorded = self._read_recorded()
        self._hands = {
            where: _Hand(self, template, Books(place.cluster, place.node, pace, shared=template.driver == "kubernetes"))
            for where, template in {**self._recorded, **configured}.items()
        }
        self._left = self._recorded.keys() - configured.keys()
        """Endpoints of templates of before."""
        self._told: frames.PlaceRow | None = None
        self._no_template_ms: dict[str, int] = {}

    # -- endpoints of before -----------------------------------------------------------------------------------------

    def _read_recorded(self) -> dict[choice.Endpoint, Template]:
        try:
            return {choice.endpoint(one): one for one in endpoints.read(self._directory)}
        except (ValueError, OSError) as error:
            self._emit("warning", "foreman.endpoints_unread", why=str(error))
            return {}

    def starts_at(self, template: Template) -> None:
        """A worker is about to be started there. Raises OSError: then it is not."""
        where = choice.endpoint(template)
        if where not in self._recorded and template.driver not in ALWAYS_READ:
            endpoints.write(self._directory, [*self._recorded.values(), template])
            self._recorded[where] = template

    def has_none(self, template: Template) -> None:
        """A list was read that has no worker of this place."""
        where = choice.endpoint(template)
        if where in self._left and where in self._recorded:
            left = {each: one for each, one in self._recorded.items() if each != where}
            try:
                endpoints.write(self._directory, left.values())
            except OSError as error:
                self._emit("warning", "foreman.endpoints_unwritten", why=str(error))
            else:
                self._recorded = left

    # -- what the node tells ------------------------------------------------------------------------------------------

    def hear(self, frame: Any) -> None:
        """Wanted, Lease or Busy. Raises ValueError for a launch that cannot be."""
        if isinstance(frame, frames.Lease):
            before = self._is_fresh
            self._heard_ms, self._silent_since_ms = now_ms(), None
            if frame.held:
                self._unleased_since_ms = None
            elif self._unleased_since_ms is None:
                self._unleased_since_ms = now_ms()
            self._fresh = frame.held and frame.caught_up
            if before and self._is_fresh:  # told each half second: rounds of LOOK_S are there while anything runs
                self._wake(hand for hand in self._hands.values() if hand.seen and not hand.runs)
                return
        elif isinstance(frame, frames.Busy):
            for hand in self._hands.values():
                hand.busy = frame.replicas  # told with the next round
            self._wake(hand for hand in self._hands.values() if hand.runs)
            return
        else:
            assert isinstance(frame, frames.Wanted), "a node tells nothing else"
            self._index = frame.index
            if frame.full:
                self.launches, self._elsewhere = {}, None if frame.elsewhere is None else {}
                self._mapped = True
            for row in frame.put:
                self.launches[row.spec.worker_id] = Wanted(row.spec, Launch(row.state))
            for worker_id in frame.drop:
                self.launches.pop(worker_id, None)
            if self._elsewhere is not None:
                for worker_id in frame.drop:
                    self._elsewhere.pop(worker_id, None)
                self._elsewhere.update(frame.elsewhere or {})
        self._wake(self._hands.values())

    def _wake(self, hands: Iterable[_Hand]) -> None:
        for hand in hands:
            hand.wake.set()

    def view(self, hand: _Hand) -> View:
        """The launches of one driver: those whose template it serves, and those that it has already."""
        mine = {}
        for worker_id, wanted in self.launches.items():
            template = self._templates.get(wanted.spec.template)
            if hand.has(worker_id) or (
                template is not None
                and not fits(wanted.spec, self._templates, self._file)
                and self._hands[choice.endpoint(template)] is hand
                and not any(other.has(worker_id) for other in self._hands.values())
            ):
                mine[worker_id] = wanted
        unleased_ms = self._silent_since_ms if self._unleased_since_ms is None else self._unleased_since_ms
        return View(mine, self._is_fresh, unleased_ms, self._elsewhere, self._index)

    @property
    def _is_fresh(self) -> bool:
        return self._fresh and self._mapped and self._silent_since_ms is None

    async def _listen(self) -> None:
        """A node that hangs tells nothing, and has lost its lease, or is about to."""
        while True:
            await asyncio.sleep(LISTEN_S)
            if self._mapped and self._silent_since_ms is None and now_ms() - self._heard_ms >= SILENCE_MS:
                self._silent_since_ms = now_ms() - SILENCE_MS  # not before: this process may have been the one to hang
                self._emit("warning", "foreman.node_silent", after_s=SILENCE_MS / 1000)
                self._wake(self._hands.values())

    # -- its life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled. Workers go on."""
        told = {
            name: frames.TemplateRow(
                version=one.version,
                driver=one.driver,
                max_workers=one.max_workers,
                memory_bytes=one.memory_bytes,
                endpoint=choice.name_of(choice.endpoint(one)),
                rolling=one.update == "rolling",
                surge=one.surge,
            )
            for name, one in self._templates.items()
        }
        shared = any(hand.books.shared for hand in self._hands.values())
        self._tell(frames.Hello(version=frames.VERSION, templates=told, shared=shared))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            for hand in self._hands.values():
                group.create_task(hand.run())

    async def wind_up(self) -> None:
        """The node's process is over: workers of templates with on_node_exit = "kill" end, by TERM and after their
        grace by KILL. Those of a shared place stay: the node may come back to them; else its place is lost, and foremen
        of other nodes end them."""
        await asyncio.gather(*(hand.wind_up() for hand in self._hands.values() if not hand.books.shared))

    async def close(self) -> None:
        for hand in self._hands.values():
            await hand.close()

    # -- what hands tell ----------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """After a round: rows that changed."""
        seen = [one for hand in self._hands.values() for one in hand.seen.values()]
        row = frames.PlaceRow(
            running=sum(one.state is State.RUNNING for one in seen),
            starting=sum(one.state is State.STARTING for one in seen),
            memory_bytes=max((hand.memory_bytes for hand in self._hands.values()), default=0),
            used_bytes=sum(one.memory_bytes for one in seen),
            suspended={choice.name_of(where): hand.why for where, hand in self._hands.items() if hand.why},
        )
        if row != self._told:
            self._told = row
            self._tell(row)
        self._without_template()

    def _without_template(self) -> None:
        """Launches that no file of this place explains, or explained otherwise when they were ordered, and that no
        driver has."""
        if not self._is_fresh:
            return
        at_ms = now_ms()
        for worker_id, wanted in self.launches.items():
            why = fits(wanted.spec, self._templates, self._file)
            if not why or any(hand.has(worker_id) or not hand.known for hand in self._hands.values()):
                continue
            if at_ms >= self._no_template_ms.get(worker_id, 0):
                self._no_template_ms[worker_id] = at_ms + TELL_AGAIN_MS
                self.gone(Gone(worker_id, None, why=why))
        for worker_id in self._no_template_ms.keys() - self.launches.keys():
            del self._no_template_ms[worker_id]

    def gone(self, gone: Gone) -> None:
        self._emit(
            "info", "worker.gone", worker=gone.worker_id, exit=gone.exit, peak_bytes=gone.peak_bytes, why=gone.why
        )
        self._tell(
            frames.GoneRow(worker_id=gone.worker_id, exit=gone.exit, peak_bytes=gone.peak_bytes, why=gone.why[:1000])
        )

    def changed(self, seen: Seen) -> None:
        self._tell(frames.WorkerRow(worker_id=seen.worker_id, state=seen.state.value, memory_bytes=seen.memory_bytes))

    def template(self, name: str) -> Template | None:
        return self._templates.get(name)

    def trusting(self, spec: WorkerSpec) -> WorkerSpec:
        """With the authorities as their file has them now. Raises DriverError."""
        if self._authorities_file is None or not has_tls(spec):
            return spec
        try:
            return msgspec.structs.replace(spec, ca_pem=authorities.read(self._authorities_file))
        except authorities.BadAuthorities as error:
            raise DriverError(str(error)) from error

    async def driver(self, template: Template) -> Driver:
        """Raises DriverError."""
        return await self._make(template, self._place, self._directory)

    def emit(self, level: str, event: str, **facts: Any) -> None:
        self._emit(level, event, **facts)


class _Hand:
    """One driver, its books and its rounds."""

    def __init__(self, foreman: Foreman, template: Template, books: Books) -> None:
        self.books = books
        self.wake = asyncio.Event()
        self.seen: dict[str, Seen] = {}
        self.known = False
        """A list was read."""
        self.busy: Mapping[str, bool] = {}
        """Replicas, and whether each holds a request."""
        self.why = ""
        self.memory_bytes = 0
        self._foreman = foreman
        self._template = template
        self._driver: Driver | None = None
        self._watching: asyncio.Task[None] | None = None
        self._starts: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._told_bytes: dict[str, int] = {}
        """Memory of workers, as it was told last."""

    @property
    def runs(self) -> bool:
        """Something does: a round comes by itself."""
        return any(one.state is not State.EXITED for one in self.seen.values())

    def has(self, worker_id: str) -> bool:
        return worker_id in self.seen or worker_id in self.books.begun or worker_id in self.books.pace.in_flight

    async def run(self) -> None:
        """Rounds, until it is cancelled."""
        try:
            while True:
                self.wake.clear()
                wait_s = await self._round()
                try:
                    async with asyncio.timeout(wait_s):
                        await self.wake.wait()
                except TimeoutError:
                    pass
        finally:
            for task in (*self._starts, *([self._watching] if self._watching else [])):
                task.cancel()

    async def _round(self) -> float | None:
        """How long to wait for the next one; None: until something happens."""
        try:
            driver = await self._there()
            asked_ms = now_ms()
            rows = await bounded(driver.name, "list", driver.list())
        except DriverError as error:
            return self._failed(error)
        if self.why:
            self._foreman.emit("info", "foreman.resumed", driver=self._template.driver)
        self.why, self._failures = "", 0
        self._look(rows)
        at_ms = now_ms()
        failed = False
        for action in self.books.decide(self._foreman.view(self), Listed(asked_ms, rows), at_ms):
            failed |= not await self._act(driver, action)
        await self._mark(driver)
        self._foreman.settled()
        waits = [LOOK_S] if self.runs else []
        if self.books.next_ms is not None:
            waits.append(max(0.01, (self.books.next_ms - now_ms()) / 1000))
        if failed:
            waits.append(AGAIN_S[0])
        return min(waits, default=None)

    async def _mark(self, driver: Driver) -> None:
        """Tried again with the next round, which is there while anything runs."""
        if not self.busy or not isinstance(driver, Marks):
            return
        try:
            await bounded(driver.name, "mark", driver.mark(self.busy))
        except DriverError as error:
            self._foreman.emit("warning", "foreman.action_failed", driver=driver.name, why=str(error))

    async def _there(self) -> Driver:
        """Raises DriverError."""
        if self._driver is None:
            self._driver = await self._foreman.driver(self._template)
            room = await bounded(self._driver.name, "capacity", self._driver.capacity())
            self.memory_bytes = room.memory_bytes or 0
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(self._driver))
        return self._driver

    async def _watch(self, driver: Driver) -> None:
        """A watch that ends is begun anew with the next round."""
        try:
            async for _ in driver.watch():
                self.wake.set()
        except DriverError as error:
            self._foreman.emit("debug", "foreman.watch_ended", driver=driver.name, why=str(error))
            await asyncio.sleep(WATCH_AGAIN_S)
            self.wake.set()

    def _failed(self, error: DriverError) -> float:
        """The list is unknown: nothing is done."""
        if str(error) != self.why:
            self.why = str(error)
            self._foreman.emit("warning", "foreman.suspended", driver=self._template.driver, why=self.why)
            self._foreman.settled()
        again_s = AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
        self._failures += 1
        return again_s

    def _look(self, rows: tuple[Seen, ...]) -> None:
        before = self.seen
        self.seen = {one.worker_id: one for one in rows if self.books.is_ours(one)}
        self.known = True
        if not self.seen and not self._starts:
            self._foreman.has_none(self._template)
        for worker_id, one in self.seen.items():
            told = before.get(worker_id)
            if (
                told is not None
                and told.state is one.state
                and not grown(self._told_bytes[worker_id], one.memory_bytes)
            ):
                continue
            self._told_bytes[worker_id] = one.memory_bytes
            self._foreman.changed(one)
        self._told_bytes = {worker_id: self._told_bytes[worker_id] for worker_id in self.seen}

    async def _act(self, driver: Driver, action: Action) -> bool:
        """Whether it was carried out."""
        try:
            match action:
                case Start():
                    task = asyncio.create_task(self._start(driver, action))
                    self._starts.add(task)
                    task.add_done_callback(self._starts.discard)
                case Adjust(spec):
                    await self._adjust(driver, spec)
                case Gone():
                    self._foreman.gone(action)
                case Stop(worker_id, grace_s):
                    await bounded(driver.name, f"stop {worker_id}", driver.stop(worker_id, grace_s))
                case Kill(worker_id):
                    await bounded(driver.name, f"kill {worker_id}", driver.kill(worker_id))
                case Remove(worker_id):
                    await bounded(driver.name, f"remove {worker_id}", driver.remove(worker_id))
                    self.wake.set()
        except DriverError as error:
            self._foreman.emit("warning", "foreman.action_failed", driver=driver.name, why=str(error))
            return False
        return True

    async def _adjust(self, driver: Driver, spec: WorkerSpec) -> None:
        """Raises DriverError. By the template that it was ordered with, or not at all."""
        template = self._foreman.template(spec.template)
        if template is not None and template.version == spec.version:
            await bounded(driver.name, f"adjust {spec.worker_id}", driver.start(self._foreman.trusting(spec), template))
            self._foreman.emit("info", "worker.adjusted", worker=spec.worker_id, pool=spec.pool)

    async def _start(self, driver: Driver, action: Start) -> None:
        spec = action.spec
        template = self._foreman.template(spec.template)
        try:
            if template is None:
                raise DriverError(f"{spec.worker_id}: its template is gone")
            if spec.spare and KEY in template.command:
                raise BadSpec(f"{spec.worker_id}: a spare has no key yet, and the template's command needs {KEY}")
            self._foreman.starts_at(template)
            trusting = self._foreman.trusting(spec)
            await bounded(driver.name, f"start {spec.worker_id}", driver.start(trusting, template))
        except (DriverError, BadSpec, OSError) as error:
            self.books.start_failed(spec.worker_id, now_ms(), str(error))
            self._foreman.emit("warning", "worker.start_failed", worker=spec.worker_id, why=str(error))
        else:
            self.books.started(spec.worker_id, now_ms())
            self._foreman.emit("info", "worker.started", worker=spec.worker_id, pool=spec.pool, driver=driver.name)
        self.wake.set()

    # -- the node is over ---------------------------------------------------------------------------------------------

    async def wind_up(self) -> None:
        """Raises nothing: what a driver refuses is logged, and left to the next foreman."""
        try:
            driver = await self._there()
            ends_ms: dict[str, int] = {}
            while True:
                rows = await bounded(driver.name, "list", driver.list())
                left = [
                    one
                    for one in rows
                    if one.state is not State.EXITED and self.books.is_ours(one) and self._ends_with_node(one)
                ]
                if not left:
                    return
                for one in left:
                    if one.worker_id not in ends_ms:
                        grace_s = self._grace_s(one.worker_id)
                        ends_ms[one.worker_id] = now_ms() + int(grace_s * 1000)
                        await bounded(driver.name, "stop", driver.stop(one.worker_id, grace_s))
                    elif now_ms() >= ends_ms[one.worker_id]:
                        await bounded(driver.name, "kill", driver.kill(one.worker_id))
                self.wake.clear()
                try:
                    async with asyncio.timeout(0.5):
                        await self.wake.wait()
                except TimeoutError:
                    pass
        except DriverError as error:
            self._foreman.emit("warning", "foreman.action_failed", driver=self._template.driver, why=str(error))

    def _ends_with_node(self, seen: Seen) -> bool:
        wanted = self._foreman.launches.get(seen.worker_id)
        template = self._foreman.template(wanted.spec.template if wanted is not None else seen.template or seen.pool)
        return template is None or template.on_node_exit == "kill"

    def _grace_s(self, worker_id: str) -> float:
        wanted = self._foreman.launches.get(worker_id)
        return min(30.0 if wanted is None else wanted.spec.grace_s, self._foreman.grace_max_s)

    async def close(self) -> None:
        for task in (*self._starts, *([self._watching] if self._watching else [])):
            task.cancel()
        if self._driver is not None:
            await self._driver.close()
            self._driver = None


def grown(told_bytes: int, now_bytes: int) -> bool:
    """Whether a worker's memory differs from what was told by an eighth, and by a MiB at least."""
    return abs(now_bytes - told_bytes) >= max(told_bytes // 8, 1 << 20)
