"""Endpoints at which this place has started workers: a list in the foreman's directory, written before the first start.

The config file says where workers are started now; this says where they may run since before. A template that moves
from one driver to another leaves workers at the first: its list is read until it has none of them, so they are ended
as the map says, and a launch that is alive there is not reported as gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from clusterbroker.broker.foreman.templates import Template

FILE: Final = "endpoints"
"""Without an ending: those of workers' records have some (`drivers.records`)."""


class _Row(msgspec.Struct, frozen=True):
    """What of a template tells its driver's endpoint (`drivers.choice.endpoint`)."""

    driver: str
    bus: str
    socket: str
    kubeconfig: str
    namespace: str


def read(directory: Path) -> tuple[Template, ...]:
    """One template for each endpoint that was recorded. Raises ValueError for a file that is none."""
    try:
        raw = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return ()
    try:
        rows = msgspec.json.decode(raw, type=tuple[_Row, ...])
        return tuple(msgspec.convert(msgspec.to_builtins(row), Template) for row in rows)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{directory / FILE}: no list of endpoints: {error}: remove it") from error


def write(directory: Path, templates: Iterable[Template]) -> None:
    """As a whole, and for good. Raises OSError."""
    rows = [_Row(one.driver, one.bus, one.socket, one.kubeconfig, one.namespace) for one in templates]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = directory / f"{FILE}.new"
    with open(new, "wb") as file:
        file.write(msgspec.json.encode(rows))
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / FILE)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
