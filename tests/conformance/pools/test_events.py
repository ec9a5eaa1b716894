"""The history of a pool in its stream, read by pika: at one node and at three, over the death of the stream's owner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from clusterbroker_workers.runner import EXIT_DRAINED, EXIT_REFUSED
from tests.faults.pools import PoolNodes, eventually

pytestmark = pytest.mark.processes

KEYS = ("a", "b ü", "c")
CALLS = 3


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def nodes(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[PoolNodes]:
    made = PoolNodes(tmp_path, *"abc"[: request.param], memory_bytes=1 << 20)
    made.start()
    made.declare(grace_s=5, events=True)
    yield made
    made.close()


def told(nodes: PoolNodes, key: str | None = None) -> list[dict[str, Any]]:
    """All that the stream has; `key`: of this one, by the stream's filter."""
    connection = pika.BlockingConnection(pika.URLParameters(nodes.url()))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        arguments: dict[str, Any] = {"x-stream-offset": "first"}
        if key is not None:
            arguments["x-stream-filter"] = key
        found = []
        for method, properties, body in channel.consume("core-events", arguments=arguments, inactivity_timeout=1):
            if method is None:
                break
            found.append(json.loads(body))
            assert properties.headers["x-event"] == properties.type == found[-1]["event"]
            channel.basic_ack(method.delivery_tag)
        return found
    finally:
        connection.close()


def of_requests(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """By correlation id."""
    found: dict[str, list[str]] = {}
    for event in events:
        if "correlation_id" in event:
            found.setdefault(event["correlation_id"], []).append(event["event"])
    return found


def test_each_call_and_each_worker_has_its_history(nodes: PoolNodes) -> None:
    with nodes.roaming_caller() as caller:
        for key in KEYS * CALLS:
            caller.call(key, timeout_s=60)
        done = {"received", "delivered", "answered"}

        def whole() -> list[dict[str, Any]] | None:
            events = told(nodes)
            calls = of_requests(events)
            return events if len(calls) == len(KEYS) * CALLS and all(done <= {*of} for of in calls.values()) else None

        events = eventually("all is told", whole)
        for names in of_requests(events).values():
            assert sorted(names) in (sorted(done), sorted({*done, "moved"})), "each once"
        workers = {row["id"]: row["key"] for row in nodes.workers()}
        for name in ("started", "ready"):
            assert {event["worker"]: event["key"] for event in events if event["event"] == name} == workers
        answered = [event for event in events if event["event"] == "answered"]
        assert all(workers[event["worker"]] == event["key"] and event["took_ms"] >= 0 for event in answered)
        alone = told(nodes, KEYS[1])
        assert alone == [event for event in events if event["key"] == KEYS[1]]
        first = next(iter(workers))
        nodes.api("POST", f"pools/%2F/core/workers/{first}/stop", {}).raise_for_status()
        (exit_,) = eventually("it is gone", lambda: [one for one in told(nodes) if one["event"] == "exited"])
        assert (exit_["worker"], exit_["why"]) == (first, "retired and empty")
        # its connection is closed, and TERM is sent: either may come first
        assert exit_["exit_status"] in (EXIT_DRAINED, EXIT_REFUSED)
        if len(nodes.names) > 1:
            nodes.kill(nodes.owner("core-events"))
            before = len(told(nodes))
            caller.call(KEYS[0], timeout_s=60)
            eventually("it goes on", lambda: "answered" in {one["event"] for one in told(nodes)[before:]})
