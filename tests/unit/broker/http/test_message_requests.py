"""Single messages over HTTP: what is asked of the node, and what AMQP's rules refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import Place, queue, recorded_place

PATH = "/api/queues/%2F/{}/{}"


@pytest.fixture
def place() -> Place:
    place = recorded_place()
    place.must(queue("locked", durable=False, exclusive=True, connection="node-1-7"))
    return place


@pytest.mark.parametrize(
    ("method", "what", "body"),
    [
        ("POST", "messages/delete", {"filter": ""}),
        ("POST", "messages/move", {"filter": "", "to_queue": "busy"}),
        ("PUT", "pause", {}),
    ],
)
async def test_nobody_takes_from_a_connection_what_is_exclusive_to_it(
    place: Place, method: str, what: str, body: dict[str, Any]
) -> None:
    client = Client(place)
    answer = await client.ask(method, PATH.format("locked", what), body=json.dumps(body))
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert "cannot obtain exclusive access to locked queue 'locked' in vhost '/'" in answer.json()["reason"]
    assert not client.deeds.done
    assert not client.deeds.ordered


async def test_a_queue_that_is_locked_may_be_looked_into_and_goes_on_when_it_is_paused(place: Place) -> None:
    client = Client(place)
    await client.get(PATH.format("locked", "messages"))
    assert [what for what, _ in client.deeds.done] == ["messages"]
    assert (await client.ask("PUT", PATH.format("locked", "resume"), body="{}")).status_code == 204
    (command,) = client.deeds.ordered
    assert isinstance(command, c.PauseQueue)
