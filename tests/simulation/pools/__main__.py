"""Many seeds of the scaling policy, in virtual time: loads, drivers that misbehave, places that are lost.

    scripts/simulate pools [--scenario NAME] [--seed N] [--count K] [--keep-on]

A seed is one pool's life; without a scenario it chooses its own. A failure ends the campaign and says how to repeat it.
"""

from __future__ import annotations

import argparse
import sys

from tests.property.link_campaign import Progress

from .run import LOADS, run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate pools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", choices=sorted(LOADS), help="by default each seed's own")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--keep-on", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    progress, failed, done = Progress(options.count, sys.stderr), 0, 0
    scenario = f"--scenario {options.scenario} " if options.scenario else ""
    try:
        for seed in range(options.seed, options.seed + options.count):
            try:
                run(seed, options.scenario)
            except Exception as error:
                failed += 1
                print(f"\nseed {seed}: {type(error).__name__}: {error}")
                print(f"again: scripts/simulate pools {scenario}--seed {seed} --count 1", flush=True)
            done += 1
            progress.show(done, failed)
            if failed and not options.keep_on:
                break
    except KeyboardInterrupt:  # what was done until now counts
        print()
    print(f"{done} seeds of worker pools: {failed or 'no'} failure{'' if failed == 1 else 's'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
