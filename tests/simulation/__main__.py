"""`python -m tests.simulation --seed N [--count K] [--seconds S]`: runs seeds from N on; a failure ends it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.run import Failure, run

SECONDS = 20.0
PROGRESS_S = 30.0
"""Between two lines on stderr, where there is none for each seed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds with faults")
    parser.add_argument("--only", default="", help="names of faults, with commas between; the others do not happen")
    parser.add_argument("--wiring", choices=("raft", "atomic"), help="by default every fourth seed is by Raft")
    parser.add_argument("--pipeline", help="batches and the like, with commas between; by default as the seed says")
    parser.add_argument("--journal", choices=("real", "model"), help="by default every tenth seed is on the real one")
    parser.add_argument("--keep-on", action="store_true", help="go on after a failure")
    parser.add_argument("--quiet", action="store_true", help="only the sum at the end, and failures")
    arguments = parser.parse_args()
    only = tuple(name for name in arguments.only.split(",") if name)
    raft = None if arguments.wiring is None else arguments.wiring == "raft"
    journal = None if arguments.journal is None else arguments.journal == "real"
    pipeline = None if arguments.pipeline is None else [name for name in arguments.pipeline.split(",") if name]
    start_s, simulated_s, events = time.monotonic(), 0.0, 0
    counts: Counter[str] = Counter()
    failed: list[int] = []
    done, said_s = 0, start_s
    again = [f"--seconds {arguments.seconds:g}"] if arguments.seconds != SECONDS else []
    again += [f"--{name} {said}" for name in ("only", "wiring", "journal") if (said := getattr(arguments, name))]
    again += [f"--pipeline '{arguments.pipeline}'"] if arguments.pipeline is not None else []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            report = run(seed, seconds=arguments.seconds, only=only, raft=raft, pipeline=pipeline, journal=journal)
        except Failure as failure:
            print(failure, flush=True)
            failed.append(seed)
            done += 1
            if not arguments.keep_on:
                break
            continue
        except KeyboardInterrupt:  # what was done until now counts
            break
        done += 1
        simulated_s += report.simulated_s
        events += report.events
        counts.update(report.counts)
        now_s = time.monotonic()
        if arguments.quiet and now_s - said_s >= PROGRESS_S:
            said_s = now_s
            left_s = (now_s - start_s) / done * (arguments.count - done)
            print(
                f"{done} of {arguments.count} seeds, {len(failed)} failed, {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        if not arguments.quiet:
            print(
                f"seed {seed}: {report.simulated_s:.1f} s simulated, {report.events} events, "
                f"{report.counts['confirms']} confirms, trace {report.trace:08x}",
                flush=True,
            )
    took_s = time.monotonic() - start_s
    for seed in failed:
        print(" ".join((f"again: scripts/simulate --seed {seed}", *again)))
    failures = len(failed)
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(
        f"{done} seeds, {simulated_s / 3600:.2f} simulated hours, {events} events in {took_s:.1f} s "
        f"({events / max(took_s, 0.001):.0f}/s): {failures or 'no'} failure{'' if failures == 1 else 's'}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
