"""What a foreman relies on, of each driver, against the real thing: processes, the systemd of a user and of a system,
podman, dockerd, an API server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from foreman_support import PATIENCE_S, PLACE, spec, until
from worlds import WORLDS, World, enterable, world

from clusterbroker.broker.foreman.drivers.port import Driver, Place
from clusterbroker.broker.foreman.reconcile import Seen, State
from tests.support.daemons import Missing

WAITS = "trap 'exit 0' TERM; echo up >> {files}/up; sleep 600 & wait"
DEAF = "trap '' TERM; echo up >> {files}/up; while :; do sleep 1; done"
NASTY = "a b\n\"'$(touch {files}/x);`id`\\é%#*.\U0001f600"
WITHOUT_DAEMON = ("noop", "subprocess")
"""The others start one, and a test with podman took 20 s to end its containers."""


@pytest.fixture(
    scope="module",
    params=[name if name in WITHOUT_DAEMON else pytest.param(name, marks=pytest.mark.long) for name in WORLDS],
)
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp(request.param)
    enterable(directory)
    try:
        with world(request.param, directory) as made:
            yield made
    except Missing as missing:
        pytest.skip(f"{request.param}: {missing}")


@pytest.fixture
def files(beside: World) -> Path:
    for path in beside.files.iterdir():
        path.unlink()
    return beside.files


@pytest_asyncio.fixture
async def driver(beside: World, files: Path) -> AsyncIterator[Driver]:
    made = beside.made(PLACE)
    yield made
    await clear(made)
    await made.close()


async def clear(driver: Driver) -> None:
    async def none_left() -> bool:
        rows = await driver.list()
        for seen in rows:
            await (driver.remove if seen.state is State.EXITED else driver.kill)(seen.worker_id)
        return not rows

    await until(none_left, "everything removed")


async def row(driver: Driver, worker_id: str = "w1-0") -> Seen | None:
    return next((seen for seen in await driver.list() if seen.worker_id == worker_id), None)


async def becomes(driver: Driver, state: State, worker_id: str = "w1-0") -> Seen:
    async def there() -> Seen | None:
        seen = await row(driver, worker_id)
        return seen if seen is not None and seen.state is state else None

    found: Seen = await until(there, f"{worker_id} {state}")
    return found


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


async def wrote(path: Path) -> bytes:
    async def there() -> bytes:
        return content(path)

    text: bytes = await until(there, str(path))
    return text


async def lines(path: Path, count: int) -> bool:
    return content(path).count(b"\n") == count


def running(beside: World) -> None:
    if not beside.runs:
        pytest.skip(f"{beside.name} runs nothing")


async def test_a_worker_is_listed_with_its_labels_and_ends_by_term(beside: World, driver: Driver, files: Path) -> None:
    await driver.start(spec(), beside.template(WAITS.format(files=files)))
    seen = await becomes(driver, State.RUNNING)
    assert (seen.cluster, seen.place, seen.pool, seen.exit) == ("c1u5ter", "node1", "core", None)
    if beside.runs:
        await wrote(files / "up")
    await driver.stop("w1-0", 30)
    assert (await becomes(driver, State.EXITED)).exit == 0
    await driver.remove("w1-0")
    assert await row(driver) is None


async def test_a_second_start_is_none(beside: World, driver: Driver, files: Path) -> None:
    template = beside.template(WAITS.format(files=files))
    await driver.start(spec(), template)
    await driver.start(spec(), template)
    await becomes(driver, State.RUNNING)
    await driver.stop("w1-0", 30) if not beside.runs else await wrote(files / "up")
    await driver.kill("w1-0")
    await becomes(driver, State.EXITED)
    await driver.start(spec(), template)
    assert (await becomes(driver, State.EXITED)).state is State.EXITED, "nor after its end"
    if beside.runs:
        assert (files / "up").read_text() == "up\n"


async def test_two_starts_at_once_are_one(beside: World, driver: Driver, files: Path) -> None:
    template = beside.template(WAITS.format(files=files))
    await asyncio.gather(driver.start(spec(), template), driver.start(spec(), template))
    await becomes(driver, State.RUNNING)
    assert len(await driver.list()) == 1
    if beside.runs:
        await wrote(files / "up")
        assert (files / "up").read_text() == "up\n"


async def test_stop_kill_and_remove_of_what_is_not_there(driver: Driver) -> None:
    await driver.stop("w404-0", 30)
    await driver.kill("w404-0")
    await driver.remove("w404-0")
    assert await driver.list() == ()


async def test_remove_leaves_what_runs_alone(beside: World, driver: Driver, files: Path) -> None:
    await driver.start(spec(), beside.template(WAITS.format(files=files)))
    await becomes(driver, State.RUNNING)
    await driver.remove("w1-0")
    assert (await becomes(driver, State.RUNNING)).state is State.RUNNING


async def test_kill_ends_one_that_is_deaf_to_term(beside: World, driver: Driver, files: Path) -> None:
    running(beside)
    await driver.start(spec(), beside.template(DEAF.format(files=files)))
    await becomes(driver, State.RUNNING)
    await wrote(files / "up")
    await driver.stop("w1-0", 30)
    assert (await becomes(driver, State.RUNNING)).exit is None
    await driver.kill("w1-0")
    assert (await becomes(driver, State.EXITED)).exit == 137


async def test_an_exit_status_is_told(beside: World, driver: Driver) -> None:
    running(beside)
    await driver.start(spec(), beside.template("exit 70"))
    assert (await becomes(driver, State.EXITED)).exit == 70


@pytest.mark.parametrize("key", ["42", "", "infra=42,timetable=24", NASTY], ids=["plain", "empty", "pairs", "nasty"])
async def test_rules_38_and_64_variables_and_no_shell(
    beside: World, driver: Driver, files: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(beside)
    monkeypatch.setenv("TOKEN", "of the foreman's own environment")
    key = key.format(files=files) if key == NASTY else key
    script = 'cat /proc/$$/environ > "$1"/env.part; printf %s "$2" > "$1"/key; mv "$1"/env.part "$1"/env'
    template = beside.template(script, str(files), "{key}", environment={"MODEL": "a {key} b"}, env_pass=["LANG"])
    await driver.start(spec(key=key), template)
    told = dict(line.split("=", 1) for line in (await wrote(files / "env")).decode().split("\0") if line)
    ours = {name: value for name, value in told.items() if name.startswith("WORKER_")}
    ours.pop("WORKER_PLACE", None)  # how subprocess finds children that left their session
    assert ours == {
        "WORKER_ID": "w1-0",
        "WORKER_KEY": key,
        "WORKER_POOL": "core",
        "WORKER_REQUESTS_QUEUE": f"core-req-{key}",
        "WORKER_ACTIVITY_EXCHANGE": "core-activity-xchg",
        "WORKER_GENERATION": "7",
        "WORKER_VERSION": "v1",
        "WORKER_PREFETCH": "1",
        "WORKER_GRACE_S": "30",
        "WORKER_AMQP_URI": "amqp://worker:pass%20word@127.0.0.1:5672/%2f",
        "WORKER_AMQP_URIS": "amqp://worker:pass%20word@127.0.0.1:5672/%2f,amqp://worker:pass@127.0.0.2:5672/%2f",
    }
    assert told["MODEL"] == "a {key} b", "a key stands for a whole argument of the command, and nowhere else"
    assert "TOKEN" not in told, "nothing of the node's environment that env_pass does not list"
    assert (files / "key").read_bytes().decode() == key, "one argument, whatever is in it"
    assert not (files / "x").exists(), "a key is not run"


async def test_watch_tells_of_an_end(beside: World, driver: Driver, files: Path) -> None:
    heard = asyncio.Event()

    async def listen() -> None:
        async for _ in driver.watch():
            heard.set()

    listening = asyncio.create_task(listen())
    try:
        await driver.start(spec(), beside.template(WAITS.format(files=files)))
        await becomes(driver, State.RUNNING)
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        if beside.runs:
            await wrote(files / "up")
        heard.clear()
        await driver.kill("w1-0")
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
    finally:
        listening.cancel()
        await asyncio.wait((listening,))


async def test_places_do_not_see_each_other(beside: World, driver: Driver, files: Path) -> None:
    places = [PLACE, Place("another", "node1", {}), Place("c1u5ter", "node2", {})]
    others = [beside.made(place) for place in places[1:]]
    try:
        for one in (driver, *others):
            await one.start(spec(), beside.template(WAITS.format(files=files)))
        if beside.runs:
            await until(lambda: lines(files / "up", 3))
        for one, place in zip((driver, *others), places, strict=True):
            seen = [(row.cluster, row.place) for row in await one.list()]
            if one.shared:
                assert {cluster for cluster, _ in seen} == {place.cluster}, "another cluster's it never sees"
            else:
                assert seen == [(place.cluster, place.node)]
        if driver.shared:
            return  # of one cluster no two workers have one id, whose end is of the next test
        await driver.kill("w1-0")
        await becomes(driver, State.EXITED)
        for one in others:
            await one.stop("w1-0", 30)
            assert (await becomes(one, State.EXITED)).exit == 0, "it ran on until it was told to end"
    finally:
        for one in others:
            await clear(one)
            await one.close()


async def test_workers_of_a_node_that_is_gone_are_ended_where_the_place_is_shared(
    beside: World, driver: Driver, files: Path
) -> None:
    if not driver.shared:
        pytest.skip(f"{beside.name} is not shared")
    other = beside.made(Place("c1u5ter", "node2", {}))
    await other.start(spec("w2-0"), beside.template(WAITS.format(files=files)))
    await wrote(files / "up")
    await other.close()
    seen = await becomes(driver, State.RUNNING, "w2-0")
    assert (seen.cluster, seen.place) == ("c1u5ter", "node2")
    await driver.stop("w2-0", 30)
    assert (await becomes(driver, State.EXITED, "w2-0")).exit == 0
    back = beside.made(Place("c1u5ter", "node2", {}))
    await back.start(spec("w2-0"), beside.template(WAITS.format(files=files)))
    assert [(one.worker_id, one.state) for one in await back.list()] == [("w2-0", State.EXITED)], "it starts no second"
    await driver.remove("w2-0")
    assert await back.list() == ()
    await back.close()


async def test_a_later_foreman_finds_it_and_starts_no_second(beside: World, driver: Driver, files: Path) -> None:
    if not beside.outlives:
        pytest.skip(f"{beside.name} has no memory")
    template = beside.template(WAITS.format(files=files))
    await driver.start(spec(), template)
    await becomes(driver, State.RUNNING)
    await wrote(files / "up")
    later = beside.made(PLACE)
    assert (await becomes(later, State.RUNNING)).pool == "core"
    await later.start(spec(), template)
    await later.stop("w1-0", 30)
    ended = await becomes(later, State.EXITED)
    assert ended.exit == 0 or not beside.keeps_exit
    assert (files / "up").read_text() == "up\n"
    await later.close()


async def test_a_start_that_is_cancelled_may_be_asked_again(beside: World, driver: Driver, files: Path) -> None:
    template = beside.template(WAITS.format(files=files))
    asked = asyncio.create_task(driver.start(spec(), template))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait((asked,))
    await driver.start(spec(), template)
    await until(lambda: row(driver))
    assert len(await driver.list()) == 1
    if beside.runs and (await driver.list())[0].state is State.RUNNING:
        assert await wrote(files / "up") == b"up\n"


async def test_nothing_secret_is_shown(beside: World, driver: Driver, files: Path) -> None:
    await driver.start(spec(key="a secret key"), beside.template(WAITS.format(files=files)))
    shown = repr(await driver.list()) + repr(spec(key="a secret key"))
    assert "pass" not in shown
    assert "a secret key" not in shown


async def test_room_is_told(driver: Driver) -> None:
    room = await driver.capacity()
    assert room.memory_bytes is None or room.memory_bytes > 1 << 28


def test_all_drivers_have_a_world() -> None:
    assert {"noop", "subprocess", "systemd", "systemd_system", "podman", "dockerd"} <= WORLDS.keys()
    assert os.environ.get("CLUSTERBROKER_DAEMONS", "x"), "an empty variable names no directory"
