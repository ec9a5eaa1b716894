"""Nobody becomes the operator over TCP: it is the server that took a request which says where it came from."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from clusterbroker.broker.http.local import AS_USER, LocalServer, principal_of
from clusterbroker.broker.management.principals import OPERATOR
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place

FORGED = ({AS_USER: "guest"}, {AS_USER: ""}, {"clusterbroker.local": "1"}, {"x-clusterbroker-local": "true"})


@pytest.mark.parametrize("headers", FORGED)
async def test_what_a_client_says_of_itself_is_not_believed(headers: dict[str, str]) -> None:
    client = Client(recorded_place())
    for path in ("/api/whoami", "/api/users", "/api/definitions"):
        assert (await client.http.get(path, headers=headers)).status_code == 401
    told = await client.http.get("/api/whoami", headers=headers, auth=("man", "secret-pass"))
    assert told.json() == {"name": "man", "tags": ["management"]}
    refused = await client.http.put(
        "/api/vhosts/mine",
        headers={**headers, "content-type": "application/json"},
        auth=("man", "secret-pass"),
        content="{}",
    )
    assert refused.status_code == 401


async def test_the_server_of_the_socket_marks_what_it_took() -> None:
    map_ = recorded_place().replica.map
    seen: list[str] = []

    async def app(scope: dict[str, object], _receive: object, _send: object) -> None:
        principal = principal_of(Request(scope), map_)  # type: ignore[arg-type]
        seen.append("nobody" if principal is None else principal.name)

    server = LocalServer(app)
    loaded = server.config.app
    for scope in ({"type": "http", "headers": []}, {"type": "http", "headers": [(AS_USER.encode(), b"man")]}):
        await app(scope, None, None)
        await loaded(scope, None, None)  # type: ignore[operator, misc]
    assert seen == ["nobody", OPERATOR, "nobody", "man"]
