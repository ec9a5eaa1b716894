"""Requests by their correlation id (rules 68 and 69)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ..marks import rule
from ..wire import eventually
from .conftest import PoolOfTest, status

Declare = Callable[..., PoolOfTest]


def found(pool: PoolOfTest, id_: str, method: str = "GET", **query: str) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    answer = pool.target.api(method, f"{pool.path}/requests/{quote(id_, safe='')}?{asked}").raise_for_status().json()
    assert answer["not_looked_into"] == []
    assert answer["next"] is None
    items: list[dict[str, Any]] = answer["items"]
    return items


def states(pool: PoolOfTest, id_: str, **query: str) -> list[str]:
    return [one["state"] for one in found(pool, id_, **query)]


@rule("68")
def test_a_request_is_found_in_each_of_its_states(declare: Declare) -> None:
    pool = declare(delivery_limit=1)
    pool.call("42", b"other", correlation_id="other")
    worker = pool.worker("42", prefetch=1)
    other = worker.delivery()
    pool.call("42", b"bad", reply_to=pool.answering(), correlation_id='a "b" \\', message_id="m")
    eventually(lambda: states(pool, 'a "b" \\') == ["waiting"])
    (waiting,) = found(pool, "m", by="message_id", key="42")
    assert (waiting["key"], waiting["attempt"], waiting["worker"]) == ("42", 1, None)
    assert waiting["queue"] == pool.names.request_queue("42")
    assert found(pool, 'a "b" \\', key="43") == []
    assert found(pool, "m") == []
    worker.basic_ack(other.delivery_tag)
    assert worker.delivery().body == b"bad"
    eventually(lambda: states(pool, 'a "b" \\') == ["held"])
    (held,) = found(pool, 'a "b" \\')
    assert held["worker"]
    assert held["held_since_ms"] >= held["timestamp_ms"] > 0
    worker.connection.abandon()
    again = pool.worker("42", prefetch=1)
    again.delivery()
    eventually(lambda: [one["attempt"] for one in found(pool, 'a "b" \\')] == [2])
    (second,) = found(pool, 'a "b" \\')
    assert second["worker"] != held["worker"]
    assert list(second["lost"]) == [held["worker"]]
    again.connection.abandon()
    assert status(pool.answer(20)) == b"delivery_limit"
    eventually(lambda: states(pool, 'a "b" \\') == ["poison"])
    (kept,) = found(pool, 'a "b" \\')
    assert set(kept["lost"]) == {held["worker"], second["worker"]}
    assert kept["reason"] == "delivery_limit"


@rule("68")
def test_what_waits_without_a_group_and_what_is_put_off(pool: PoolOfTest) -> None:
    pool.act("pause")
    pool.call("42", correlation_id="1", reply_to=pool.answering())
    assert states(pool, "1") == ["orphan"]
    pool.call("42", correlation_id="2", exchange=pool.names.delayed, headers={"x-delay": 3_600_000})
    (delayed,) = found(pool, "2")
    assert delayed["state"] == "delayed"
    assert delayed["due_ms"] > delayed["timestamp_ms"]


@rule("68", "69")
def test_what_waits_is_cancelled_and_what_is_held_goes_on(pool: PoolOfTest) -> None:
    for body in (b"held", b"waiting"):
        pool.call("42", body, correlation_id="1", reply_to=pool.answering())
    worker = pool.worker("42", prefetch=1)
    held = worker.delivery()
    eventually(lambda: sorted(states(pool, "1")) == ["held", "waiting"])
    answer = pool.target.api("DELETE", f"{pool.path}/requests/1").raise_for_status().json()
    assert answer["cancelled"] == 1
    assert [one["state"] for one in answer["items"]] == ["held"]
    cancelled = pool.answer(20)
    assert (status(cancelled), cancelled.properties["correlation_id"]) == (b"cancelled", "1")
    pool.call("42", b"next")
    worker.basic_ack(held.delivery_tag)
    assert worker.delivery().body == b"next"
    assert found(pool, "1") == []


@rule("69")
def test_a_request_without_a_group_is_cancelled(pool: PoolOfTest) -> None:
    pool.act("pause")
    pool.call("42", correlation_id="1", reply_to=pool.answering())
    assert pool.target.api("DELETE", f"{pool.path}/requests/1").raise_for_status().json()["cancelled"] == 1
    assert status(pool.answer(20)) == b"cancelled"
    assert found(pool, "1") == []
