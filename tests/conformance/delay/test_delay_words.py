"""Words of `amq.delay`, and the same by management of AMQP 1.0: at each node, with rights and errors (rule 85)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from ..amqp10.conftest import connect10  # noqa: F401
from ..amqp10.management import Pair
from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from .conftest import Delayed, Name, declare

HOUR_MS = 3_600_000
REPLY_TO = "amq.rabbitmq.reply-to"


class Asker:
    """A channel that asks and hears answers."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        channel.confirm_select()
        channel.consume(REPLY_TO, no_ack=True)
        self._asked = 0

    def ask(self, word: str, **body: Any) -> dict[str, Any]:
        self._asked += 1
        self.channel.basic_publish("amq.delay", word, json.dumps(body).encode(), reply_to=REPLY_TO, correlation_id="7")
        answer = self.channel.delivery()
        assert answer.properties["correlation_id"] == "7"
        found: dict[str, Any] = json.loads(answer.body)
        confirm = "nack" if found["outcome"] == "refused" else "ack"
        assert self.channel.confirms(self._asked)[-1] == confirm
        return found


@pytest.fixture
def askers(connect: Connect) -> list[Asker]:
    """At each of three nodes, if there are three."""
    return [Asker(connect().channel()) for _ in range(3)]


@pytest.fixture
def waiting(delayed: Delayed) -> Delayed:
    """With two messages, one under a key."""
    delayed.channel.confirm_select()
    delayed.listen()
    delayed.publish(b"keyed", x_delay=HOUR_MS, x_delay_key="k/é")
    delayed.publish(b"other", x_delay=HOUR_MS)
    assert delayed.channel.confirms(2) == ["ack", "ack"]
    return delayed


@rule("85")
def test_any_node_counts_finds_and_cancels(waiting: Delayed, askers: list[Asker]) -> None:
    began = int(time.time() * 1000)
    for asker in askers:
        assert asker.ask("count", exchange=waiting.exchange) == {"outcome": "counted", "messages": 2}
        found = asker.ask("stored", exchange=waiting.exchange, key="k/é")
        assert (found["outcome"], found["messages"]) == ("stored", 1)
        assert abs(found["due_ms"] - began - HOUR_MS) < 60_000
        nothing = {"outcome": "stored", "messages": 0, "due_ms": None}
        assert asker.ask("stored", exchange=waiting.exchange, key="k") == nothing
    counts = [asker.ask("cancel", exchange=waiting.exchange, key="k/é")["messages"] for asker in askers]
    assert counts == [1] + [0] * (len(askers) - 1), "whoever repeats it hears that nothing waits"
    assert askers[-1].ask("count", exchange=waiting.exchange)["messages"] == 1
    waiting.channel.nothing_delivered()


@rule("85")
@pytest.mark.parametrize("word", ["count", "stored", "cancel"])
def test_what_is_no_delayed_exchange_is_refused(connect: Connect, word: str) -> None:
    asker = Asker(connect().channel())
    key = {} if word == "count" else {"key": "k"}
    for exchange in ("amq.direct", "nothing-of-this-name"):
        found = asker.ask(word, exchange=exchange, **key)
        assert found == {
            "outcome": "refused", "code": 404, "reason": f"no delayed exchange '{exchange}' in vhost '/'"
        }  # fmt: skip


@rule("85")
@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("count", {}),
        ("count", {"exchange": "x", "key": "k"}),
        ("stored", {"exchange": "x"}),
        ("cancel", {"exchange": "x", "key": ""}),
        ("cancel", {"exchange": "x", "key": "k" * 256}),
        ("cancel", {"exchange": "x", "keys": ["k"]}),
    ],
)
def test_a_body_that_says_too_little_or_too_much(channel: Channel, word: str, body: dict[str, Any]) -> None:
    with channel.closes(406, f"invalid body of amq.delay '{word}'", "basic.publish"):
        channel.basic_publish("amq.delay", word, json.dumps(body).encode())


