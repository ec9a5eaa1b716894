"""A worker of a pool and its caller, with a broker inside this process: squares by key.

    python examples/worker_pool.py [--keys 3] [--calls 30]

It takes `pip install "clusterbroker[workers]"`. The broker starts a worker process for each key that is called, and
ends all of them when it stops.
"""

from __future__ import annotations

import argparse
import sys
import time

from clusterbroker import Broker
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=3, help="keys, each with a worker")
    parser.add_argument("--calls", type=int, default=30, help="calls, by turns to the keys")
    options = parser.parse_args()
    keys = [f"unit{number}" for number in range(options.keys)]
    with Broker(pools={POOL: Squares}) as broker, Pool(broker.url, POOL) as pool:
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
    print(f"{len(answers)} answers for {len(keys)} keys in {took_s:.2f} s, each by its key's worker: {right}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
