"""Links whose clients are away, as operators see and end them: management API, command line, metrics."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli.main import app
from clusterbroker.broker.wire.amqp10.performatives import Accepted

from ..target import PASSWORD
from ..target import Target as Broker
from ..wire import Channel, eventually
from .conftest import Connect10
from .recovering import KEPT_S, lasting_receiver, ready, receiver, suspend, tag_of
from .recovering import sender as kept_sender
from .test_links import fill
from .test_operators import told
from .test_recoverable_senders import recoverable
from .wire import Session

Ask = Callable[..., httpx.Response]


@pytest.fixture
def container() -> str:
    return f"away/{uuid.uuid4().hex}"


@pytest.fixture
def ask(target: Broker) -> Iterator[Ask]:
    with httpx.Client(base_url=target.http, timeout=30, verify=False) as client:

        def asked(method: str, path: str, user: str = "guest", password: str = "guest", **query: str) -> httpx.Response:
            return client.request(method, f"/api/{path}", params=query, auth=(user, password))

        yield asked


def path_of(container: str, name: str) -> str:
    return f"links/{quote(container, safe='')}/{name}"


def one(target: Broker, container: str, name: str, state: str, unsettled: int) -> dict[str, Any]:
    """The only link of this name, once it is so."""
    found = told(
        target,
        path_of(container, name),
        lambda known: [(one["state"], one["unsettled"]) for one in known] == [(state, unsettled)],
    )
    return dict(found[0])


def three_levels(session: Session, queue: str) -> None:
    """Receivers and senders that are kept by their session, their node and the logs, with deliveries."""
    fill(session, queue, 6)
    for name, fields in (("session", {}), ("node", {"timeout": KEPT_S}), ("log", {"timeout": KEPT_S, "lasting": True})):
        link = receiver(session, queue, name, **fields)
        link.grant(2)
        link.deliveries(2)
        suspend(link)
    kept = kept_sender(session, queue, name="sends")
    kept.send(b"x")
    suspend(kept)
    lasting = recoverable(session, f"/queues/{queue}", name="sends for ever", second=True)
    lasting.post(b"y")
    lasting.post(b"z")
    session.settle_down()
    suspend(lasting)


def test_what_keeps_which_link(connect10: Connect10, container: str, queue: str, target: Broker) -> None:
    session = connect10(container=container).session()
    three_levels(session, queue)
    node = target.api("GET", f"queues/%2F/{queue}").json()["node"]
    for level, policy, timeout_s in (("session", "session-end", 0), ("node", "session-end", KEPT_S),
                                     ("log", "link-detach", KEPT_S)):  # fmt: skip
        link = one(target, container, level, "suspended", 2)
        assert (link["level"], link["role"], link["address"]) == (level, "receiver", f"/queues/{queue}")
        assert (link["expiry_policy"], link["timeout_s"], link["user"], link["vhost"]) == (
            policy,
            timeout_s,
            "guest",
            "/",
        )
        told(target, path_of(container, level), lambda known: known[0]["queue"] == {"name": queue, "vhost": "/"})
        assert (link["connection_details"], link["session"], link["credit"]) == ({}, None, None)
        told(target, path_of(container, level), lambda known: known[0]["node"] is not None)
    lasting = told(target, path_of(container, "log"), lambda known: known[0]["since"] is not None)[0]
    assert lasting["expires"] - lasting["since"] == KEPT_S * 1000
    assert 0 < lasting["expires_in_s"] <= KEPT_S
    assert (lasting["node"], lasting["queue"]["name"]) == (node, queue), "the leader of its queue holds what it has"
    assert one(target, container, "session", "suspended", 2)["expires"] is None, "its time does not run"
    assert one(target, container, "sends", "suspended", 1)["role"] == "sender"
    assert one(target, container, "sends%20for%20ever", "suspended", 2)["level"] == "log"
    everything = target.api("GET", "links/%2F").json()
    assert len([link for link in everything if link["container_id"] == container]) == 5

    again = lasting_receiver(session, queue, {}, name="log")
    attached = one(target, container, "log", "attached", 0)
    assert (attached["level"], attached["expires"], again.attach.incomplete_unsettled) == ("log", None, False)
    assert attached["since"] >= lasting["since"]
    again.detach()
    told(target, "links", lambda known: ("log", container) not in {(a["name"], a["container_id"]) for a in known})


@pytest.mark.parametrize("level", ["session", "node", "log"])
def test_an_operator_ends_a_suspended_link(
    connect10: Connect10, container: str, queue: str, channel: Channel, target: Broker, ask: Ask, level: str
) -> None:
    session = connect10(container=container).session()
    fill(session, queue, 2)
    link = receiver(session, queue, "l", timeout=0 if level == "session" else KEPT_S, lasting=level == "log")
    link.grant(2)
    held = link.deliveries(2)
    suspend(link)
    one(target, container, "l", "suspended", 2)
    assert ask("DELETE", path_of(container, "l"), role="sender").status_code == 404
    assert ask("DELETE", path_of(container, "l"), role="both").status_code == 400
    assert ask("DELETE", path_of(container, "l"), role="receiver").status_code == 204
    ready(channel, queue, 2)
    told(target, "links", lambda known: container not in {link["container_id"] for link in known})
    assert ask("DELETE", path_of(container, "l")).status_code == 404
    back = session.receiver(f"/queues/{queue}", credit=2)
    assert [delivery.message.header.delivery_count for delivery in back.deliveries(2)] == [0, 0], "uncounted"
    lost = receiver(session, queue, "l", {tag_of(held[0]): None}, timeout=KEPT_S, lasting=level == "log")
    lost.detached("amqp:resource-deleted")


@pytest.mark.parametrize("level", ["none", "node", "log"])
def test_an_attached_link_is_ended_by_force(
    connect10: Connect10, container: str, queue: str, channel: Channel, target: Broker, ask: Ask, level: str
) -> None:
    session = connect10(container=container).session()
    fill(session, queue, 2)
    if level == "none":
        link: Any = session.receiver(f"/queues/{queue}", name="l")
    else:
        link = receiver(session, queue, "l", timeout=KEPT_S, lasting=level == "log")
    link.grant(2)
    held = link.deliveries(2)
    one(target, container, "l", "attached", 2)
    refused = ask("DELETE", path_of(container, "l"))
    assert refused.status_code == 400
    assert f"link 'l' of container '{container}' is attached at node" in refused.json()["reason"]
    vhost = path_of(container, "l").replace("links/", "links/%2F/")
    assert ask("DELETE", vhost, force="true").status_code == 204
    link.detached("amqp:connection:forced", "link 'l' was ended by user 'guest'")
    ready(channel, queue, 2)
    told(target, "links", lambda known: container not in {link["container_id"] for link in known})

    def is_over() -> bool:
        lost = receiver(session, queue, "l", {tag_of(held[0]): None}, timeout=KEPT_S, lasting=level == "log")
        lost.detached("amqp:resource-deleted")
        return True

    assert is_over()


def test_a_sender_that_was_ended_is_a_new_one(
    connect10: Connect10, container: str, queue: str, target: Broker, ask: Ask
) -> None:
    session = connect10(container=container).session()
    link = recoverable(session, f"/queues/{queue}", second=True)
    number = link.post(b"x", tag=b"1")
    assert link.outcome(number) == Accepted()
    suspend(link)
    one(target, container, "l", "suspended", 1)
    assert ask("DELETE", path_of(container, "l")).status_code == 204
    lost = recoverable(session, f"/queues/{queue}", second=True, unsettled={b"1": None}, waits=False)
    lost.detached("amqp:resource-deleted")
    assert recoverable(session, f"/queues/{queue}", second=True).attach.offered_capabilities


def test_a_link_is_its_users(
    connect10_as: Connect10, container: str, target: Broker, ask: Ask, channel: Channel, provisioned: Broker
) -> None:
    assert provisioned is target
    queue = str(channel.queue_declare("", durable=True).queue)
    target.api("PUT", "users/conf-all", {"password": PASSWORD, "tags": "management"}).raise_for_status()
    monitor = f"monitor-{uuid.uuid4().hex}"
    target.api("PUT", f"users/{monitor}", {"password": PASSWORD, "tags": "monitoring"}).raise_for_status()
    session = connect10_as("conf-all", container=container).session()
    for name in ("one", "two"):
        suspend(lasting_receiver(session, queue, name=name))
        one(target, container, name, "suspended", 0)
    path = path_of(container, "one")
    eventually(lambda: ask("GET", path, monitor, PASSWORD).status_code == 200)
    assert ask("DELETE", path, monitor, PASSWORD).status_code == 401, "who monitors ends nothing"
    assert ask("DELETE", path, "conf-all", PASSWORD).status_code == 204, "it is its own"
    assert ask("DELETE", path_of(container, "two")).status_code == 204, "an administrator ends all"
    target.api("DELETE", f"users/{monitor}")
    target.api("PUT", "users/conf-all", {"password": PASSWORD, "tags": ""}).raise_for_status()


def command(target: Broker, *words: str) -> tuple[int, str]:
    environment = {
        "CLUSTERBROKER_URL": target.http, "CLUSTERBROKER_USER": "guest", "CLUSTERBROKER_PASSWORD": "guest",
        "COLUMNS": "300",
    }  # fmt: skip
    done = CliRunner().invoke(app, list(words), env=environment, catch_exceptions=False)
    return done.exit_code, done.stdout + done.stderr


def test_on_the_command_line(connect10: Connect10, container: str, queue: str, target: Broker) -> None:
    session = connect10(container=container).session()
    for name in ("a", "b"):
        suspend(lasting_receiver(session, queue, name=name))
    attached = lasting_receiver(session, queue, name="c")
    for name, state in (("a", "suspended"), ("b", "suspended"), ("c", "attached")):
        one(target, container, name, state, 0)
    rows = json.loads(command(target, "links", "list", "--vhost", "/", "--json")[1])
    assert {(row["name"], row["state"]) for row in rows if row["container_id"] == container} == {
        ("a", "suspended"), ("b", "suspended"), ("c", "attached"),
    }  # fmt: skip
    assert "suspended" in command(target, "links", "show", container, "a")[1]
    for state, names in (("suspended", {"a", "b"}), ("attached", {"c"})):
        rows = json.loads(command(target, "links", "list", "--state", state, "--json")[1])
        assert {row["name"] for row in rows if row["container_id"] == container} == names
    assert target.api("GET", "links?state=lost").status_code == 400
    assert json.loads(command(target, "links", "list", "--connection", "none", "--json")[1]) == []
    code, line = command(target, "links", "expire", container, "a", "b")
    assert (code, line) == (0, f"2 links of container '{container}' ended\n")
    code, line = command(target, "links", "expire", container, "c")
    assert code == 1
    start = f"clusterbroker: link 'c' of container '{container}' is attached at node '"
    assert (line.startswith(start), line.count("\n")) == (True, 1), line
    assert line.endswith("': with force=true it is detached first\n")
    assert command(target, "links", "expire", container, "none")[0] == 1
    assert command(target, "links", "expire", container, "c", "--force", "--role", "receiver", "--vhost", "/")[0] == 0
    attached.detached("amqp:connection:forced")


def test_metrics(connect10: Connect10, container: str, queue: str, target: Broker) -> None:
    session = connect10(container=container).session()
    three_levels(session, queue)

    def tells(name: str, level: str, state: str, least: int) -> bool:
        """Of a cluster the node that is asked tells what is its own."""
        text = httpx.get(f"{target.http}/metrics", auth=("guest", "guest"), timeout=30, verify=False).text
        found = re.search(rf'^clusterbroker_{name}{{level="{level}",state="{state}"}} (\S+)$', text, re.MULTILINE)
        return found is not None and float(found.group(1)) >= (0 if is_cluster else least)

    is_cluster = len(target.api("GET", "nodes").json()) > 1
    lasting_receiver(session, queue, name="attached")
    for level in ("session", "node", "log"):
        eventually(lambda level=level: tells("links_kept", level, "suspended", 1))  # type: ignore[misc]
        eventually(lambda level=level: tells("link_unsettled", level, "suspended", 2))  # type: ignore[misc]
    eventually(lambda: tells("links_kept", "log", "attached", 1))
