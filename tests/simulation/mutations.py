"""The mutation gate: every bug of bugs.py must be found, each in a process of its own, for it is patched.

    python -m tests.simulation.mutations [NAME ...] [--seeds K] [--table FILE]

What finds it must be a checker or an assert: any other exception says that the bug does not fit the code any more.

A row names the bug, the faults that are aimed at it, the seed that found it, what it violated, and how long that
took. Two bugs are looked for at a time where the machine has two cores, and each has CPU_S_MAX of processor time: so
the whole takes no longer than half an hour on a quiet machine, and finds the same on a busy one. The stories of seeds
move with the code; `--stale` says whose seed does not find it any more, and `--write-seeds` looks for others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests import model
from tests.simulation import bugs_edges, bugs_links, bugs_pipeline
from tests.simulation.bugs import MUTATIONS, Mutation

FOUND_BY: Final = Path(__file__).parent / "found_by.json"
SEEDS_MAX: Final = 300
"""Within so many seeds each bug must be found,"""
CPU_S_MAX: Final = 300.0
"""and within so many seconds; a seed that has begun is ended."""
RARE: Final = (
    "early_fail_over", "forced_forgets_handed", "given_up_twice", "no_barrier", "no_generation", "refused_is_dead",
    "uncut_files",
)  # fmt: skip
"""One seed in 25 to 75 finds these, so a search may take an hour: they are not looked for with each commit, but in the
long campaign (`scripts/test --all`) and here."""
RARE_FACTOR: Final = 6
"""So many times the seeds and the seconds are theirs."""
assert bugs_edges, "its bugs stand among the others"
assert bugs_pipeline, "its bugs stand among the others"
assert bugs_links, "its bugs stand among the others"
HEAD: Final = "| seeded bug | aimed faults | seed | what is violated | CPU s |\n|---|---|---|---|---|"


class Found(NamedTuple):
    """How the search for one bug ended. `seed`: the one that found it."""

    name: str
    ok: bool
    seed: int
    says: str
    cpu_s: float

    @property
    def row(self) -> str:
        mutation = MUTATIONS[self.name]
        says = self.says.partition(" s: ")[2] or self.says
        faults = ", ".join(mutation.only) or "all"
        return f"| {mutation.row} (`{self.name}`) | {faults} | {self.seed} | {says[:140]} | {self.cpu_s:.0f} |"


def find(name: str, seeds: int) -> tuple[int, str] | None:
    """In this process, which is spoilt from then on: the seed that failed, and how."""
    chosen = MUTATIONS[name]
    if chosen.in_model:
        model.stand_in()
    from tests.simulation.checkers import Violation
    from tests.simulation.run import Failure

    chosen.put_in()
    known = found_by().get(name, chosen.first)
    factor = RARE_FACTOR if name in RARE else 1
    others = (chosen.first + count for count in range(seeds * factor))
    for seed in itertools.chain([known], (other for other in others if other != known)):
        if time.process_time() > CPU_S_MAX * factor:
            return None
        try:
            run_of(chosen, seed)
        except Failure as failure:
            if not isinstance(failure.__cause__, (Violation, AssertionError)):
                raise
            return seed, str(failure)
    return None


def run_of(chosen: Mutation, seed: int, tamper: Callable[[Any], object] | None = None) -> None:
    """A run of the kind in which this bug is looked for. Raises Failure."""
    from tests.simulation.run import run

    run(
        seed, seconds=20.0, only=chosen.only, nodes=chosen.nodes, pipeline=chosen.pipeline, tamper=tamper,
        edges=bool(chosen.only), journal=chosen.journal,
    )  # fmt: skip


def found_by() -> dict[str, int]:
    """The seed that has found each bug. It is tried first; the search goes on where the world has changed since."""
    known: dict[str, int] = json.loads(FOUND_BY.read_text())
    return known


def apart(name: str, seeds: int) -> Found:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.simulation.mutations", "--one", name, "--seeds", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        count, cpu_s, says = lines[-1].split("|", 2)
        return Found(name, done.returncode == 0, int(count), says, float(cpu_s))
    except (IndexError, ValueError):  # it did not come to an end of its own
        return Found(name, False, 0, done.stderr.strip()[-300:], 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all if none is named")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds each may take")
    parser.add_argument("--table", type=Path, help="where the table is written as well")
    parser.add_argument("--write-seeds", action="store_true", help=f"note what found each in {FOUND_BY.name}")
    parser.add_argument("--stale", action="store_true", help="try no seed but the one that found each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        found = find(arguments.one, arguments.seeds)
        seed, says = found or (0, "not found")
        print(f"{seed}|{time.process_time():.1f}|{says}")
        return 1 if found is None else 0
    names = arguments.names or list(MUTATIONS)
    if arguments.stale:
        arguments.seeds = 0
    begin_s = time.monotonic()
    known = found_by()
    rows: dict[str, str] = {}
    missed: list[str] = []
    print(HEAD, flush=True)
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as two:
        for ended in as_completed([two.submit(apart, name, arguments.seeds) for name in names]):
            found = ended.result()
            rows[found.name] = found.row
            print(found.row, flush=True)
            if not found.ok:
                missed.append(found.name)
            elif arguments.write_seeds:
                known[found.name] = found.seed
                FOUND_BY.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
    verdict = f"{len(names)} bugs in {time.monotonic() - begin_s:.0f} s: {', '.join(missed) or 'none'} missed"
    print(verdict)
    if arguments.table is not None:
        arguments.table.write_text("\n".join((HEAD, *(rows[name] for name in names), "", verdict, "")))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
