"""A worker of a pool and its caller, with a broker inside this process: squares by key.

    python examples/worker_pool.py [--keys 3] [--calls 30]

It takes `pip install "clusterbroker[workers]"`. A worker process per key is started by hand, as with the driver `noop`:
WORKER_POOL, WORKER_KEY and the broker's address. Exchange and queues are declared here; a broker with the pool makes
them itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import aio_pika

from clusterbroker.broker.embedded import Broker
from clusterbroker_workers import Fail, Pool, Request, Worker, WorkerFailed

POOL = "squares"


class Squares(Worker):
    """Answers the square of a number, and says which key it holds."""

    def load(self, key: str) -> None:
        self.unit = key

    def handle(self, request: Request) -> str:
        try:
            number = int(request.body)
        except ValueError as error:
            raise Fail(f"{request.body!r} is no number") from error
        return f"{number**2} {self.unit}"


async def declare(url: str, keys: list[str]) -> None:
    """The exchange of the pool's requests, its activity, and one queue per key."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange(f"{POOL}-activity-xchg", aio_pika.ExchangeType.FANOUT, durable=True)
        requests = await channel.declare_exchange(f"{POOL}-req-xchg", aio_pika.ExchangeType.DIRECT, durable=True)
        for key in keys:
            queue = await channel.declare_queue(f"{POOL}-req-{key}", durable=True)
            await queue.bind(requests, key)


def start_worker(url: str, key: str) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve()
    environment = {**os.environ, "WORKER_POOL": POOL, "WORKER_KEY": key, "WORKER_AMQP_URI": url}
    environment["PYTHONPATH"] = os.pathsep.join((str(here.parent.parent), environment.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "clusterbroker_workers", f"{here.stem}:Squares"]
    return subprocess.Popen(command, cwd=here.parent, env=environment)  # noqa: S603


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=3, help="keys, each with a worker")
    parser.add_argument("--calls", type=int, default=30, help="calls, by turns to the keys")
    options = parser.parse_args()
    keys = [f"unit{number}" for number in range(options.keys)]
    with Broker() as broker:
        asyncio.run(declare(broker.url, keys))
        workers = [start_worker(broker.url, key) for key in keys]
        try:
            with Pool(broker.url, POOL) as pool:
                print(pool.call(keys[0], b"12", timeout_s=60).body.decode())
                try:
                    pool.call(keys[0], b"twelve", timeout_s=60)
                except WorkerFailed as failed:
                    print(failed)
                begin_s = time.monotonic()
                asked = [keys[number % len(keys)] for number in range(options.calls)]
                answers = [answer.body.decode() for answer in pool.map(asked, b"7", timeout_s=60)]
                took_s = time.monotonic() - begin_s
            right = answers == [f"49 {key}" for key in asked]
            print(f"{len(answers)} answers by {len(keys)} workers in {took_s:.2f} s, each by its key's: {right}")
        finally:
            for worker in workers:
                worker.terminate()
            codes = [worker.wait(60) for worker in workers]
        print(f"workers drained: exit statuses {codes}")
    return 0 if right and not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
