"""Rounds of a foreman over a driver that fails as daemons do: gone, hung, of two minds about a start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from foreman_support import PLACE, spec, until

from clusterbroker.broker.foreman import endpoints, frames
from clusterbroker.broker.foreman import foreman as module
from clusterbroker.broker.foreman.drivers import choice
from clusterbroker.broker.foreman.drivers.noop import Noop
from clusterbroker.broker.foreman.drivers.port import Driver, DriverError, Place, bounded
from clusterbroker.broker.foreman.drivers.records import Records
from clusterbroker.broker.foreman.foreman import Foreman
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import Template


class Flaky(Noop):
    """A driver whose service comes and goes."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.gone = False
        self.hangs = False
        self.lists = 0
        self.starts: list[str] = []
        self.memory_bytes = 0
        """Of each worker."""

    async def start(self, spec: WorkerSpec, template: Template) -> None:
        self.starts.append(spec.worker_id)
        await super().start(spec, template)
        if self.hangs:
            await asyncio.Event().wait()  # begun, and never answered

    async def list(self) -> tuple[Seen, ...]:
        self.lists += 1
        if self.gone:
            raise DriverError("flaky: its socket is gone: start its service")
        return tuple(replace(one, memory_bytes=self.memory_bytes) for one in await super().list())


class Beside:
    """A foreman of two drivers: the flaky one, and processes that nobody wants."""

    def __init__(self, directory: Path) -> None:
        self.flaky = Flaky(PLACE)
        self.told: list[Any] = []
        self.foreman = Foreman(
            PLACE, directory, {"core": Template()}, "a.toml", self.told.append, lambda *_, **__: None, self.made
        )
        self.index = 0
        self.hear(frames.Lease(held=True, caught_up=True))

    async def made(self, template: Template, place: Place, directory: Path) -> Driver:
        return self.flaky if template.driver == "noop" else Noop(place)

    def hear(self, frame: frames.Frame) -> None:
        self.foreman.hear(frame)

    def want(self, *worker_ids: str) -> None:
        rows = tuple(frames.LaunchRow(spec=spec(one, version=Template().version), state="wanted") for one in worker_ids)
        self.index += 1
        self.hear(frames.Wanted(index=self.index, full=True, put=rows))

    async def tells(self, kind: type, **facts: Any) -> None:
        async def told() -> bool:
            return any(
                isinstance(one, kind) and all(getattr(one, name) == value for name, value in facts.items())
                for one in self.told
            )

        await until(told, f"{kind.__name__} {facts}")


@pytest_asyncio.fixture
async def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Beside]:
    monkeypatch.setattr(module, "bounded", partial(bounded, bound_s=0.2))
    monkeypatch.setattr(module, "AGAIN_S", (0.02,))
    made = Beside(tmp_path)
    rounds = asyncio.create_task(made.foreman.run())
    yield made
    rounds.cancel()
    await asyncio.wait((rounds,))
    await made.foreman.close()


async def test_a_service_that_is_gone_suspends_its_driver_and_nothing_else(beside: Beside) -> None:
    beside.flaky.gone = True
    beside.want("w1-0")
    await beside.tells(frames.PlaceRow, suspended={"noop": "flaky: its socket is gone: start its service"})
    assert beside.flaky.starts == [], "an unknown list is no empty one"
    beside.flaky.gone = False
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")
    await beside.tells(frames.PlaceRow, suspended={}, running=1)
    beside.flaky.gone = True
    beside.want()
    beside.told.clear()
    await beside.tells(frames.PlaceRow)
    assert not any(isinstance(one, frames.GoneRow) for one in beside.told)


async def test_a_start_that_is_not_answered_in_time_is_not_repeated(beside: Beside) -> None:
    beside.flaky.hangs = True
    beside.want("w1-0")
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")

    async def answered() -> bool:
        return not any(hand._starts for hand in beside.foreman._hands.values())

    await until(answered)
    await beside.tells(frames.PlaceRow, running=1)
    assert beside.flaky.starts == ["w1-0"], "the list says that it is there"
    assert not any(isinstance(one, frames.GoneRow) for one in beside.told)


async def test_a_place_at_rest_does_nothing(beside: Beside) -> None:
    beside.want()
    await beside.tells(frames.PlaceRow, running=0)
    for hand in beside.foreman._hands.values():
        assert await hand._round() is None, "until something happens"
    beside.want("w1-0")
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")


async def test_the_foreman_tells_its_templates_first(beside: Beside) -> None:
    await beside.tells(frames.Hello)
    assert beside.told[0].templates["core"].version == Template().version


async def test_a_launch_of_another_template_is_reported_and_not_started(beside: Beside) -> None:
    row = frames.LaunchRow(spec=spec("w1-0", version="of before"), state="wanted")
    beside.hear(frames.Wanted(index=1, full=True, put=(row,)))
    await beside.tells(frames.GoneRow, worker_id="w1-0", exit=None)
    assert beside.flaky.starts == []


