"""Whose rights a worker has, at what really runs it: root only where its template says root."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from foreman_support import PLACE, spec, until
from worlds import World, enterable, world

from clusterbroker.broker.foreman.drivers.port import Driver, DriverError
from clusterbroker.broker.foreman.drivers.users import check_root, names_root
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.templates import Template
from tests.support import daemons

NOBODY = pwd.getpwnam("nobody").pw_uid
WRITES = 'id -u > "$1"/uid.part; mv "$1"/uid.part "$1"/uid; exec sleep 600'
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(
    scope="module",
    params=[
        "subprocess",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("podman", "dockerd", "systemd", "kubernetes")),
        pytest.param("systemd_system", marks=pytest.mark.long),
    ],
)
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp(request.param)
    enterable(directory)
    try:
        with world(request.param, directory) as made:
            yield made
    except daemons.Missing as missing:
        pytest.skip(f"{request.param}: {missing}")


@pytest_asyncio.fixture
async def driver(beside: World) -> AsyncIterator[Driver]:
    for path in beside.files.iterdir():
        path.unlink()
    made = beside.made(PLACE)
    yield made
    await until(lambda: cleared(made), "everything removed")
    await made.close()


async def cleared(driver: Driver) -> bool:
    rows = await driver.list()
    for seen in rows:
        await (driver.remove if seen.state is State.EXITED else driver.kill)(seen.worker_id)
    return not rows


async def row(driver: Driver) -> Seen | None:
    return next(iter(await driver.list()), None)


def written(beside: World, **facts: Any) -> Template:
    return beside.template(WRITES, str(beside.files), **facts)


async def uid(beside: World) -> int:
    async def told() -> str:
        file = beside.files / "uid"
        return file.read_text() if file.exists() else ""

    return int(await until(told, "the worker's user"))


async def refusal(driver: Driver, template: Template) -> str:
    """One line; nothing is left of the worker."""
    with pytest.raises(DriverError) as heard:
        await driver.start(spec(), template)
    assert await driver.list() == ()
    assert "\n" not in str(heard.value)
    return str(heard.value)


async def test_a_worker_is_not_root_by_oversight(beside: World, driver: Driver) -> None:
    """Processes and user managers are root's here, as the system's manager is, and so are the images."""
    template = written(beside, user="")
    if beside.name == "kubernetes":
        await driver.start(spec(), template)

        async def over() -> Seen | None:
            seen = await row(driver)
            return seen if seen is not None and seen.state is State.EXITED else None

        why = (await until(over, "its kubelet refuses it")).why
        assert "image will run as root" in why
        assert 'say user = "1000" (its number) in its template, or "root"' in why
    else:
        assert "the worker would run as root" in (why := await refusal(driver, template))
        assert why.endswith('say user = "NAME" in its template, or "root"')
    assert not (beside.files / "uid").exists()


async def test_a_template_says_root(beside: World, driver: Driver) -> None:
    await driver.start(spec(), written(beside))
    assert await uid(beside) == 0


async def test_a_template_names_another_user(beside: World, driver: Driver) -> None:
    by_number = beside.name in ("docker", "kubernetes")
    template = written(beside, user=str(NOBODY) if by_number else "nobody")
    if beside.facts.get("bus") == "user":
        assert await refusal(driver, template) == (
            "systemd: a user's manager cannot start workers as 'nobody': say bus = \"system\", or leave user out"
        )
        return
    await driver.start(spec(), template)
    assert await uid(beside) == NOBODY


async def test_a_user_that_is_not_there(beside: World, driver: Driver) -> None:
    if beside.name in ("docker", "kubernetes"):
        pytest.skip(f"{beside.name} knows no users of this machine")
    assert "there is no user 'notthere'" in await refusal(driver, written(beside, user="notthere"))


@pytest.mark.parametrize("user", ["root", "0", "root:root", "0:0", "00"])
async def test_an_image_says_root(beside: World, driver: Driver, user: str) -> None:
    image = made_image(beside, user)
    assert f"as the image {image} says" in await refusal(driver, written(beside, user="", image=image))


async def test_an_image_names_another_user(beside: World, driver: Driver) -> None:
    image = made_image(beside, str(NOBODY))
    await driver.start(spec(), written(beside, user="", image=image))
    assert await uid(beside) == NOBODY


async def test_what_was_created_by_a_foreman_that_died_is_looked_at_as_well(beside: World, driver: Driver) -> None:
    if beside.name != "docker":
        pytest.skip(f"{beside.name} has no images")
    died: Any = beside.made(PLACE)
    template = written(beside, user="")
    await died._create(spec(), template)
    await died.close()
    assert (await driver.list())[0].state is State.EXITED
    assert "the worker would run as root" in await refusal(driver, template)


def made_image(beside: World, user: str) -> str:
    if beside.name != "docker":
        pytest.skip(f"{beside.name} has no images")
    tag = "user-" + re.sub(r"\W", "-", user)
    daemons.load_image(Path(beside.facts["socket"].removeprefix("unix://")), user, tag)
    return f"localhost/worker:{tag}"


@pytest.mark.parametrize("user", ["", "root", "0", "00", "+0", "0:0", "root:root", "root:1000", ":1000"])
def test_texts_that_are_root(user: str) -> None:
    assert names_root(user)


@pytest.mark.parametrize("user", ["1000", "app", "app:root", "1000:0", "rooty", "0x0"])
def test_texts_that_are_not(user: str) -> None:
    assert not names_root(user)


@pytest.mark.parametrize("user", ["", ":0", "toor"])
def test_only_what_names_root_allows_it(user: str) -> None:
    """`toor` may be a user of number 0, and `:0` is a group."""
    with pytest.raises(DriverError, match="would run as root"):
        check_root(Template(driver="docker", image="a", user=user), True)
    check_root(Template(driver="docker", image="a", user="root"), True)
