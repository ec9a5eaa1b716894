"""Many seeds of the scaling policy, in virtual time: loads, drivers that misbehave, places that are lost.

    scripts/simulate pools [--scenario NAME] [--seed N] [--count K] [--keep-on]

A seed is one pool's life; without a scenario it chooses its own. A failure ends the campaign and says how to repeat it.
"""

from __future__ import annotations

import sys
from typing import Final

from tests.support import campaign

from .run import LOADS, run

COMMAND: Final = "scripts/simulate pools"


def main(arguments: list[str]) -> int:
    parser = campaign.parser(COMMAND, __doc__)
    parser.add_argument("--scenario", choices=sorted(LOADS), help="by default each seed's own")
    options = parser.parse_args(arguments)
    flags = f"--scenario {options.scenario}" if options.scenario else ""
    return campaign.run(options, {flags: lambda seed: run(seed, options.scenario)}, COMMAND, "worker pools")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