@pytest.fixture
def guarded(channel: Channel, name: Name) -> Callable[[str, str], str]:
    """`guarded(stem, kind)`: a delayed exchange with one message that waits under "k"."""

    def make(stem: str, kind: str) -> str:
        exchange = name(stem)
        declare(channel, exchange, kind)
        queue = name("q")
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "a.b")
        channel.basic_publish(exchange, "a.b", b"x", headers={"x-delay": HOUR_MS, "x-delay-key": "k"})
        channel.queue_declare(queue, passive=True)  # it is taken
        return exchange

    return make


@rule("85")
def test_to_look_takes_reading_and_to_cancel_writing(connect_as: Connect, guarded: Callable[[str, str], str]) -> None:
    exchange = guarded("perm-later", "direct")
    reader = Asker(connect_as("conf-reader").channel())
    assert reader.ask("count", exchange=exchange)["messages"] == 1
    assert reader.ask("stored", exchange=exchange, key="k")["messages"] == 1
    body = json.dumps({"exchange": exchange, "key": "k"}).encode()
    with reader.channel.closes(403, f"write access to exchange '{exchange}'", "basic.publish"):
        reader.channel.basic_publish("amq.delay", "cancel", body)
    writer = connect_as("conf-writer").channel()
    with writer.closes(403, f"read access to exchange '{exchange}'", "basic.publish"):
        writer.basic_publish("amq.delay", "cancel", body)
    both = Asker(connect_as("conf-all").channel())
    assert both.ask("cancel", exchange=exchange, key="k") == {"outcome": "cancelled", "messages": 1}


@pytest.fixture
def topics(channel: Channel, name: Name) -> Iterator[str]:
    """The exchange in which topic permissions limit one user."""
    declare(channel, "perm-topic", "topic")
    yield "perm-topic"
    channel.exchange_delete("perm-topic")


@rule("85")
def test_who_is_limited_to_some_keys_sees_none(connect_as: Connect, topics: str) -> None:
    free = Asker(connect_as("conf-all").channel())
    assert free.ask("stored", exchange=topics, key="k")["messages"] == 0
    limited = Asker(connect_as("conf-topical").channel())
    assert limited.ask("count", exchange=topics)["messages"] == 0
    body = json.dumps({"exchange": topics, "key": "k"}).encode()
    for word in ("stored", "cancel"):
        limited = Asker(connect_as("conf-topical").channel())
        with limited.channel.closes(403, "topic permissions or scopes limit user 'conf-topical'", "basic.publish"):
            limited.channel.basic_publish("amq.delay", word, body)


@rule("85")
def test_clients_of_amqp_10_ask_by_management(waiting: Delayed, connect10: Any) -> None:  # noqa: F811
    path = f"/exchanges/{quote(waiting.exchange, safe='')}/delayed"
    keyed = f"{path}?key={quote('k/é', safe='')}"
    pairs = [Pair(connect10().session()) for _ in range(3)]
    for pair in pairs:
        assert pair.ask("GET", path) == (200, {"message_count": 2})
        status, found = pair.ask("GET", keyed)
        assert (status, found["message_count"]) == (200, 1)
        assert abs(found["due_ms"] - time.time() * 1000 - HOUR_MS) < 60_000
        assert pair.ask("GET", f"{path}?key=k") == (200, {"message_count": 0, "due_ms": None})
    assert [pair.ask("DELETE", keyed)[1] for pair in pairs] == [{"message_count": count} for count in (1, 0, 0)]
    asked = [
        ("DELETE", path),
        ("GET", f"{path}?key="),
        ("GET", f"{path}?no=1"),
        ("GET", "/exchanges/amq.direct/delayed"),
    ]
    assert [pairs[0].ask(method, where)[0] for method, where in asked] == [400, 400, 400, 404]
    waiting.channel.nothing_delivered()
