"""Workers that stop, die, leak, are deaf or leave children; callers that flood; replies that find no room; an alarm.

Faults 5, 14, 18, 19 and 20 of the worker pools' page, at one node with its foreman. Each test has a pool of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker_workers import Unserved, WorkerFailed
from tests import budget
from tests.faults.pools import PoolNodes, eventually, told

pytestmark = pytest.mark.processes
USER = 'user = "root"\n' if os.geteuid() == 0 else ""
FLOOD = 100_000 if budget.ALL else 2_000
GROUPS_MAX = 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    """`core`: workers of the library; `dies`: a program that ends at once."""
    more = f'[pools.dies]\ndriver = "subprocess"\n{USER}command = ["/bin/sh", "-c", "exit 3"]\n'
    made = PoolNodes(tmp_path_factory.mktemp("node"), "a", more=more, memory_bytes=1 << 20, address_space_bytes=3 << 30)
    made.start()
    yield made
    made.close()


@pytest.fixture
def pool(node: PoolNodes, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name, whose pool is deleted at the end."""
    name = request.node.name.removeprefix("test_")[:40].replace("_", "")
    yield name
    node.api("DELETE", f"pools/%2F/{name}?force=true")


# -- fault 5: workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", pytest.param("killed", marks=pytest.mark.matrix)])
def test_a_request_outlives_a_worker_that_stops_or_is_killed(
    node: PoolNodes, pool: str, tmp_path: Path, how: str
) -> None:
    """SIGSTOP, noticed by `process_timeout_ms`, and SIGKILL, as the kernel sends it when memory is short."""
    node.declare(pool, process_timeout_ms=1000, start_timeout_s=5, grace_s=1)
    with node.caller(pool=pool) as caller:
        answer = told(caller.call("42", bytes(tmp_path), path=how, timeout_s=60))
        (first,) = (file.name for file in tmp_path.iterdir())
        assert answer["worker"] != first
        eventually("its process is over", lambda: first not in node.processes(), 60)
        assert [row["id"] for row in node.workers(pool)] == [answer["worker"]]


def test_a_worker_that_leaks_reaches_its_limit_and_no_further(node: PoolNodes, pool: str) -> None:
    node.declare(pool)
    with node.caller(pool=pool) as caller:
        first = told(caller.call("42", timeout_s=60))
        with pytest.raises(WorkerFailed):
            caller.call("42", path="leak", timeout_s=60)
        assert psutil.Process(first["pid"]).memory_info().vms <= 3 << 30
        assert told(caller.call("43", timeout_s=60))["key"] == "43", "others have their own"


def test_a_worker_that_is_deaf_to_term_and_its_children_end(node: PoolNodes, pool: str) -> None:
    node.declare(pool, grace_s=1)
    with node.caller(pool=pool) as caller:
        child = told(caller.call("42", path="fork", timeout_s=60))["child"]
        deaf = told(caller.call("42", path="deaf", timeout_s=60))
        node.api("POST", f"pools/%2F/{pool}/groups/42/stop", {}).raise_for_status()
        eventually("both ended", lambda: not (_runs(deaf["pid"]) or _runs(child)))
        assert told(caller.call("42", timeout_s=60))["worker"] != deaf["worker"]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- fault 20: every worker dies ---------------------------------------------------------------------------------------


def test_workers_that_all_die_are_started_so_often_and_others_are_untouched(node: PoolNodes, pool: str) -> None:
    node.declare(pool, "dies", start_failures_max=2)
    node.declare(f"{pool}other")
    log = node.fleet.node("a").log
    with node.caller(pool=pool) as caller, node.caller(pool=f"{pool}other") as other, ThreadPoolExecutor(21) as threads:
        serving = told(other.call("42", timeout_s=60))
        before = _starts(log, pool)
        calls = [threads.submit(caller.call, "42", timeout_s=60) for _ in range(20)]
        for call in calls:
            with pytest.raises(Unserved) as heard:
                call.result()
            assert heard.value.reason == "start_failed"
            assert told(other.call("42", timeout_s=20)) == serving
        assert 2 <= _starts(log, pool) - before <= 3
    node.api("DELETE", f"pools/%2F/{pool}other?force=true")


@pytest.mark.matrix
def test_a_request_that_every_worker_dies_of_is_answered_and_kept(node: PoolNodes, pool: str) -> None:
    node.declare(pool, delivery_limit=2)
    log = node.fleet.node("a").log
    with node.caller(pool=pool) as caller:
        before = _starts(log, pool)
        with pytest.raises(Unserved) as heard:
            caller.call("42", path="die", timeout_s=60)
        assert heard.value.reason == "delivery_limit"
        assert _starts(log, pool) - before <= 4
        assert told(caller.call("42", timeout_s=60))["key"] == "42"
    eventually("it is kept", lambda: node.depth(f"{pool}-poison") == 1)


