"""Nodes that die, freeze, are started anew or leave, with worker pools at work: three nodes with foremen and workers.

Faults 1, 2, 8, 9, 10 and 11 of the worker pools' page. All tests have one cluster, and each a pool of its own;
all three nodes run when a test begins. The last test takes a member away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests import budget
from tests.faults.pools import PoolNodes, eventually, running, told

pytestmark = pytest.mark.processes
NAMES = "a", "b", "c"
FROZEN_S = 5.0
ANSWERS = 300
KEYS = 1000 if budget.ALL else 100


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    made = PoolNodes(tmp_path_factory.mktemp("nodes"), *NAMES, on_node_exit="keep")
    with running(made):
        yield made


@pytest.fixture
def three(started: PoolNodes) -> Iterator[PoolNodes]:
    """All of them, whose workers outlive them; without pools."""
    lost = [name for name in NAMES if name not in started.living]
    if lost:
        started.start(*lost)
    eventually("all are members", lambda: _alive(started) == len(NAMES))
    yield started
    for row in started.api("GET", "pools").json():
        started.api("DELETE", f"pools/%2F/{row['name']}?force=true")


def _alive(nodes: PoolNodes) -> int:
    return sum(bool(row.get("running")) for row in nodes.api("GET", "nodes").json())


def one_worker_each(nodes: PoolNodes, pool: str, *keys: str) -> None:
    """One launch of each key that may work, and no process but theirs. What a backlog has started beside it, as one may
    on a slow machine, stays for a minute."""

    def settled() -> bool:
        launched = {row["id"]: row["key"] for row in nodes.workers(pool) if not row["revoked"]}
        return sorted(launched.values()) == sorted(keys) and nodes.processes().keys() == launched.keys()

    eventually("one worker each", settled, 180.0)


@contextmanager
def channel_of(nodes: PoolNodes) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(nodes.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


# -- fault 1: the controller's node dies at a step of a first request -------------------------------------------------


STEPS: dict[str, Callable[[PoolNodes, str], Any]] = {
    "asked": lambda nodes, pool: True,
    "group": lambda nodes, pool: nodes.groups(pool),
    "launch": lambda nodes, pool: nodes.workers(pool),
    "process": lambda nodes, pool: nodes.processes(),
    "consumer": lambda nodes, pool: nodes.groups(pool).get("42", {}).get("consumers"),
}


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step == "launch" else pytest.mark.matrix) for step in STEPS]
)
def test_a_first_request_is_served_though_its_controller_dies(three: PoolNodes, step: str) -> None:
    pool = f"first{step}"
    three.declare(pool)
    lost = eventually("a controller", lambda: three.owner(f"{pool}-orphan"))
    near = next(name for name in NAMES if name != lost)
    with three.caller(near, pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", timeout_s=90)
        view = _At(three, near)
        eventually(f"the step {step}", lambda: STEPS[step](view, pool))
        three.kill(lost)
        answer = told(call.result())
        assert answer["key"] == "42"
        assert told(caller.call("42", timeout_s=60))["key"] == "42"
    three.start(lost)
    one_worker_each(three, pool, "42")


class _At(PoolNodes):
    """The same nodes, asked at one of them."""

    def __init__(self, nodes: PoolNodes, name: str) -> None:
        self.__dict__.update(nodes.__dict__)
        self._name = name

    @property
    def living(self) -> list[str]:
        return [self._name]


# -- fault 2: frozen and thawed ----------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_controller_that_freezes_and_thaws_leaves_one_worker_each(three: PoolNodes) -> None:
    three.declare("frozen")
    lost = eventually("a controller", lambda: three.owner("frozen-orphan"))
    near = next(name for name in NAMES if name != lost)
    view = _At(three, near)
    process = three.fleet.node(lost).process
    assert process is not None
    with view.caller(near, "frozen") as caller, ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(caller.call, key, timeout_s=90) for key in ("1", "2")]
        first = [told(call.result()) for call in calls]
        process.send_signal(signal.SIGSTOP)
        frozen_s = time.monotonic()
        try:
            new = threads.submit(caller.call, "new", timeout_s=90)
            eventually("another controller", lambda: view.owner("frozen-orphan") not in ("", lost), FROZEN_S * 3)
            eventually("it has been frozen for so long", lambda: time.monotonic() - frozen_s >= FROZEN_S)
        finally:
            process.send_signal(signal.SIGCONT)
        assert told(new.result())["key"] == "new"
        eventually("all are members", lambda: _alive(view) == len(NAMES))
        assert [told(caller.call(key, timeout_s=60)) for key in ("1", "2")] == first, "nobody was ended"
    one_worker_each(view, "frozen", "1", "2", "new")


# -- fault 9: the responder's node dies --------------------------------------------------------------------------------


@pytest.mark.matrix
def test_each_request_is_answered_once_though_the_responder_dies(three: PoolNodes) -> None:
    """They expire, 300 of them, and their answers go to a durable queue."""
    three.declare("late", "noop")
    lost = eventually("a responder", lambda: three.owner("late-dl"))
    view = _At(three, next(name for name in NAMES if name != lost))
    with channel_of(view) as channel:
        channel.queue_declare("replies", durable=True)
        for number in range(ANSWERS):
            asked = pika.BasicProperties(
                reply_to="replies", correlation_id=str(number), expiration=str(100 + 5 * number), delivery_mode=2
            )
            channel.basic_publish("late-req-xchg", "42", b"", asked)
        eventually("answers come", lambda: view.depth("replies") >= ANSWERS // 10)
        three.kill(lost)
        answered: Counter[str] = Counter()
        for _, properties, _ in channel.consume("replies", auto_ack=True, inactivity_timeout=30):
            assert properties is not None, f"all are answered: {len(answered)}"
            answered[str(properties.correlation_id)] += 1
            if len(answered) == ANSWERS and not view.depth("late-dl"):
                break
        channel.cancel()
        left = channel.queue_declare("replies", passive=True).method.message_count
        channel.queue_delete("replies")
    assert left == 0
    assert set(answered.values()) == {1}


# -- fault 11: nodes are started anew, one after the other -------------------------------------------------------------


@pytest.mark.matrix
def test_workers_outlive_a_rolling_restart(three: PoolNodes) -> None:
    """`on_node_exit = "keep"`: the same processes serve before, amid and after it."""
    three.declare("kept")
    keys = ["1", "2"]
    with three.roaming_caller("kept") as caller, ThreadPoolExecutor(3) as threads:
        first = [told(answer) for answer in threads.map(lambda key: caller.call(key, timeout_s=90), keys)]
        for name in NAMES:
            process = three.fleet.node(name).process
            assert process is not None
            process.terminate()
            amid = threads.submit(caller.call, "1", timeout_s=90, idempotent=True)
            assert process.wait(30) == 0
            three.start(name)
            assert told(amid.result())["key"] == "1"
            eventually("all are members", lambda: _alive(three) == len(NAMES))
        assert [told(caller.call(key, timeout_s=60, idempotent=True)) for key in keys] == first
    one_worker_each(three, "kept", *keys)


# -- fault 8: all at once ----------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_requests_outlive_the_end_of_all_nodes_and_workers(three: PoolNodes) -> None:
    """As a power cut ends them: nodes, foremen and workers, with requests held and waiting."""
    three.declare("cut")
    with suppress(pika.exceptions.AMQPError), channel_of(three) as channel:
        channel.queue_declare("replies", durable=True)
        for number in range(20):
            asked = pika.BasicProperties(
                reply_to="replies", correlation_id=str(number), delivery_mode=2, headers={"x-rpc-path": "sleep"}
            )
            channel.basic_publish("cut-req-xchg", str(number % 2), b"0.5", asked)
        eventually("some are served", lambda: three.depth("replies") >= 2)
        foremen = [foreman.pid for name in NAMES for foreman in three.foremen(name)]
        workers = [process.pid for process in three.processes().values()]
        nodes = [three.fleet.node(name).process for name in NAMES]
        for pid in [*foremen, *workers, *(process.pid for process in nodes if process is not None)]:
            os.kill(pid, signal.SIGKILL)
        for process in nodes:
            assert process is not None
            process.wait()
    assert not three.living
    three.start()
    with channel_of(three) as channel:
        answered: Counter[str] = Counter()
        for _, properties, _ in channel.consume("replies", auto_ack=True, inactivity_timeout=60):
            assert properties is not None, f"all are answered: {sorted(answered)}"
            answered[str(properties.correlation_id)] += 1
            if len(answered) == 20:
                break
        channel.cancel()
        channel.queue_delete("replies")
    one_worker_each(three, "cut", "0", "1")


# -- fault 10: many keys, and a member that leaves ---------------------------------------------------------------------


@pytest.mark.matrix
def test_keys_are_served_though_a_member_leaves(three: PoolNodes) -> None:
    """1,000 in the tier `all`. Requests wait for workers by hand, so all of them are seen."""
    three.declare("many", "noop")
    lost = eventually("a controller", lambda: three.owner("many-orphan"))
    view = _At(three, next(name for name in NAMES if name != lost))
    with channel_of(view) as channel, ThreadPoolExecutor(1) as threads:
        left = threads.submit(asyncio.run, three.fleet.command(lost, "leave"))
        for number in range(KEYS):
            channel.basic_publish("many-req-xchg", str(number), str(number).encode(), pika.BasicProperties())
        code, said, errors = left.result()
        assert code == 0, said + errors
        eventually("each key has a group", lambda: len(view.groups("many")) == KEYS)
        eventually("no request is on its way", lambda: not view.depth("many-orphan"))
        found = []
        for number in range(KEYS):
            got = eventually(f"the request for {number}", lambda number=number: _got(channel, number))  # type: ignore[misc]
            found.append(int(got))
    assert found == list(range(KEYS))


def _got(channel: BlockingChannel, number: int) -> bytes | None:
    method, _, body = channel.basic_get(f"many-req-{number}")
    if method is not None:
        channel.basic_ack(method.delivery_tag)
    return body  # type: ignore[no-any-return]
