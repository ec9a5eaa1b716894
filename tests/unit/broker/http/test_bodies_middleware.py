"""Bodies: how many are worked with at once, and what is read of long ones."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest

from clusterbroker.broker.http.middleware import bodies
from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.forms import BODY_BYTES_MAX, picked
from clusterbroker.cluster.wiring.commands import AddVhost, AnyCommand
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place
from tests.unit.broker.server.server_support import until

LONG = json.dumps({"description": "x" * bodies.SHORT_BYTES})


async def test_so_many_are_worked_with_at_once_and_short_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WORKED_ON_MAX", 2)
    client, go_on, inside = Client(recorded_place()), asyncio.Event(), 0

    async def slowly(command: AnyCommand) -> OrderError | None:
        nonlocal inside
        inside += isinstance(command, AddVhost)  # who makes one gets a permission in it, too
        await go_on.wait()
        return None

    monkeypatch.setattr(client.operations, "order", slowly)
    asked = [asyncio.create_task(client.ask("PUT", f"/api/vhosts/v{number}", body=LONG)) for number in range(5)]
    await until(lambda: inside == 2)
    short = asyncio.create_task(client.ask("PUT", "/api/vhosts/short", body="{}"))
    await until(lambda: inside == 3)
    go_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*asked, short)] == [201] * 6
    assert inside == 6


async def test_a_turn_is_given_back_however_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WORKED_ON_MAX", 1)
    client = Client(recorded_place())
    for body, status in ((LONG[:-1], 400), ("[" + LONG + "]", 400), (LONG, 201), (LONG, 204)):
        async with asyncio.timeout(10):
            assert (await client.ask("PUT", "/api/vhosts/v", body=body)).status_code == status


def test_of_a_long_body_only_what_is_asked_for_takes_memory() -> None:
    junk = b"[" + b"[]," * 2_000_000 + b"[]]"
    body = b'{"junk": ' + junk + b', "payload": "' + b"x" * 3_000_000 + b'", "properties": {"priority": 1}}'
    tracemalloc.start()
    try:
        fields = picked(body, ("payload", "properties", "routing_key"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(fields["payload"]), fields["properties"]) == (3_000_000, {"priority": 1})
    assert "routing_key" not in fields
    assert peak < len(body), "the lists were made"
    with pytest.raises(Refused, match="has 1048576 bytes at most"):
        picked(b'{"properties": ' + junk + b"}", ("payload", "properties"))


@pytest.mark.parametrize("body", [b"[1]", b'{"payload": nul}', b'{"payload": "x', b"\xff", b'{"payload": "\xff"}'])
def test_what_is_no_object_is_refused_however_long(body: bytes) -> None:
    with pytest.raises(Refused, match="not_json"):
        picked(body + b" " * BODY_BYTES_MAX, ("payload",))
