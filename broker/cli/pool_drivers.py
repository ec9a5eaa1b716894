"""`clusterbroker pools drivers`: whether this machine can run workers as a config file says (waits).

A probe is a worker as any other, of a pool and a cluster of its own: started, seen, stopped, removed. It runs the
command of its template, or of docker and kubernetes their image, with a key that no request has, and without a
credential.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from clusterbroker.broker.cli.exit_codes import FAILED, USAGE
from clusterbroker.broker.foreman.drivers import choice
from clusterbroker.broker.foreman.drivers.port import Driver, DriverError, Place, bounded
from clusterbroker.broker.foreman.reconcile import Seen, State
from clusterbroker.broker.foreman.spec import WorkerSpec
from clusterbroker.broker.foreman.templates import BadTemplate, Template, read_templates

WAIT_S = 30.0
LOOK_S = 0.02
PROBE = "w0-0"


def pool_drivers(
    config: Annotated[Path, typer.Option("--config", help="The node's config file, with sections [pools.NAME].")],
) -> None:
    """Try each template's driver: start a probe, see it, stop it."""
    try:
        templates = read_templates(config)
    except BadTemplate as error:
        typer.echo(f"clusterbroker: {error}", err=True)
        raise typer.Exit(USAGE) from None
    if not templates:
        typer.echo(f"clusterbroker: {config}: there is no section [pools.NAME]: write one", err=True)
        raise typer.Exit(USAGE)
    good = True
    for name, template in sorted(templates.items()):
        why, took_ms = asyncio.run(tried(name, template))
        good &= not why
        typer.echo(
            f"{name}  {template.driver}  version {template.version}  {why or f'started and stopped in {took_ms} ms'}"
        )
    raise typer.Exit(0 if good else FAILED)


async def tried(name: str, template: Template) -> tuple[str, int]:
    """(why it is of no use, or empty; milliseconds)."""
    place = Place(f"probe-{secrets.token_hex(6)}", "probe", dict(os.environ))
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clusterbroker-probe-") as directory:
        try:
            driver = await choice.made(template, place, Path(directory))
        except DriverError as error:
            return str(error), 0
        why = ""
        try:
            await _probe(driver, name, template)
        except DriverError as error:
            why = str(error)
        finally:
            left = await _cleared(driver)
            await driver.close()
    if left and left != why:
        why += f"; the probe was not cleared away: {left}" if why else f"the probe was not cleared away: {left}"
    return why, int((time.monotonic() - begun_s) * 1000)


async def _probe(driver: Driver, name: str, template: Template) -> None:
    """Raises DriverError."""
    spec = WorkerSpec(
        worker_id=PROBE, pool=name, template=name, key="clusterbroker-probe", generation=0, version=template.version,
        queue="clusterbroker-probe", activity_exchange="clusterbroker-probe", grace_s=5.0,
    )  # fmt: skip
    await bounded(driver.name, "start", driver.start(spec, template))
    seen = await _seen(driver, lambda one: one is not None and one.state is not State.STARTING)
    if seen is not None and seen.state is State.RUNNING:
        await bounded(driver.name, "stop", driver.stop(PROBE, 5.0))
        try:
            await _seen(driver, lambda one: one is None or one.state is State.EXITED, 5.0)
        except DriverError:
            await bounded(driver.name, "kill", driver.kill(PROBE))
        await _seen(driver, lambda one: one is None or one.state is State.EXITED)


async def _seen(driver: Driver, holds: Callable[[Seen | None], bool], wait_s: float = WAIT_S) -> Seen | None:
    """The probe's row, once it is as wanted. Raises DriverError."""
    end_s = time.monotonic() + wait_s
    while True:
        rows = await bounded(driver.name, "list", driver.list())
        found = next((one for one in rows if one.worker_id == PROBE), None)
        if holds(found):
            return found
        if time.monotonic() > end_s:
            raise DriverError(
                f"{driver.name}: the probe is {found.state.value if found else 'not there'} for {wait_s:g} s"
            )
        await asyncio.sleep(LOOK_S)


async def _cleared(driver: Driver) -> str:
    """Nothing stays, whatever happened; else why it does."""
    try:
        for one in await bounded(driver.name, "list", driver.list()):
            if one.state is not State.EXITED:
                await bounded(driver.name, "kill", driver.kill(one.worker_id))
                await _seen(driver, lambda found: found is None or found.state is State.EXITED)
            await bounded(driver.name, "remove", driver.remove(one.worker_id))
    except DriverError as error:
        return str(error)
    return ""
