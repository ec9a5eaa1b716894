"""Many seeds of worker pools, in virtual time.

    scripts/simulate pools [--cluster] [--scenario NAME] [--seed N] [--count K] [--keep-on]

A seed is one pool's life; without a scenario it chooses its own. A failure ends the campaign and says how to repeat it.
With `--cluster` the pool is on three real nodes with real foremen; without, its scaling policy is alone. Its workers
serve several keys in the scenario `shared`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from tests.support import campaign

from .cluster.run import SCENARIOS, SELDOM
from .cluster.run import run as run_cluster
from .run import LOADS, run
from .shared import run as run_shared

COMMAND: Final = "scripts/simulate pools"
SHARED: Final = "shared"


def main(arguments: list[str]) -> int:
    parser = campaign.parser(COMMAND, __doc__)
    parser.add_argument(
        "--scenario", choices=sorted({*LOADS, *SCENARIOS, *SELDOM, SHARED}), help="by default each seed's own"
    )
    parser.add_argument("--cluster", action="store_true", help="nodes, maps, foremen, workers and callers as well")
    options = parser.parse_args(arguments)
    live: Callable[[int, str | None], Any] = run_cluster if options.cluster else run
    if options.scenario == SHARED:
        live = lambda seed, _scenario: run_shared(seed)  # noqa: E731
    known = {*SCENARIOS, *SELDOM} if options.cluster else {*LOADS, SHARED}
    if options.scenario is not None and options.scenario not in known:
        parser.error(f"--scenario {options.scenario} is {'without' if options.cluster else 'with'} --cluster")
    flags = " ".join(
        [*(["--cluster"] if options.cluster else []), *([f"--scenario {options.scenario}"] if options.scenario else [])]
    )
    return campaign.run(options, {flags: lambda seed: live(seed, options.scenario)}, COMMAND, "worker pools")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
