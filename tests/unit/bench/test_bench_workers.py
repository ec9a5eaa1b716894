"""What the benches of pools start and count by: the worker in C++ at a real node, and rows of a step."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from bench.generator import compiled
from bench.pool_steps import row, simulated, waits
from clusterbroker.broker.embedded import Broker
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties

needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="needs a C++ compiler")
WORK_MS: Final = 30
REQUESTS: Final = 4


async def answers(url: str) -> list[bytes]:
    """Of requests with all properties that stand before and between those that the worker reads, and one without."""
    client, found = await Client.open(target(url)), asyncio.Queue[bytes]()
    client.on_deliver = lambda delivery: found.put_nowait(delivery.body)
    await client.call(m.QueueDeclare(queue="requests"))
    await client.call(m.QueueDeclare(queue="answers", exclusive=True))
    await client.call(m.BasicConsume(queue="answers", consumer_tag="c", no_ack=True))
    client.publish("requests", b"0 of nobody", properties=Properties())
    for number in range(REQUESTS):
        about = Properties(
            content_type="text/plain", content_encoding="utf-8", headers={"a": 1}, delivery_mode=2, priority=3,
            correlation_id=f"{number}", reply_to="answers", message_id="m",
        )  # fmt: skip
        client.publish("requests", b"%d of %d" % (WORK_MS, number), properties=about)
    came = [await asyncio.wait_for(found.get(), 60) for _ in range(REQUESTS)]
    left = await client.call(m.QueueDeclare(queue="requests", passive=True))
    assert isinstance(left, m.QueueDeclareOk)
    assert found.empty(), "each is answered once, and one that names no address is not"
    assert not left.message_count, "all of them are acknowledged"
    await client.close()
    return came


@needs_compiler
def test_the_worker_answers_with_its_times_and_what_it_got() -> None:
    with Broker() as broker:
        variables = {**os.environ, "WORKER_AMQP_URI": broker.url, "WORKER_REQUESTS_QUEUE": "requests"}
        asyncio.run(declared(broker.url))
        began_ns = time.time_ns()
        worker = subprocess.Popen([str(compiled("worker"))], env=variables)
        try:
            found = asyncio.run(answers(broker.url))
        finally:
            worker.kill()
            worker.wait()
    assert [body.split(b" ", 4)[4] for body in found] == [b"of %d" % number for number in range(REQUESTS)]
    for body in found:
        main_ns, came_ns, done_ns, _, _ = body.split(b" ", 4)
        assert began_ns <= int(main_ns) < int(came_ns)
        assert int(done_ns) - int(came_ns) >= WORK_MS * 1_000_000


async def declared(url: str) -> None:
    """The queue that it consumes."""
    client = await Client.open(target(url))
    await client.call(m.QueueDeclare(queue="requests"))
    await client.close()


@needs_compiler
def test_a_worker_without_its_variables_says_so(tmp_path: Path) -> None:
    done = subprocess.run([str(compiled("worker"))], env={}, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert "WORKER_AMQP_URI is not set" in done.stderr


def test_a_step_is_over_when_no_later_request_waits_long() -> None:
    found = [(0, 5_000_000_000), (11_000_000_000, 12_500_000_000), (12_000_000_000, 12_100_000_000)]
    cells = row("x", waits(found, step_s=10.0), needed=10, most=12, used_us=None).split()
    assert cells == ["x", "1.50", "1.0", "10", "12", "1.20", "3"], "what was before the step does not count"


def test_the_policy_alone_follows_a_step_without_overshoot() -> None:
    world = simulated(argparse.Namespace(rate=4.0, before=15.0, after=25.0), needed=3, seed=1)
    assert world.most <= 1.3 * 3 + 1
