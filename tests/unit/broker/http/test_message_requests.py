"""Single messages over HTTP: what is asked of the node, and what AMQP's rules refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.inspection import decode_request
from clusterbroker.cluster.wiring import commands as c
from tests.property.test_transaction_fold import staging
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
    assert not client.operations.done
    assert not client.operations.ordered


@pytest.mark.parametrize(("method", "what", "body"), [
    ("GET", "messages", None),
    ("POST", "messages/replay", {"filter": "", "to_queue": "busy"}),
])  # fmt: skip
async def test_what_is_exclusive_is_seen_by_its_own_user_and_by_administrators(
    place: Place, method: str, what: str, body: dict[str, Any] | None
) -> None:
    """Reply queues mostly; over AMQP nobody else gets a message of them."""
    path, sent = PATH.format("locked", what), None if body is None else json.dumps(body)

    async def asked(user: str) -> bool:
        """Whether the node is; it answers that the owner is away."""
        client = Client(place)
        client.operations.told = {"unavailable": "its owner is away"}
        code = (await client.ask(method, path, user, body=sent)).status_code
        assert code == (503 if client.operations.done else 400)
        return bool(client.operations.done)

    place.tell(rows.ConnectionRow(connection_id="node-1-7", user="pol", vhost="/"))
    assert [await asked(user) for user in ("man", "mon", "pol", "guest")] == [False, False, True, True]
    place.tell(rows.ConnectionRow(connection_id="node-1-7", user="pol", vhost="/", by_token=True))
    assert not await asked("pol"), "a token's user of the same name is somebody else"
    place.must(queue("other", durable=False, exclusive=True, connection="unknown"))
    assert (await Client(place).ask(method, PATH.format("other", what), "pol", body=sent)).status_code == 400


async def test_a_queue_that_is_locked_may_be_looked_into_and_goes_on_when_it_is_paused(place: Place) -> None:
    client = Client(place)
    await client.get(PATH.format("locked", "messages"))
    assert [what for what, _ in client.operations.done] == ["messages"]
    assert (await client.ask("PUT", PATH.format("locked", "resume"), body="{}")).status_code == 204
    (command,) = client.operations.ordered
    assert isinstance(command, c.PauseQueue)


async def test_of_staged_rows_an_administrator_deletes_single_ones(place: Place) -> None:
    """What cannot be read; the owner of the rows looks at that."""
    place.must(staging("txn.a"))
    (queue_,) = place.replica.map.staging_queues("/")

    async def asked(user: str, **body: Any) -> tuple[int, list[Any]]:
        client = Client(place)
        client.operations.told = {"unavailable": "its owner is away"}
        answer = await client.ask("POST", PATH.format("txn.a", "messages/delete"), user, body=json.dumps(body))
        return answer.status_code, [decode_request(done["request"]) for _, done in client.operations.done]

    code, (request,) = await asked("guest", staged=True, seqs=[2])
    assert (code, request.queue_id, request.seqs) == (503, queue_.queue_id, (2,))
    assert await asked("guest", seqs=[2]) == (404, [])
    assert await asked("guest", staged=True, filter="") == (400, [])
    assert await asked("man", staged=True, seqs=[2]) == (401, [])
