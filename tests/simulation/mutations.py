"""The mutation gate: every bug of bugs.py must be found, each in a process of its own, for it is patched.

    python -m tests.simulation.mutations [NAME ...] [--seeds K]

A line names the bug, the seed that found it first (counted from 1), what it violated, and how long that took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.simulation.bugs import MUTATIONS

SEEDS_MAX = 300
"""Within so many seeds each bug must be found."""


def find(name: str, seeds: int) -> tuple[int, str] | None:
    """In this process, which is spoilt from then on: the first seed that fails, and how."""
    from tests.simulation.run import Failure, run

    chosen = MUTATIONS[name]
    chosen.put_in()
    for seed in range(1, seeds + 1):
        try:
            run(seed, seconds=20.0, only=chosen.only, nodes=chosen.nodes)
        except Failure as failure:
            return seed, str(failure)
    return None


def apart(name: str, seeds: int) -> tuple[bool, str]:
    """In a process of its own: (found, the line that says so)."""
    environment = dict(os.environ)
    if MUTATIONS[name].pure:
        environment["CLUSTERBROKER_PURE"] = "1"
    command = [sys.executable, "-m", "tests.simulation.mutations", "--one", name, "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else done.stderr.strip()[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all if none is named")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds each may take")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        found = find(arguments.one, arguments.seeds)
        print("not found" if found is None else f"{found[0]} | {found[1]}")
        return 1 if found is None else 0
    missed = 0
    for name in arguments.names or MUTATIONS:
        start_s = time.monotonic()
        ok, line = apart(name, arguments.seeds)
        missed += not ok
        print(f"{name} | {MUTATIONS[name].row} | {line[:200]} | {time.monotonic() - start_s:.0f} s", flush=True)
    print(f"{missed or 'none'} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
