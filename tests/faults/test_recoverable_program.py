"""The program of a trial, whose connections are lost and which is killed: its tags come again all the same."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pika
import pytest

from clusterbroker import Broker
from clusterbroker.broker.trial.recoverable_client import TAGS, ClientPlan, LinkPlan
from tests.support.cutting import Cutter

RATE_PER_S = 1000.0
HANGS_S = 60


def lines(plan: ClientPlan, word: str) -> list[list[str]]:
    """What follows the word, in all whole lines that begin with it."""
    text = plan.log.read_text() if plan.log.exists() else ""
    whole = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
    return [fields[1:] for fields in whole if fields[0] == word]


def sent(plan: ClientPlan) -> set[str]:
    return {number for _, number, _ in lines(plan, "sent")}


def taken(plan: ClientPlan) -> set[str]:
    return {number for _, _, number, _ in lines(plan, "took")}


async def until(holds: Callable[[], bool], plan: ClientPlan) -> None:
    async with asyncio.timeout(HANGS_S):
        while not holds():
            assert not lines(plan, "error")
            await asyncio.sleep(0.005)


def begin(plan: ClientPlan) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "clusterbroker.broker.trial.recoverable_client", msgspec.json.encode(plan).decode()]
    program = subprocess.Popen(words, stdin=subprocess.PIPE)
    tell(program, "go")
    return program


def tell(program: subprocess.Popen[bytes], command: str) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{command}\n".encode())
    program.stdin.flush()


@pytest.mark.processes
async def test_tags_come_again_after_lost_connections_and_deaths(tmp_path: Path) -> None:
    with Broker(tmp_path / "node") as broker:
        wire = pika.BlockingConnection(pika.URLParameters(broker.url))
        wire.channel().queue_declare("q", durable=True)
        wire.close()
        await put_through(broker, tmp_path)


async def put_through(broker: Broker, tmp_path: Path) -> None:
    async with Cutter(broker.port) as cutter:
        links = (LinkPlan("s", "/queues/q", True), LinkPlan("r", "/queues/q", False))
        plan = ClientPlan("program", (cutter.url,), str(tmp_path), links, RATE_PER_S, 0.0)
        program = begin(plan)
        try:
            for hit in range(4):
                wanted = len(lines(plan, "outcome")) + 2 * TAGS
                await until(lambda wanted=wanted: len(lines(plan, "outcome")) > wanted, plan)  # type: ignore[misc]
                if hit == 2:
                    program.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(program.wait)
                    program = begin(plan)
                else:
                    cutter.cut()
            tell(program, "pause 1")
            await until(lambda: lines(plan, "paused") == [["1"]] and sent(plan) == taken(plan), plan)
        finally:
            program.kill()
            program.wait()
    assert len(sent(plan)) > 6 * TAGS
    assert max(Counter(tag for _, _, tag in lines(plan, "sent")).values()) > 1, "tags come again"
