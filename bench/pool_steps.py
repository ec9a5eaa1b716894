"""A tenfold step of one key's load: how soon waits are short again, and by how many workers.

    python -m bench.pool_steps [--rate 20] [--before 15] [--after 25] [--rounds 2] [--peer celery|none] [--seeds 50]

Requests of SERVICE_S come at a steady rate, then at ten times as many; a worker takes LOAD_S from its start until it
serves (section 7: s = 50 ms, L = 1 s). In turns:

    pool         a pool of this broker with `target_wait_ms` of a second, and workers of bench/load/worker.cc
    Celery       `celery worker --autoscale=MOST,1` (prefork) on RabbitMQ; each child loads for LOAD_S when it is made
    policy       the pool's policy alone, in virtual time (tests/simulation/pools), with Poisson arrivals, worst of
                 --seeds

Printed: the longest wait of a request, from its publish until a worker has it, s; the time from the step until no later
request waited longer than TARGET_S; workers needed (arrivals x s / 0.7, as the policy has it), workers at most after
the step, sampled each SAMPLE_S, and their ratio; processor time of the broker, us a request (Celery: of RabbitMQ and of
Celery's own processes). What is needed at full load would be 0.7 of that.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
from celery import Celery
from celery.signals import worker_process_init

from bench.migrations import url
from bench.pool_rivals import BROKER_URL
from bench.pools import LOAD_S, PATIENCE_S, SERVICE_S, one_node, processor_s
from bench.sampling import Sampled
from bench.servers import SERVERS
from clusterbroker.broker.pools.demand import LOAD
from clusterbroker.broker.pools.facts import Settings
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties
from tests.simulation.pools.world import Nature, World

MOST: Final = 64
"""Workers of the key: more than any of them should ever want."""
TARGET_S: Final = 1.0
SAMPLE_S: Final = 0.1
TENFOLD: Final = 10
NOTES: Final = "BENCH_NOTES"
"""Names the file in which Celery's tasks note when they were published, and when they began."""

Wait = tuple[float, float]
"""Of a request: publish, seconds after the step; how long it waited."""

app = Celery("steps", broker=os.environ.get(BROKER_URL, "amqp://localhost"))


@worker_process_init.connect
def load(**_: object) -> None:
    """Of each child of Celery's pool."""
    time.sleep(LOAD_S)


@app.task(name="work", ignore_result=True)
def work(published_ns: int) -> None:
    """SERVICE_S of it."""
    with open(os.environ[NOTES], "a") as notes:
        notes.write(f"{published_ns} {time.time_ns()}\n")
    time.sleep(SERVICE_S)


def row(name: str, waits: Sequence[Wait], needed: int, most: int, used_us: float | None) -> str:
    """For people."""
    late = [at_s for at_s, wait_s in waits if at_s >= 0 and wait_s > TARGET_S]
    longest = max(wait_s for at_s, wait_s in waits if at_s >= 0)
    cells = f"{longest:10.2f}{max(late, default=0.0):12.1f}{needed:8}{most:8}{most / needed:7.2f}"
    return f"{name:18}{cells}{'' if used_us is None else f'{used_us:12.0f}'}{len(waits):9}"


async def paced(rate: float, before_s: float, after_s: float, publish: Callable[[], None]) -> float:
    """The moment of the step, by the clock of the wall."""
    began_s, due_s, step_s = time.time(), 0.0, 0.0
    while due_s < before_s + after_s:
        while (early_s := began_s + due_s - time.time()) > 0:  # noqa: ASYNC110 - until a moment
            await asyncio.sleep(early_s)
        publish()
        if due_s >= before_s and not step_s:
            step_s = time.time()
        due_s += 1 / (rate if due_s < before_s else TENFOLD * rate)
    return step_s


# -- a pool -------------------------------------------------------------------------------------------------------


async def asked_pool(address: str, rate: float, before_s: float, after_s: float) -> tuple[float, list[tuple[int, int]]]:
    """The step, and (published, came) of each request, ns."""
    client = await Client.open(target(address), timeout_s=30, heartbeat_s=60)
    found: list[tuple[int, int]] = []

    def note(body: bytes) -> None:
        _, came_ns, _, _, published_ns = map(int, body.split())
        found.append((published_ns, came_ns))

    client.on_deliver = lambda delivery: note(delivery.body)
    await client.call(m.QueueDeclare(queue="answers", exclusive=True))
    await client.call(m.BasicConsume(queue="answers", consumer_tag="c", no_ack=True))
    about, sent = Properties(reply_to="answers", delivery_mode=2), 0

    def publish() -> None:
        nonlocal sent
        sent += 1
        client.publish("k", f"{SERVICE_S * 1000:.0f} {time.time_ns()}".encode(), exchange="steps", properties=about)

    step_s = await paced(rate, before_s, after_s, publish)
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < sent:  # noqa: ASYNC110 - a callback counts
            await asyncio.sleep(SAMPLE_S)
    assert len(set(found)) == sent, "each is answered once"
    await client.close()
    return step_s, found


def pool(said: argparse.Namespace, needed: int) -> str:
    """One row."""
    with tempfile.TemporaryDirectory() as directory, one_node(Path(directory) / "node") as (node, broker):
        broker.declare("steps", "loading", max=MOST, target_wait_ms=round(TARGET_S * 1000))

        def workers() -> int:
            return sum(not worker["revoked"] for worker in broker.document("pools/%2F/steps/workers"))

        used_s = processor_s(node)
        with Sampled(workers, SAMPLE_S, time.time_ns) as count:
            step_s, found = asyncio.run(asked_pool(broker.url(), said.rate, said.before, said.after))
        used_us = (processor_s(node) - used_s) / len(found) * 1e6
        return row("pool", waits(found, step_s), needed, count.most(step_s * 1e9), used_us)