def _starts(log: Path, pool: str) -> int:
    return sum('"worker.started"' in line and f'"{pool}"' in line for line in log.read_text().splitlines())


# -- fault 14: a hostile client ----------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_flood_of_keys_is_bounded_and_others_are_served(node: PoolNodes, pool: str) -> None:
    """All of them are answered: `no_capacity`, or at the end of their time. 100,000 in the tier `all`."""
    node.declare(pool, "noop", max_groups=GROUPS_MAX, request_ttl_ms=2000)
    node.declare(f"{pool}other")
    words: dict[str, int] = {}
    with node.caller(pool=f"{pool}other") as other, ThreadPoolExecutor(1) as threads:
        serving = told(other.call("42", timeout_s=60))
        flood = threads.submit(_flood, node.url(), f"{pool}-req-xchg", words)
        took_s: list[float] = []
        most = 0
        while not flood.done():
            began_s = time.monotonic()
            assert told(other.call("42", timeout_s=20)) == serving
            took_s.append(time.monotonic() - began_s)
            most = max(most, len(node.groups(pool)))
        flood.result()
    assert sum(words.values()) == FLOOD
    assert words.keys() <= {"no_capacity", "expired"}
    assert words["no_capacity"] >= FLOOD - GROUPS_MAX - 1
    assert most <= GROUPS_MAX
    assert sorted(took_s)[len(took_s) // 2] < 1.0
    node.api("DELETE", f"pools/%2F/{pool}other?force=true")


def _flood(url: str, exchange: str, words: dict[str, int]) -> None:
    """A request for each of FLOOD keys; counts what their answers say."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        replies = str(channel.queue_declare("", exclusive=True).method.queue)
        asked = pika.BasicProperties(reply_to=replies)
        for number in range(FLOOD):
            channel.basic_publish(exchange, f"key {number}", b"", asked)
        for _, properties, _ in channel.consume(replies, auto_ack=True, inactivity_timeout=60):
            assert properties is not None, f"all are answered, and not only {words}"
            said = properties.headers["x-status"]
            word = said.decode() if isinstance(said, bytes) else said
            words[word] = words.get(word, 0) + 1
            if sum(words.values()) == FLOOD:
                return


# -- fault 18: the reply queue is full ---------------------------------------------------------------------------------


def test_answers_that_find_no_room_stop_nobody(node: PoolNodes, pool: str) -> None:
    """Neither those of a worker nor those of the responder."""
    node.declare(pool, request_ttl_ms=60_000)
    with node.caller(pool=pool) as caller, pika.BlockingConnection(pika.URLParameters(node.url())) as connection:
        serving = told(caller.call("42", timeout_s=60))
        channel = connection.channel()
        full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        replies = str(channel.queue_declare("", exclusive=True, arguments=full).method.queue)
        for number in range(20):
            asked = pika.BasicProperties(reply_to=replies, correlation_id=str(number))
            channel.basic_publish(f"{pool}-req-xchg", "42", b"", asked)
            late = pika.BasicProperties(reply_to=replies, correlation_id=f"late {number}", expiration="0")
            channel.basic_publish(f"{pool}-orphan-xchg", "43", b"", late)
        assert told(caller.call("42", timeout_s=60)) == serving
        eventually("nothing waits", lambda: not any(node.depth(f"{pool}-{end}") for end in ("req-42", "orphan", "dl")))
        assert channel.queue_declare(replies, passive=True).method.message_count == 1
        room = str(channel.queue_declare("", exclusive=True).method.queue)
        channel.basic_publish(f"{pool}-orphan-xchg", "44", b"", pika.BasicProperties(reply_to=room, expiration="0"))
        _, properties, _ = next(channel.consume(room, auto_ack=True, inactivity_timeout=30))
        assert properties is not None
        assert properties.headers["x-status"] in (b"expired", "expired")


# -- fault 19: memory alarm at the controller --------------------------------------------------------------------------


def test_an_alarm_at_the_controller_delays_and_loses_nothing(node: PoolNodes, pool: str) -> None:
    """Publishers wait, new keys and answers of workers as well; then all are served."""
    node.declare(pool)
    data = node.fleet.node("a").data_dir
    with node.caller(pool=pool) as caller, ThreadPoolExecutor(6) as threads:
        serving = told(caller.call("42", timeout_s=60))
        assert (ask(data, "alarm.set", {"name": "memory", "raised": True}) or {})["ok"]
        try:
            calls = [threads.submit(caller.call, key, timeout_s=60) for key in ("42", "42", "new", "newer")]
            rows = node.workers(pool)
            assert [row["id"] for row in rows if not row["revoked"]] == [serving["worker"]], "nobody is ended"
        finally:
            assert (ask(data, "alarm.set", {"name": "memory", "raised": False}) or {})["ok"]
        answers = [told(call.result()) for call in calls]
    assert [answer["key"] for answer in answers] == ["42", "42", "new", "newer"]
    assert answers[0]["worker"] == answers[1]["worker"] == serving["worker"]
