"""Requests with which workers are lost (rules 32 to 35)."""

from __future__ import annotations

from collections.abc import Callable

from ..marks import rule
from ..wire import Method, eventually
from .conftest import PoolOfTest, status

Declare = Callable[..., PoolOfTest]


def lose(pool: PoolOfTest, times: int) -> None:
    """Workers take the first request, and are cut off with it."""
    for _ in range(times):
        worker = pool.worker("42", prefetch=1)
        worker.delivery()
        worker.connection.abandon()


def poisoned(pool: PoolOfTest) -> Method:
    eventually(lambda: pool.channel.message_count(pool.names.poison) == 1, 20)
    got = pool.connect().channel().basic_get(pool.names.poison)
    assert got is not None
    return got


@rule("32", "33")
def test_what_workers_are_lost_with_is_in_the_inventory(declare: Declare) -> None:
    pool = declare(delivery_limit=1)
    about = {"correlation_id": "c", "reply_to": pool.answering(), "priority": 3, "message_id": "m", "type": "t"}
    pool.call("42", b"bad", headers={"a": 1}, **about)
    lose(pool, 2)
    assert status(pool.answer(20)) == b"delivery_limit"
    kept = poisoned(pool)
    assert kept.body == b"bad"
    assert (kept.exchange, kept.routing_key) == (pool.names.exchange, "42")
    assert {name: kept.properties[name] for name in about} == about
    poison = kept.headers["x-poison"]
    assert kept.headers["a"] == 1
    assert poison["key"] == "42"
    assert len(poison["workers"]) == 2
    assert all(" at " in how for how in poison["workers"].values())


@rule("32")
def test_what_workers_reject_is_not(declare: Declare) -> None:
    pool = declare(delivery_limit=1)
    pool.call("42", b"bad", reply_to=pool.answering())
    lose(pool, 1)
    worker = pool.worker("42")
    worker.basic_reject(worker.delivery().delivery_tag, requeue=True)
    assert status(pool.answer(20)) == b"delivery_limit"
    assert pool.channel.message_count(pool.names.poison) == 0


@rule("34")
def test_a_replayed_one_goes_to_its_key_with_a_fresh_count(declare: Declare) -> None:
    pool = declare(delivery_limit=1)
    pool.call("42", b"bad", reply_to=pool.answering())
    lose(pool, 2)
    assert status(pool.answer(20)) == b"delivery_limit"
    eventually(lambda: pool.channel.message_count(pool.names.poison) == 1, 20)
    closed = pool.target.api(
        "POST",
        f"queues/%2F/{pool.names.poison}/messages/move",
        {"filter": "", "exchange": pool.names.exchange_of(pool.names.dead)},
    )
    assert closed.status_code == 401, closed.text
    assert "belongs to pool" in closed.text
    moved = pool.target.api(
        "POST", f"queues/%2F/{pool.names.poison}/messages/move", {"filter": "", "exchange": pool.names.exchange}
    )
    moved.raise_for_status()
    lose(pool, 1)
    worker = pool.worker("42")
    again = worker.delivery(20)
    assert again.body == b"bad"
    worker.basic_ack(again.delivery_tag)
    assert pool.channel.message_count(pool.names.poison) == 0


@rule("35")
def test_only_the_guilty_one_of_ten_reaches_its_limit(declare: Declare) -> None:
    pool = declare(delivery_limit=1)
    sent = [b"%d" % n for n in range(10)]
    for body in sent:
        pool.call("42", body, reply_to=pool.answering(), correlation_id=body.decode())
    worker = pool.worker("42", prefetch=10)
    assert sorted(worker.delivery().body for _ in sent) == sent  # the first by way of the orphans: in no order
    worker.connection.abandon()
    done: list[bytes] = []
    guilty, crashes = b"3", 0
    while len(done) < len(sent) - 1 or crashes < 2:
        worker = pool.worker("42", prefetch=10)
        while len(done) < len(sent) - 1 or crashes < 2:
            got = worker.delivery(20)
            eventually(lambda: pool.groups()["42"]["held"] == 1)  # nothing else beside it
            if got.body == guilty:
                crashes += 1
                break
            worker.basic_ack(got.delivery_tag)
            done.append(got.body)
        worker.connection.abandon()
    answer = pool.answer(20)
    assert (status(answer), answer.properties["correlation_id"]) == (b"delivery_limit", guilty.decode())
    assert sorted(done) == sorted(set(sent) - {guilty})
    assert poisoned(pool).body == guilty
