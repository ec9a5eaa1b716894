"""Requests by their correlation id (rules 68 and 69)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ..channel import Channel
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


def listed(pool: PoolOfTest, **query: str) -> tuple[list[dict[str, Any]], str | None]:
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    answer = pool.target.api("GET", f"{pool.path}/requests?{asked}").raise_for_status().json()
    assert answer["not_looked_into"] == []
    return answer["items"], answer["next"]


def all_listed(pool: PoolOfTest, limit: int, **query: str) -> list[dict[str, Any]]:
    """Page by page."""
    found, cursor = list[dict[str, Any]](), ""
    while True:
        items, next_ = listed(pool, limit=str(limit), cursor=cursor, **query)
        assert len(items) <= limit
        found += items
        if next_ is None:
            return found
        cursor = next_


@rule("67")
def test_requests_are_listed_in_their_order_and_by_what_is_asked(pool: PoolOfTest) -> None:
    worker = pool.worker("42", prefetch=1)
    for number in range(5):
        pool.call("42", correlation_id=f"a{number}", message_id="m" if number == 3 else "")
    pool.call("7:x", correlation_id="b")
    pool.call("42", correlation_id="later", exchange=pool.names.delayed, headers={"x-delay": 3_600_000})
    pool.call("7:x", correlation_id="later", exchange=pool.names.delayed, headers={"x-delay": 3_600_000})
    worker.delivery()
    ids = ["later", "later", "a0", "a1", "a2", "a3", "a4", "b"]
    eventually(
        lambda: [one["state"] for one in all_listed(pool, 100, key="42")] == ["delayed", "held", *["waiting"] * 4]
    )
    eventually(lambda: [one["state"] for one in all_listed(pool, 100, state="waiting")] == ["waiting"] * 5)
    for limit in (1, 2, 3, 100):
        found = all_listed(pool, limit)
        assert [one["correlation_id"] for one in found] == ids
        assert [one["ahead"] for one in found] == [None, None, None, 0, 1, 2, 3, 0]
    assert [one["correlation_id"] for one in all_listed(pool, 2, state="waiting", key="42")] == ids[3:7]
    assert [one["ahead"] for one in all_listed(pool, 2, state="waiting", key="42")] == [0, 1, 2, 3]
    assert [one["ahead"] for one in all_listed(pool, 100, correlation_id="a3")] == [2]
    assert [one["correlation_id"] for one in all_listed(pool, 100, message_id="m")] == ["a3"]
    assert [one["state"] for one in all_listed(pool, 1, key="7:x")] == ["delayed", "waiting"]
    assert [one["correlation_id"] for one in all_listed(pool, 1, state="held")] == ["a0"]
    assert all_listed(pool, 1, key="8") == []
    for query in ("state=unknown", "limit=0", "limit=501", "cursor=group:x", "cursor=nowhere:1:0:"):
        assert pool.target.api("GET", f"{pool.path}/requests?{query}").status_code == 400, query
    assert pool.target.api("GET", f"{pool.path}x/requests").status_code == 404


@rule("68")
def test_progress_is_of_the_worker_that_holds_the_request(declare: Declare) -> None:
    pool = declare(delivery_limit=5)
    activity = pool.names.exchange_of(pool.names.activity)

    def report(part: Any, channel: Channel, id_: str = "1") -> None:
        told = {"x-event": "progress", "x-progress": part, "x-correlation-id": id_}
        channel.basic_publish(activity, "42", b"", headers=told)
        channel.basic_qos_probe()

    def told() -> Any:
        (one,) = found(pool, "1")
        return one["progress"]

    worker = pool.worker("42", prefetch=1)
    pool.call("42", correlation_id="1")
    worker.delivery()
    eventually(lambda: states(pool, "1") == ["held"])
    assert told() is None
    for part, known in ((0.25, 0.25), (b"0.5", 0.5), ("0.75", 0.75), (2, 0.75), ("much", 0.75), (1, 1.0)):
        report(part, worker)
        assert told() == known, part
    report(0.9, worker, "2")
    report(0.9, pool.channel)
    (held,) = found(pool, "1")
    assert (held["progress"], held["progress_ms"] >= held["held_since_ms"]) == (1.0, True)
    assert [one["progress"] for one in all_listed(pool, 10, state="held")] == [1.0]
    worker.connection.abandon()
    again = pool.worker("42", prefetch=1)
    again.delivery()
    eventually(lambda: [one["attempt"] for one in found(pool, "1")] == [2])
    assert told() is None
