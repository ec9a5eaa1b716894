"""Lives of groups (rules 42 to 51)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ..channel import Channel
from ..marks import rule
from ..wire import Connection, eventually
from .conftest import PoolOfTest

Declare = Callable[..., PoolOfTest]
SHORT = {"unbind_delay_s": 1, "stop_delay_s": 1}


def is_unbound(pool: PoolOfTest, key: str) -> bool:
    group = pool.groups().get(key)
    return group is not None and not group["bound"]


def served(pool: PoolOfTest, key: str) -> Channel:
    """A worker that has served one request."""
    pool.call(key, b"first")
    worker = pool.worker(key)
    worker.basic_ack(worker.delivery().delivery_tag)
    return worker


@rule("42", "44")
def test_reports_of_both_forms_reach_whoever_listens(pool: PoolOfTest, channel: Channel, queue: str) -> None:
    channel.queue_bind(queue, pool.names.exchange_of(pool.names.activity), "")
    worker = served(pool, "42")
    events: list[Any] = ["started", b"ready", "unknown", 7, "request-received"]
    for event in events:
        worker.basic_publish(pool.names.exchange_of(pool.names.activity), "42", b"", headers={"x-event": event})
    worker.basic_publish(pool.names.exchange_of(pool.names.activity), "42", b"")
    worker.basic_qos_probe()
    channel.consume(queue, no_ack=True)
    assert [got.headers.get("x-event") for got in channel.deliveries(6)] == [*events, None]
    eventually(lambda: channel.message_count(pool.names.activity) == 6)


@rule("43")
def test_reports_prolong_and_nothing_shortens(declare: Declare) -> None:
    pool = declare(unbind_delay_s=5, stop_delay_s=60)
    worker = served(pool, "42")
    activity = pool.names.exchange_of(pool.names.activity)
    until = time.monotonic() + 9
    while time.monotonic() < until:
        worker.basic_publish(activity, "42", b"", headers={"x-event": "request-received", "x-worker-id": "w1"})
        worker.connection.read_for(0.3)
        assert not is_unbound(pool, "42")
    for event in ("draining", "unknown"):
        worker.basic_publish(activity, "42", b"", headers={"x-event": event})
    assert not is_unbound(pool, "42")
    eventually(lambda: is_unbound(pool, "42"))


@rule("45")
def test_an_idle_group_is_unbound_and_its_worker_stays(declare: Declare) -> None:
    pool = declare(**SHORT)
    worker = served(pool, "42")
    eventually(lambda: is_unbound(pool, "42"))
    worker.connection.is_usable()
    assert pool.channel.queue_declare(pool.names.request_queue("42"), passive=True).consumer_count == 1


@rule("46")
def test_an_unbound_key_is_served_by_the_worker_that_runs(declare: Declare) -> None:
    pool = declare(unbind_delay_s=1, stop_delay_s=60)
    worker = served(pool, "42")
    eventually(lambda: is_unbound(pool, "42"))
    pool.call("42", b"again")
    got = worker.delivery()
    assert got.body == b"again"
    assert not is_unbound(pool, "42")


@rule("47", "51")
def test_an_idle_group_ends_when_nobody_consumes(declare: Declare) -> None:
    pool = declare(**SHORT)
    worker = served(pool, "42")
    eventually(lambda: is_unbound(pool, "42"))
    worker.connection.read_for(2.5)
    assert "42" in pool.groups(), "somebody consumes from it"
    worker.connection.close()
    eventually(lambda: pool.groups() == {})
    with pool.channel.closes(404):
        pool.channel.queue_declare(pool.names.request_queue("42"), passive=True)


@rule("48")
def test_a_group_with_something_held_is_not_idle(declare: Declare) -> None:
    pool = declare(**SHORT)
    pool.call("42", b"long")
    worker = pool.worker("42")
    got = worker.delivery()
    worker.connection.read_for(4)
    assert not is_unbound(pool, "42")
    worker.basic_ack(got.delivery_tag)
    eventually(lambda: is_unbound(pool, "42"))


@rule("49")
def test_what_is_published_to_the_queue_itself_is_not_lost(declare: Declare) -> None:
    pool = declare(unbind_delay_s=1, stop_delay_s=60)
    worker = served(pool, "42")
    worker.connection.close()
    eventually(lambda: is_unbound(pool, "42"))
    pool.call(pool.names.request_queue("42"), b"straight", exchange="")
    eventually(lambda: not is_unbound(pool, "42"))
    assert pool.worker("42").bodies(1) == [b"straight"]


@rule("50")
def test_delays_of_nothing_lose_nothing(declare: Declare) -> None:
    """Bursts with pauses as long as the shortest life of a group: keys come and go under the publishers."""
    pool = declare(unbind_delay_s=0, stop_delay_s=0)
    keys, rounds = ("1", "2"), 6
    sent: list[bytes] = []

    def publish() -> None:
        channel = Connection(pool.target.address).channel()
        channel.confirm_select()
        for number in range(rounds):
            for key in keys:
                for part in range(5):
                    body = f"{key}.{number}.{part}".encode()
                    channel.basic_publish(pool.names.exchange, key, body)
                    sent.append(body)
            channel.confirms(5 * len(keys))
            channel.connection.read_for(0.35 * (number % 4) + 0.6)
        channel.connection.close()

    thread = threading.Thread(target=publish)
    thread.start()
    got: list[bytes] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (thread.is_alive() or len(got) < len(sent)):
        for key in keys:  # a worker that comes, takes what is there, and goes
            worker = Connection(pool.target.address).channel()
            worker.consume(pool.names.request_queue(key))
            worker.connection.read_for(0.1)
            for delivery in tuple(worker.delivered):
                got.append(delivery.body)
                worker.basic_ack(delivery.delivery_tag)
            worker.connection.close()
    thread.join()
    assert sorted(set(got)) == sorted(sent)
