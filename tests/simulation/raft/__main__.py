"""`python -m tests.simulation.raft --seed N --count K`: run seeds from N on; the first violation ends it."""

from __future__ import annotations

import argparse
import sys
import time

from .checkers import Violation
from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.raft", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--span-s", type=float, default=12.0, help="virtual seconds with faults")
    arguments = parser.parse_args()
    start_s = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            report = run(seed, span_s=arguments.span_s)
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return 1
        print(f"seed {seed}: {report}", flush=True)
    print(f"{arguments.count} seeds in {time.monotonic() - start_s:.1f} s: no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