def waits(found: Sequence[tuple[int, int]], step_s: float) -> list[Wait]:
    """Of (published, came), ns."""
    return [(published_ns / 1e9 - step_s, (came_ns - published_ns) / 1e9) for published_ns, came_ns in found]


# -- Celery -------------------------------------------------------------------------------------------------------


@contextmanager
def celery_worker(address: str, notes: Path) -> Iterator[psutil.Process]:
    """The process whose children are the workers."""
    argv = [sys.executable, "-m", "celery", "-A", "bench.pool_steps:app", "worker", f"--autoscale={MOST},1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    variables = {**os.environ, BROKER_URL: address, NOTES: str(notes)}
    process = subprocess.Popen([*argv, "-l", "error", "-n", "w@bench"], env=variables, **quiet)  # type: ignore[call-overload]
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def celery(said: argparse.Namespace, needed: int) -> str:
    """One row."""
    with tempfile.TemporaryDirectory() as directory, SERVERS["rabbitmq"](Path(directory) / "server") as server:
        server.start()
        notes = Path(directory) / "notes"
        notes.touch()
        with celery_worker(url(server), notes) as parent, Celery("caller", broker=url(server)) as caller:
            sent = 0

            def publish() -> None:
                nonlocal sent
                sent += 1
                caller.send_task("work", [time.time_ns()])

            publish()
            _until(lambda: len(_read(notes)) == sent)  # its first worker is there
            used_s = server.processor_s() + _tree_s(parent)
            with Sampled(lambda: len(parent.children()), SAMPLE_S, time.time_ns) as count:
                step_s = asyncio.run(paced(said.rate, said.before, said.after, publish))
                _until(lambda: len(_read(notes)) == sent)
            used_us = (server.processor_s() + _tree_s(parent) - used_s) / sent * 1e6
            found = _read(notes)
            assert len(set(found)) == sent, "each is carried out once"
        return row("Celery, RabbitMQ", waits(found[1:], step_s), needed, count.most(step_s * 1e9), used_us)


def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"not all tasks are over after {PATIENCE_S:.0f} s"
        time.sleep(SAMPLE_S)


def _read(notes: Path) -> list[tuple[int, int]]:
    lines = (line.split() for line in notes.read_text().splitlines())
    return [(int(published_ns), int(began_ns)) for published_ns, began_ns in lines]


def _tree_s(parent: psutil.Process) -> float:
    times = [process.cpu_times() for process in (parent, *parent.children())]
    return sum(each.user + each.system for each in times)


# -- the policy ---------------------------------------------------------------------------------------------------


class Watched(World):
    """Notes waits, and workers at most after the step."""

    def __init__(self, seed: int, settings: Settings, step_s: float) -> None:
        super().__init__(seed, settings)
        self.step_s, self.most = step_s, 0
        self.waits: list[Wait] = []

    def _deliver(self, group: Any, worker: Any, message: Any) -> None:
        self.waits.append((message.born_s - self.step_s, self.now_s - message.born_s))
        super()._deliver(group, worker, message)

    def _launch(self, order: Any) -> None:
        super()._launch(order)
        if self.now_s >= self.step_s:
            self.most = max(self.most, sum(len(group.workers) for group in self.groups.values()))


def simulated(said: argparse.Namespace, needed: int, seed: int) -> Watched:
    """One life of a key."""
    world = Watched(seed, Settings(max=MOST, target_wait_s=TARGET_S, memory=1), said.before)
    world.natures["k"] = Nature(LOAD_S, SERVICE_S, 1)
    world.add_place("p", MOST)
    time_s = 0.0
    while time_s < said.before + said.after:
        world.at(time_s, lambda: world.publish("k"))
        time_s += world.rng.expovariate(said.rate if time_s < said.before else TENFOLD * said.rate)
    world.run(said.before + said.after + 10)
    assert len(world.waits) == world.counts["accepted"] == world.counts["acked"], f"each once: {world.counts}"
    assert needed * LOAD <= world.most < MOST, "at least what the load takes, and no bound but its own"
    return world


def policy(said: argparse.Namespace, needed: int) -> list[str]:
    """Rows of the worst ones."""
    worlds = [simulated(said, needed, seed) for seed in range(said.seeds)]
    slowest = max(worlds, key=lambda world: max([at_s for at_s, wait_s in world.waits if wait_s > TARGET_S], default=0))
    largest = max(worlds, key=lambda world: world.most)
    return [row("policy, slowest", slowest.waits, needed, slowest.most, None),
            row("policy, most", largest.waits, needed, largest.most, None)]  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pool_steps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=20, help="requests a second before the step")
    parser.add_argument("--before", type=float, default=15, help="s")
    parser.add_argument("--after", type=float, default=25, help="s")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", choices=("celery", "none"), default="celery")
    parser.add_argument("--seeds", type=int, default=50, help="lives of the policy in virtual time")
    said = parser.parse_args()
    needed = math.ceil(TENFOLD * said.rate * SERVICE_S / LOAD)
    heads = f"{'longest s':>10}{'short after':>12}{'needed':>8}{'most':>8}{'ratio':>7}{'us/request':>12}{'requests':>9}"
    print(f"{'':18}{heads}", flush=True)
    for _ in range(said.rounds):
        print(pool(said, needed), flush=True)
        if said.peer == "celery":
            print(celery(said, needed), flush=True)
    if said.seeds:
        print("\n".join(policy(said, needed)), flush=True)


if __name__ == "__main__":
    main()
