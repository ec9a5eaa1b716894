"""Pools as things: what they make, what is closed, how they end (rules 1 to 7, 61 to 63 and 71)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from ..target import Target
from ..wire import eventually
from .conftest import Name, PoolOfTest, status

Declare = Callable[..., PoolOfTest]


def parts(pool: PoolOfTest) -> tuple[list[str], list[str]]:
    prefix = pool.names.exchange
    found = []
    for kind in ("exchanges", "queues"):
        rows = pool.target.api("GET", f"{kind}/%2F").raise_for_status().json()
        names = (row["name"] for row in rows)
        found.append(sorted(name.removeprefix(prefix) for name in names if name.split("-")[0] == prefix))
    return found[0], found[1]


ALL = (
    ["", "-activity-xchg", "-delayed", "-dl-xchg", "-orphan-xchg", "-req-xchg"],
    ["-activity", "-dl", "-orphan", "-poison"],
)


@rule("1")
def test_a_pool_makes_its_exchanges_and_queues(pool: PoolOfTest) -> None:
    assert parts(pool) == ALL


@rule("2")
def test_the_same_again_is_a_success(pool: PoolOfTest) -> None:
    before = pool.document()
    assert pool.target.api("PUT", pool.path, {}).status_code == 204
    assert parts(pool) == ALL
    assert pool.document() == before
    refused = pool.target.api("PUT", pool.path, {"max": 3})
    assert refused.status_code == 400
    assert "change it with set" in refused.json()["reason"]
    pool.set(max=3)
    assert pool.document()["settings"]["max"] == 3


@rule("3")
def test_an_unknown_template_is_refused(target: Target, name: Name) -> None:
    refused = target.api("PUT", f"pools/%2F/{name('p')}", {"template": "nobody has it"})
    assert refused.status_code == 400
    assert "known are noop" in refused.json()["reason"]


@rule("2")
@pytest.mark.parametrize(("setting", "word"), [("ready", "now"), ("scaling", ""), ("status_type", 5)])
def test_a_setting_has_one_of_its_words(pool: PoolOfTest, setting: str, word: object) -> None:
    for method, path in (("PUT", pool.path), ("POST", f"{pool.path}/set")):
        refused = pool.target.api(method, path, {setting: word})
        assert refused.status_code == 400
        assert f"{setting} is '{word}': one of " in refused.json()["reason"]


@rule("4")
@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("queue_declare", {"queue": "{}-orphan", "durable": True}),
        ("queue_declare", {"queue": "{}-req-42", "durable": True}),
        ("queue_declare", {"queue": "{}-req-unknown", "durable": True}),
        ("queue_purge", {"queue": "{}-req-42"}),
        ("queue_purge", {"queue": "{}-poison"}),
        ("queue_delete", {"queue": "{}-req-42"}),
        ("queue_delete", {"queue": "{}-dl"}),
        ("queue_bind", {"queue": "{}-req-42", "exchange": "amq.direct", "routing_key": "k"}),
        ("queue_bind", {"queue": "{q}", "exchange": "{}-req-xchg", "routing_key": "42"}),
        ("queue_unbind", {"queue": "{}-req-42", "exchange": "{}-req-xchg", "routing_key": "42"}),
        ("exchange_declare", {"exchange": "{}", "type": "fanout", "durable": True}),
        ("exchange_delete", {"exchange": "{}-req-xchg"}),
        ("exchange_bind", {"destination": "{}", "source": "amq.direct", "routing_key": "k"}),
        ("basic_consume", {"queue": "{}-orphan"}),
        ("basic_consume", {"queue": "{}-dl"}),
        ("basic_get", {"queue": "{}-dl"}),
        ("basic_publish", {"exchange": "{}-dl-xchg", "routing_key": "42", "body": b""}),
    ],
)
def test_what_is_a_pools_is_closed(
    pool: PoolOfTest, channel: Channel, queue: str, method: str, arguments: dict[str, Any]
) -> None:
    pool.call("42")
    pool.has_group("42")
    filled = {
        name: value.format(pool.names.exchange, q=queue) if isinstance(value, str) else value
        for name, value in arguments.items()
    }
    with channel.closes(403, "belongs to pool"):
        getattr(channel, method)(**filled)


@rule("5")
def test_passive_declares_succeed(pool: PoolOfTest, channel: Channel) -> None:
    pool.call("42")
    pool.has_group("42")
    for name in (*pool.names.queues, pool.names.request_queue("42")):
        assert channel.queue_declare(name, passive=True).queue == name
    for name in pool.names.exchanges:
        channel.exchange_declare(name, passive=True)
    channel.connection.is_usable()


@rule("6")
@pytest.mark.parametrize("called", ["a-req", "a", "a/b", "a b", "ä\U0001f600", "a%20b"])
def test_names_do_not_collide(declare: Declare, called: str) -> None:
    pools = [declare("a-req-b"), declare(called)]
    for one in pools:
        one.call("b-x", one.name.encode())
    for one in pools:
        assert one.worker("b-x").bodies(1) == [one.name.encode()]


@rule("7")
def test_both_exchanges_lead_to_one_queue(pool: PoolOfTest) -> None:
    pool.call("42", b"1")
    pool.call("42", b"2", pool.names.requests)
    pool.call("42", b"3")
    assert sorted(pool.worker("42").bodies(3)) == [b"1", b"2", b"3"]
    assert list(pool.groups()) == ["42"]


@rule("62")
def test_a_paused_pool_starts_nothing_and_answers_at_the_end_of_time(declare: Declare) -> None:
    pool = declare(request_ttl_ms=1500)
    pool.act("pause")
    pool.call("42", reply_to=pool.answering())
    assert pool.groups() == {}
    assert status(pool.answer()) == b"expired"
    pool.act("resume")
    pool.call("42", b"later")
    assert pool.worker("42").bodies(1) == [b"later"]


@rule("63")
def test_deleting_answers_what_waits_and_leaves_nothing(pool: PoolOfTest, channel: Channel) -> None:
    for key in ("1", "2"):
        pool.call(key, reply_to=pool.answering())
    pool.act("pause")
    pool.call("3", reply_to=pool.answering())
    assert pool.target.api("DELETE", pool.path).status_code == 400, "it has groups"
    pool.target.api("DELETE", f"{pool.path}?force=true").raise_for_status()
    assert [status(pool.answer()) for _ in range(3)] == [b"pool_deleted"] * 3
    eventually(lambda: parts(pool) == ([], []))
    assert pool.target.api("GET", pool.path).status_code == 404
    with channel.closes(404, method="basic.publish"):
        channel.basic_publish(pool.names.exchange, "1", b"x")
        channel.basic_qos_probe()


@rule("63")
def test_a_pool_without_groups_in_which_something_waits_is_deleted_by_force_alone(pool: PoolOfTest) -> None:
    pool.act("pause")
    pool.call("42", reply_to=pool.answering())
    later = {"headers": {"x-delay": 3_600_000}, "reply_to": pool.answering()}
    pool.confirmed("42", exchange=f"{pool.names.exchange}-delayed", **later)

    def numbers() -> tuple[int, int]:
        told = pool.target.api("GET", pool.path).raise_for_status().json()
        return told["orphans"], told["delayed"]

    eventually(lambda: numbers() == (1, 1), 30.0)
    refused = pool.target.api("DELETE", pool.path)
    assert refused.status_code == 400
    assert "1 orphans" in refused.json()["reason"]
    assert "1 delayed requests" in refused.json()["reason"]
    pool.target.api("DELETE", f"{pool.path}?force=true").raise_for_status()
    assert [status(pool.answer()) for _ in range(2)] == [b"pool_deleted"] * 2
    eventually(lambda: parts(pool) == ([], []))


@rule("71")
def test_keys_are_shown_to_readers_only(pool: PoolOfTest, connect: Connect) -> None:
    pool.call("secret")
    pool.has_group("secret")
    user = f"u{pool.name}"
    pool.target.api("PUT", f"users/{user}", {"password": "p", "tags": "management"}).raise_for_status()
    pool.target.api(
        "PUT", f"permissions/%2F/{user}", {"configure": "", "write": "", "read": "^other"}
    ).raise_for_status()
    try:

        def rows() -> Any:
            path = f"{pool.target.http}/api/{pool.path}/groups"
            return httpx.get(path, auth=(user, "p"), timeout=30, verify=False).raise_for_status().json()

        assert rows() == []
        pool.target.api(
            "PUT", f"permissions/%2F/{user}", {"configure": "", "write": "", "read": ".*"}
        ).raise_for_status()
        eventually(lambda: [row["key"] for row in rows()] == ["secret"])
    finally:
        pool.target.api("DELETE", f"users/{user}")
