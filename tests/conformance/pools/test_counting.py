"""What is counted of a pool (rule 26)."""

from __future__ import annotations

import httpx

from ..marks import rule
from ..wire import eventually
from .conftest import PoolOfTest


def counted(pool: PoolOfTest, name: str, **labels: str) -> float:
    """Of all members together: each tells of itself, and one of them serves HTTP here, so the figure is at least that
    one's."""
    text = (
        httpx.get(f"{pool.target.http}/metrics", auth=("guest", "guest"), timeout=30, verify=False)
        .raise_for_status()
        .text
    )
    wanted = {"vhost": "/", "pool": pool.name, **labels}
    found = 0.0
    for line in text.splitlines():
        if line.startswith(f"clusterbroker_pool_{name}{{"):
            which, _, value = line.rpartition(" ")
            if all(f'{label}="{text}"' in which for label, text in wanted.items()):
                found += float(value)
    return found


@rule("26")
def test_without_an_address_nobody_is_answered_and_it_counts(pool: PoolOfTest) -> None:
    pool.set(keys="^k")
    pool.call("bad", reply_to=pool.answering())
    pool.call("bad")
    assert pool.answer().headers["x-status"] == b"key_refused"
    dead = pool.names.dead
    eventually(lambda: pool.channel.message_count(dead) == 0)
    owner = pool.target.api("GET", f"queues/%2F/{dead}").json()["node"]
    told = pool.target.api("GET", "overview").json()["node"]
    if owner == told:  # each node tells of what it did
        eventually(lambda: counted(pool, "dead_total", reason="key_refused") == 2, 15)
        assert counted(pool, "answers_total", reason="key_refused") == 1
    else:
        assert counted(pool, "dead_total", reason="key_refused") == 0


def test_times_of_requests_are_counted(pool: PoolOfTest) -> None:
    pool.call("42")
    worker = pool.worker("42")
    worker.basic_ack(worker.delivery().delivery_tag)
    owner = pool.target.api("GET", f"queues/%2F/{pool.names.request_queue('42')}").json()["node"]
    expected = float(owner == pool.target.api("GET", "overview").json()["node"])
    for name in ("wait", "service"):
        eventually(lambda name=name: counted(pool, f"{name}_seconds_count") == expected, 15)  # type: ignore[misc]
        assert counted(pool, f"{name}_seconds_bucket", le="+Inf") == expected
        assert (counted(pool, f"{name}_seconds_sum") > 0) <= bool(expected)
