"""The credential of a worker that its pool has started, by raw AMQP at any node (rules 39 to 41)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from tests.faults.pools import eventually

from ..channel import Channel
from ..marks import rule
from ..wire import Connection, ConnectionClosed
from .started import StartedNodes

pytestmark = pytest.mark.processes


class Place:
    """Nodes, and what workers of the template `idle` say: the test does their work."""

    def __init__(self, nodes: StartedNodes) -> None:
        self.nodes = nodes
        self.seen: dict[str, str] = {}
        self.opened: list[Connection] = []

    def credential(self, pool: str, key: str, besides: str = "") -> tuple[str, str, str]:
        """(launch, user, password) of a worker of the key that runs."""

        def found() -> tuple[str, str, str] | None:
            for row in self.nodes.workers(pool):
                said = self.nodes.directory / row["id"]
                if row["key"] == key and row["id"] != besides and said.exists():
                    parts = urlsplit(said.read_text().strip())
                    self.seen[row["id"]] = unquote(parts.password or "")
                    return row["id"], unquote(parts.username or ""), self.seen[row["id"]]
            return None

        return eventually(f"a worker of {key}", found)

    def connect(self, user: str, password: str, at: str) -> Connection:
        made = Connection(self.nodes.url(at), user=user, password=password)
        self.opened.append(made)
        return made

    def guest(self) -> Channel:
        made = Connection(self.nodes.url())
        self.opened.append(made)
        return made.channel()

    def close(self) -> None:
        for connection in self.opened:
            connection.abandon()


@pytest.fixture
def place(nodes: StartedNodes) -> Iterator[Place]:
    made = Place(nodes)
    yield made
    made.close()


@pytest.fixture
def pool(place: Place, pool_name: str) -> str:
    """Its name; it has a request of the keys 42 and 7, whose answers go to a queue NAMEanswers."""
    name = pool_name
    place.nodes.declare(name, "idle", max=1)
    channel = place.guest()
    channel.confirm_select()
    for queue in ("answers", "others"):
        channel.queue_declare(name + queue, durable=True)
    for key in ("42", "7"):
        channel.basic_publish(name, key, key.encode(), reply_to=f"{name}answers", correlation_id=key)
    channel.confirms(2)
    return name


@rule("39", "40")
def test_it_reads_its_queue_and_answers_what_it_holds(place: Place, pool: str) -> None:
    _, user, password = place.credential(pool, "42")
    answered = place.guest()
    for at in place.nodes.names:
        connection = place.connect(user, password, at)
        for queue in (f"{pool}-req-7", f"{pool}answers", f"{pool}-poison"):
            channel = connection.channel()
            with channel.closes(403, "refused"):
                channel.basic_consume(queue)
        for exchange, key in (
            (pool, "42"), (f"{pool}-req-xchg", "7"), ("", f"{pool}others"), ("", f"{pool}answers"), ("amq.fanout", ""),
        ):  # fmt: skip
            channel = connection.channel()
            with channel.closes(403, "refused"):
                channel.basic_publish(exchange, key, b"no")
        worker = connection.channel()
        worker.basic_qos(prefetch_count=1)
        worker.consume(f"{pool}-req-42")
        got = worker.delivery(20)
        worker.confirm_select()
        worker.basic_publish(f"{pool}-activity-xchg", "42", b"", headers={"x-event": "request-received"})
        worker.basic_publish("", got.properties["reply_to"], b"done at " + at.encode(), correlation_id="c")
        assert set(worker.confirms(2)) == {"ack"}
        worker.basic_cancel(got.consumer_tag)  # else the request is handed to this worker again, and each loss counts
        worker.basic_reject(got.delivery_tag, requeue=True)
        worker.basic_qos(prefetch_count=1)  # its answer: the request has returned before the worker is lost
        connection.abandon()
    answered.consume(f"{pool}answers", no_ack=True)
    bodies = {answered.delivery(20).body for _ in place.nodes.names}
    assert bodies == {b"done at " + at.encode() for at in place.nodes.names}
    assert answered.message_count(f"{pool}others") == 0


@rule("41")
@pytest.mark.parametrize("how", ["revoked", "dead"])
def test_it_ends_everywhere_with_its_launch(place: Place, pool: str, how: str) -> None:
    launch, user, password = place.credential(pool, "42")
    connections = [place.connect(user, password, at) for at in place.nodes.names]
    worker = connections[-1].channel()
    worker.consume(f"{pool}-req-42")
    assert worker.delivery(20).body == b"42"
    if how == "revoked":
        place.nodes.api("DELETE", f"pools/%2F/{pool}?force=true").raise_for_status()
    else:
        for process in psutil.process_iter():
            if process.name() == "sleep" and _environment(process).get("WORKER_ID") == launch:
                process.kill()
    for connection in connections:
        eventually("its connection is closed", lambda one=connection: _closed(one))  # type: ignore[misc]
        assert connection.closed is not None
        assert connection.closed.reply_code == 320
        assert launch in connection.closed.reply_text
    for at in place.nodes.names:
        with pytest.raises(ConnectionClosed):
            place.connect(user, password, at).channel()
    if how == "dead":
        _, user, password = place.credential(pool, "42", besides=launch)
        again = place.connect(user, password, place.nodes.names[0]).channel()
        again.consume(f"{pool}-req-42")
        assert again.delivery(20).body == b"42"
    else:
        channel = place.guest()
        channel.consume(f"{pool}answers", no_ack=True)
        heard = {str(channel.delivery(20).properties["correlation_id"]) for _ in range(2)}
        assert heard == {"42", "7"}


def test_no_line_and_no_document_has_a_password(place: Place, pool: str) -> None:
    _, user, password = place.credential(pool, "42")
    place.connect(user, password, place.nodes.names[0]).channel()
    with pytest.raises(ConnectionClosed):
        place.connect(user, password[::-1], place.nodes.names[0]).channel()
    texts = [place.nodes.fleet.node(name).log.read_text() for name in place.nodes.names]
    paths = (f"pools/%2F/{pool}/workers", "connections", "channels", "consumers", "definitions", "users")
    texts += [place.nodes.api("GET", path).text for path in paths]
    for secret in (*place.seen.values(), password[::-1]):
        assert not any(secret in text for text in texts)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
    except psutil.Error:
        found = {}
    return found


def _closed(connection: Connection) -> Any:
    with contextlib.suppress(ConnectionClosed):
        connection.read_for(0.05)
    return connection.closed
