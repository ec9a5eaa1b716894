"""Power is lost on all machines at once, and with it every write that no flush had reached."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.disk import Unavailable, shim
from tests.faults.fleet import Fleet

BODIES = [b"message %d" % number for number in range(200)]


async def test_what_was_confirmed_is_there_when_power_is_back(fleet: Fleet) -> None:
    try:
        volatile = {"LD_PRELOAD": str(shim(fleet.directory)), "DISK_VOLATILE": "3"}
    except Unavailable as missing:
        pytest.skip(str(missing))
    peers = fleet.peers("a", "b", "c")
    for name in "abc":
        fleet.launch(name, "--peers", peers, **volatile)
    await fleet.ready("a", "b", "c")
    for order in ("cab", "bca"):
        await asyncio.gather(*(fleet.publish(name, f"q{name}", BODIES) for name in "abc"))
        for name in "abc":
            fleet.node(name).process.kill()  # type: ignore[union-attr]
        await fleet.kill("a", "b", "c")
        for name in order:
            fleet.launch(name, "--cluster", fleet.at(name), **volatile)
        await fleet.ready("a", "b", "c")
        for name, at in zip("abc", order, strict=True):
            assert await fleet.consume(at, f"q{name}", len(BODIES)) == BODIES
