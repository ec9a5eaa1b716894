"""Template units ("core@.service") at a real manager, of a user and of a system."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from foreman_support import PLACE, spec, until
from worlds import WORLDS, World, enterable, world

from clusterbroker.broker.foreman.drivers.port import Driver, DriverError, Place
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.templates import Template, template
from tests.support.daemons import Missing

pytestmark = pytest.mark.long
UNIT = """
[Service]
Type=exec
RemainAfterExit=yes
EnvironmentFile={directory}/*/%I.env
ExecStart=/bin/sh -c '{script}'
{more}
"""
SCRIPTS = {
    "core": 'cd {files}; trap "exit 0" TERM; env > %I; sleep 600 & wait',
    "deaf": 'cd {files}; trap "" TERM; env > %I; while :; do sleep 1; done',
    "ends": "exit 70",
    "nobody": "cd {files}; id -u > uid; exec sleep 600",
}
OTHER = Place("another", "node1", {})
BY_ROOT = {"user": "root"} if os.geteuid() == 0 else {}


@pytest.fixture(scope="module", params=["systemd", "systemd_system"])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    assert request.param in WORLDS
    directory = tmp_path_factory.mktemp(request.param)
    enterable(directory)
    units = directory / ("units" if request.param == "systemd_system" else ".config/systemd/user")
    units.mkdir(parents=True)
    for name, script in SCRIPTS.items():
        more = "User=nobody\n" if name == "nobody" else ""
        text = UNIT.format(directory=directory, more=more, script=script.format(files=directory / "files"))
        (units / f"{name}@.service").write_text(text)
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
async def drivers(beside: World, files: Path) -> AsyncIterator[tuple[Driver, Driver]]:
    """Of two clusters with one manager."""
    made = beside.made(PLACE), beside.made(OTHER)
    yield made
    for one in made:
        await until(lambda one=one: cleared(one), "everything removed")  # type: ignore[misc]
        await one.close()
    left = [path for path in beside.files.parent.glob("cb-*/*") if path.suffix in (".env", ".json")]
    assert left == [], "no credential is left"


async def cleared(driver: Driver) -> bool:
    rows = await driver.list()
    for seen in rows:
        await (driver.remove if seen.state is State.EXITED else driver.kill)(seen.worker_id)
    return not rows


def of(beside: World, unit: str, **facts: str) -> Template:
    table = {"driver": "systemd", "bus": beside.facts["bus"], "unit": f"{unit}@.service", **BY_ROOT, **facts}
    return template("core", {**table, "environment": {"MODEL": "large $HOME"}})


async def becomes(driver: Driver, state: State) -> Seen:
    async def there() -> Seen | None:
        seen = next(iter(await driver.list()), None)
        return seen if seen is not None and seen.state is state else None

    found: Seen = await until(there, f"{state}")
    return found


async def variables(files: Path, place: Place) -> dict[str, str]:
    async def told() -> str:
        file = files / f"{place.prefix}-w1-0"
        text = file.read_text() if file.exists() else ""
        return text if "WORKER_ID=" in text and text.endswith("\n") else ""

    return dict(line.split("=", 1) for line in (await until(told)).splitlines() if "=" in line)


async def test_two_clusters_have_a_worker_of_one_id_each(
    beside: World, drivers: tuple[Driver, Driver], files: Path
) -> None:
    """Start, list, stop and exit status of one leave the other's alone."""
    first, second = drivers
    await first.start(spec(key="42"), of(beside, "core"))
    await second.start(spec(key="43"), of(beside, "core"))
    told = [await variables(files, place) for place in (PLACE, OTHER)]
    assert [(one["WORKER_ID"], one["WORKER_KEY"], one["MODEL"]) for one in told] == [
        ("w1-0", "42", "large $HOME"),
        ("w1-0", "43", "large $HOME"),
    ]
    for driver, place in zip(drivers, (PLACE, OTHER), strict=True):
        seen = await becomes(driver, State.RUNNING)
        assert (seen.cluster, seen.place) == (place.cluster, place.node)
        assert len(await driver.list()) == 1
    file = next(beside.files.parent.glob(f"*/{PLACE.prefix}-w1-0.env"))
    assert file.stat().st_mode & 0o777 == 0o600
    await first.stop("w1-0", 30)
    assert (await becomes(first, State.EXITED)).exit == 0
    assert not file.exists()
    await becomes(second, State.RUNNING)
    await second.kill("w1-0")
    assert (await becomes(second, State.EXITED)).exit == 137


async def test_a_later_foreman_finds_it_and_starts_no_second(
    beside: World, drivers: tuple[Driver, Driver], files: Path
) -> None:
    first, _ = drivers
    await first.start(spec(), of(beside, "deaf"))
    await variables(files, PLACE)
    later = beside.made(PLACE)
    await later.start(spec(), of(beside, "deaf"))
    await later.stop("w1-0", 30)
    assert (await becomes(later, State.RUNNING)).exit is None
    await later.kill("w1-0")
    assert (await becomes(later, State.EXITED)).exit == 137
    await later.close()


async def test_an_exit_status_is_told(beside: World, drivers: tuple[Driver, Driver]) -> None:
    await drivers[0].start(spec(), of(beside, "ends"))
    assert (await becomes(drivers[0], State.EXITED)).exit == 70


async def test_a_unit_that_is_not_there(beside: World, drivers: tuple[Driver, Driver]) -> None:
    with pytest.raises(DriverError, match=r"systemd: absent@\.service: not-found: its manager must have it"):
        await drivers[0].start(spec(), of(beside, "absent"))
    assert await drivers[0].list() == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="a manager of root's")
async def test_the_unit_says_whose_worker_it_is(beside: World, drivers: tuple[Driver, Driver], files: Path) -> None:
    """And its template may say the same, or nothing; root only aloud."""
    driver, _ = drivers
    with pytest.raises(DriverError, match="the worker would run as root"):
        await driver.start(spec(), of(beside, "core", user=""))
    with pytest.raises(DriverError, match=r"core@\.service has User=, and its template user = 'nobody': write"):
        await driver.start(spec(), of(beside, "core", user="nobody"))
    with pytest.raises(DriverError, match=r"nobody@\.service has User=nobody, and its template user = 'root'"):
        await driver.start(spec(), of(beside, "nobody", user="root"))
    assert await driver.list() == ()
    await driver.start(spec(), of(beside, "nobody", user=""))

    async def told() -> str:
        return (files / "uid").read_text() if (files / "uid").exists() else ""

    assert int(await until(told)) == pwd.getpwnam("nobody").pw_uid
