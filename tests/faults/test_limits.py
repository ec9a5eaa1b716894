"""Limits of connections on a real cluster: counted over all members, and not those of one that died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from clusterbroker.broker.trial.client import Client, ClientLost
from tests.faults.fleet import Fleet, until

pytestmark = [pytest.mark.faults]


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    fleet.found("a", "b", "c")
    await fleet.ready("a", "b", "c")
    yield fleet
    await fleet.kill_all()


async def enters(fleet: Fleet, name: str) -> Client | None:
    """The client; None: it was refused."""
    try:
        return await fleet.client(name)
    except ClientLost as lost:
        if "connection limit (2) is reached" not in str(lost):
            raise
        return None


async def refused(fleet: Fleet, name: str) -> bool:
    client = await enters(fleet, name)
    if client is not None:
        await client.close()
    return client is None


async def test_a_limit_holds_for_all_members_and_lets_the_clients_of_a_dead_one_in(fleet: Fleet) -> None:
    await fleet.ask("a", "vhost.limit", vhost="/", limit="max-connections", value=2)
    first, second = await enters(fleet, "a"), await enters(fleet, "b")
    assert first is not None
    assert second is not None
    for name in "abc":
        await until(lambda name=name: refused(fleet, name), f"{name} has not heard of the others' clients")
    await second.close()
    third = await until(lambda: enters(fleet, "c"), "who left still counts")
    await until(lambda: refused(fleet, "b"), "b has not heard of c's client")
    await fleet.kill("a")
    fourth = await until(lambda: enters(fleet, "b"), "who was at a dead member still counts")
    await until(lambda: refused(fleet, "c"), "c has not heard of b's client")
    for client in (third, fourth):
        await client.close()
