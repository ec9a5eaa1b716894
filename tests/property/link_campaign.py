"""Many lives of recoverable links, seed after seed: of sender links (link_lives) or of receiver links (held_lives).

    scripts/simulate links [--role ROLE] [--seed N] [--count K] [--keep-on]

A seed is one life of each role: sender; receiver, with its kinds choosy, patient, apart, alone and alarmed. A failure
ends the campaign and says how to repeat it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.property import held_lives, link_lives
from tests.support import campaign

COMMAND: Final = "scripts/simulate links"
LIVES: Final[dict[str, Callable[[int], None]]] = {
    "sender": link_lives.life,
    "receiver": held_lives.live,
    "choosy": partial(held_lives.live, choosy=True),
    "patient": partial(held_lives.live, patient=True),
    "apart": partial(held_lives.live, apart=True),
    "alone": partial(held_lives.live, alone=True),
    "alarmed": partial(held_lives.live, alarmed=True),
}


def main(arguments: list[str]) -> int:
    parser = campaign.parser(COMMAND, __doc__)
    parser.add_argument("--role", choices=tuple(LIVES), help="of the client; by default both")
    options = parser.parse_args(arguments)
    roles = tuple(LIVES) if options.role is None else (options.role,)
    lives = {f"--role {role}": LIVES[role] for role in roles}
    return campaign.run(options, lives, COMMAND, f"{', '.join(roles)} links")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