async def test_a_silent_node_is_one_without_a_lease(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    beside.want("w1-0")
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")
    monkeypatch.setattr(module, "SILENCE_MS", 100)
    hand = next(iter(beside.foreman._hands.values()))

    async def unleased() -> bool:
        return beside.foreman.view(hand).unleased_since_ms is not None

    await until(unleased)
    assert not beside.foreman.view(hand).fresh
    monkeypatch.setattr(module, "SILENCE_MS", 60_000)
    beside.hear(frames.Lease(held=True, caught_up=True))
    assert beside.foreman.view(hand).fresh
    assert not await unleased()


async def test_a_lease_that_goes_on_lists_no_workers(beside: Beside) -> None:
    beside.want("w1-0")
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")
    hand = next(hand for hand in beside.foreman._hands.values() if hand.seen)
    for lease, wakes in ((True, False), (False, True), (False, True), (True, True), (True, False)):
        hand.wake.clear()
        beside.hear(frames.Lease(held=lease, caught_up=True))
        assert hand.wake.is_set() is wakes, "a lease that is lost, or comes back, is an event"
    hand.seen = {one: replace(seen, state=State.EXITED) for one, seen in hand.seen.items()}
    beside.hear(frames.Lease(held=True, caught_up=True))
    assert hand.wake.is_set(), "where nothing runs no other round comes"


class Moved(Beside):
    """The place whose template was docker's, and is noop's now."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.docker = Flaky(PLACE)

    async def made(self, template: Template, place: Place, directory: Path) -> Driver:
        return self.docker if template.driver == "docker" else await super().made(template, place, directory)


async def test_workers_of_a_template_that_moved_are_kept_where_they_run(tmp_path: Path) -> None:
    before = Template(driver="docker", image="core")
    endpoints.write(tmp_path, [before])
    beside = Moved(tmp_path)
    row = frames.LaunchRow(spec=spec("w1-0", version=before.version), state="wanted")
    await beside.docker.start(row.spec, before)
    beside.docker.gone = True
    rounds = asyncio.create_task(beside.foreman.run())
    try:
        beside.hear(frames.Wanted(index=1, full=True, put=(row,)))
        await beside.tells(frames.PlaceRow)
        assert not any(isinstance(one, frames.GoneRow) for one in beside.told), "it may run there"
        beside.docker.gone = False
        await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")
        beside.hear(frames.Wanted(index=2, full=False, drop=("w1-0",)))

        async def forgotten() -> bool:
            return endpoints.read(tmp_path) == ()

        await until(forgotten, "the endpoint has none any more")
        assert beside.flaky.starts == []
    finally:
        rounds.cancel()
        await asyncio.wait((rounds,))
        await beside.foreman.close()


async def test_an_endpoint_is_recorded_before_its_first_start(tmp_path: Path) -> None:
    template = Template(driver="docker", image="core", socket="unix:///run/a.sock")
    beside = Moved(tmp_path)
    beside.foreman.starts_at(template)
    assert [choice.endpoint(one) for one in endpoints.read(tmp_path)] == [("docker", "unix:///run/a.sock")]
    assert Records(tmp_path).ids() == [], "it is no worker's record"
    (tmp_path / endpoints.FILE).write_text("{")
    with pytest.raises(ValueError, match="remove it"):
        endpoints.read(tmp_path)


class Crowded(Flaky):
    """Another cluster has a worker at the same service."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.stops: list[str] = []

    async def list(self) -> tuple[Seen, ...]:
        return (*await super().list(), Seen("w9-0", State.RUNNING, "another cluster", PLACE.node, pool="core"))

    async def stop(self, worker_id: str, grace_s: float) -> None:
        self.stops.append(worker_id)
        await super().stop(worker_id, grace_s)


async def test_it_winds_up_no_worker_of_another_cluster(tmp_path: Path) -> None:
    beside = Beside(tmp_path)
    crowded = beside.flaky = Crowded(PLACE)
    async with asyncio.timeout(10):
        await beside.foreman.wind_up()
    assert crowded.stops == []


async def test_memory_is_told_as_it_grows(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    mib = 1 << 20
    beside.want("w1-0")
    await beside.tells(frames.WorkerRow, worker_id="w1-0", state="running")
    beside.flaky.memory_bytes = 100 * mib
    await beside.tells(frames.WorkerRow, worker_id="w1-0", memory_bytes=100 * mib)
    beside.told.clear()
    beside.flaky.memory_bytes = 101 * mib
    lists = beside.flaky.lists

    async def looked() -> bool:
        return beside.flaky.lists > lists + 5

    await until(looked, "some more looks")
    assert not [one for one in beside.told if isinstance(one, frames.WorkerRow)], "by an eighth at least"
    beside.flaky.memory_bytes = 60 * mib
    await beside.tells(frames.WorkerRow, worker_id="w1-0", memory_bytes=60 * mib)


async def test_leases_that_go_on_list_nothing_where_nothing_is_seen(beside: Beside) -> None:
    beside.want()

    async def listed() -> bool:
        return beside.flaky.lists > 0

    await until(listed, "the first list")
    lists = beside.flaky.lists
    for _ in range(100):
        beside.hear(frames.Lease(held=True, caught_up=True))
        await asyncio.sleep(0)
    assert beside.flaky.lists <= lists + 1
