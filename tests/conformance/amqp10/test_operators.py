"""What operators see of sessions and links: management API, command line, metrics, and `/links` over AMQP itself."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli.main import app
from clusterbroker.broker.wire.amqp10.performatives import Accepted

from ..target import Target as Broker
from ..wire import eventually
from .conftest import Connect10
from .management import Pair


@pytest.fixture
def container() -> str:
    return f"conf/{uuid.uuid4().hex}"  # a name that has to be encoded in paths


def told(target: Broker, path: str, wanted: Callable[[Any], bool]) -> Any:
    """A document of the management API, once it is as wanted: rows are samples."""
    found: list[Any] = []

    def there() -> bool:
        answer = target.api("GET", path)
        found[:] = [answer.json() if answer.status_code == 200 else None]
        return found[0] is not None and wanted(found[0])

    eventually(there)
    return found[0]


def by_name(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {document["name"]: document for document in documents}


def test_links_in_the_management_api(connect10: Connect10, container: str, queue: str, target: Broker) -> None:
    session = connect10(container=container).session()
    sender = session.sender(f"/queues/{queue}", name="out", second=True)
    session.sender(None, name="anonymous")
    receiver = session.receiver(f"/queues/{queue}", name="in", credit=5)
    assert sender.send(b"x") == Accepted()
    receiver.delivery()

    def there(documents: list[dict[str, Any]]) -> bool:
        own = by_name([one for one in documents if one["container_id"] == container])
        return set(own) == {"out", "anonymous", "in"} and own["in"]["unsettled"] == 1

    own = by_name([one for one in told(target, "links", there) if one["container_id"] == container])
    out, incoming = own["out"], own["in"]
    assert (out["role"], out["address"], out["unsettled"], out["rcv_settle_mode"]) == (
        "sender", f"/queues/{queue}", 1, "second",
    )  # fmt: skip
    assert out["credit"] > 0
    assert out["delivery_count"] == 1
    assert own["anonymous"]["address"] is None
    assert (incoming["role"], incoming["credit"], incoming["delivery_count"]) == ("receiver", 4, 1)
    assert incoming["queue"] == {"name": queue, "vhost": "/"}
    one = target.api("GET", f"links/{quote(container, safe='')}/in").json()
    assert [document["role"] for document in one] == ["receiver"]
    assert target.api("GET", f"links/{quote(container, safe='')}/none").status_code == 404
    assert len(target.api("GET", "links/%2F?name=anonymous&page=1").json()["items"]) >= 1

    name = quote(incoming["connection_details"]["name"], safe="")
    connection = target.api("GET", f"connections/{name}").json()
    assert (connection["protocol"], connection["container_id"]) == ("AMQP 1.0", container)
    (shown,) = target.api("GET", f"connections/{name}/sessions").json()
    assert (shown["channel_number"], shown["link_count"], shown["outgoing_unsettled_deliveries"]) == (0, 3, 1)
    assert {link["link_name"]: link["target_address"] for link in shown["incoming_links"]} == {
        "out": f"/queues/{queue}", "anonymous": None,
    }  # fmt: skip
    (link,) = shown["outgoing_links"]
    assert (link["link_name"], link["queue_name"], link["credit"]) == ("in", queue, 4)
    receiver.detach()
    told(target, "links", lambda documents: "in" not in by_name(
        [one for one in documents if one["container_id"] == container]
    ))  # fmt: skip


def test_users_see_their_own_links(
    connect10: Connect10, connect10_as: Connect10, container: str, target: Broker, provisioned: Broker
) -> None:
    assert provisioned is target
    connect10(container=container).session().sender(None, name="of-guest")
    peer = connect10_as("conf-all", container=f"{container}-own")
    peer.session().sender(None, name="of-another")
    told(target, "links", lambda documents: {"of-guest", "of-another"} <= {one["name"] for one in documents})
    pair = Pair(peer.session())
    status, links = pair.ask("GET", "/links")
    assert status == 200
    assert {link["container"] for link in links} == {f"{container}-own"}


@pytest.mark.usefixtures("peer", "channel")
def test_a_connection_of_0_9_1_has_no_sessions(target: Broker) -> None:
    connections = told(
        target, "connections", lambda known: {"AMQP 1.0", "AMQP 0-9-1"} <= {one["protocol"] for one in known}
    )
    old = next(one for one in connections if one["protocol"] == "AMQP 0-9-1")
    assert old["container_id"] is None
    assert target.api("GET", f"connections/{quote(old['name'], safe='')}/sessions").json() == []


def command(target: Broker, *words: str) -> str:
    """What `clusterbroker WORDS` says, by URL."""
    environment = {
        "CLUSTERBROKER_URL": target.http, "CLUSTERBROKER_USER": "guest", "CLUSTERBROKER_PASSWORD": "guest",
        "COLUMNS": "300",
    }  # fmt: skip
    done = CliRunner().invoke(app, list(words), env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_links_on_the_command_line(connect10: Connect10, container: str, queue: str, target: Broker) -> None:
    connect10(container=container).session().sender(f"/queues/{queue}", name="cli")

    def shown() -> list[dict[str, Any]]:
        return [
            row for row in json.loads(command(target, "links", "list", "--json")) if row["container_id"] == container
        ]

    eventually(lambda: len(shown()) == 1)
    (row,) = shown()
    assert row["address"] == f"/queues/{queue}"
    assert queue in command(target, "links", "show", container, "cli")
    connection = row["connection_details"]["name"]
    assert "cli" in command(target, "links", "list", "--connection", connection, "--vhost", "/")


def test_metrics_count_sessions_and_links(connect10: Connect10, target: Broker) -> None:
    peers = [connect10() for _ in range(3)]  # of a cluster, one at each node
    for peer in peers:
        session = peer.session()
        session.sender(None)
        session.sender(None)

    def number(name: str) -> float:
        text = httpx.get(f"{target.http}/metrics", auth=("guest", "guest"), timeout=30, verify=False).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else -1

    eventually(lambda: number("clusterbroker_sessions") >= 1)
    eventually(lambda: number('clusterbroker_links{role="sender"}') >= 2)
    assert number('clusterbroker_links{role="receiver"}') >= 0


def test_links_over_amqp(connect10: Connect10, container: str, queue: str) -> None:
    peer = connect10(container=container)
    session = peer.session()
    pair = Pair(session)
    receiver = session.receiver(f"/queues/{queue}", name="to end", credit=3)
    session.sender(f"/queues/{queue}", name="to end")
    status, links = pair.ask("GET", "/links")
    assert status == 200
    own = {(link["name"], link["role"]): link for link in links if link["container"] == container}
    assert own["to end", "receiver"]["address"] == f"/queues/{queue}"
    assert own["to end", "receiver"]["credit"] == 3
    assert own["to end", "sender"]["credit"] > 0
    path = f"/links/{quote(container, safe='')}/to%20end"
    assert pair.ask("DELETE", path) == (200, {"link_count": 2})
    receiver.detached("amqp:connection:forced", "to end")
    assert pair.ask("DELETE", path)[0] == 404
    assert pair.ask("DELETE", "/links/only-one")[0] == 400
    assert pair.ask("PUT", "/links", {})[0] == 400
