"""Many lives of recoverable links, seed after seed: of sender links (link_lives) or of receiver links (held_lives).

    scripts/simulate links [--role sender|receiver] [--seed N] [--count K] [--keep-on]

A seed is one life. Without a role each seed is one of either. A failure ends the campaign and says how to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from tests.property import held_lives, link_lives

LIVES: Final[dict[str, Callable[[int], None]]] = {"sender": link_lives.life, "receiver": held_lives.live}
BAR: Final = 30
LINE_S: Final = 30.0
"""Between two lines of progress where stderr is no terminal."""


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, total: int, out: TextIO) -> None:
        self._total, self._out = total, out
        self._begin_s = self._shown_s = time.monotonic()

    def show(self, done: int, failed: int) -> None:
        now_s = time.monotonic()
        terminal = self._out.isatty()
        if now_s - self._shown_s < (0.2 if terminal else LINE_S) and done < self._total:
            return
        self._shown_s = now_s
        left_s = (now_s - self._begin_s) / done * (self._total - done)
        filled = BAR * done // self._total
        bar = f"[{'#' * filled}{'.' * (BAR - filled)}] " if terminal else ""
        text = f"{bar}{done} of {self._total} seeds, {failed} failed, {left_s:.0f} s left"
        self._out.write(f"\r{text}\x1b[K" if terminal else f"{text}\n")
        if terminal and done == self._total:
            self._out.write("\n")
        self._out.flush()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate links", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=tuple(LIVES), help="of the client; by default both")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--keep-on", action="store_true", help="go on after a failure")
    options = parser.parse_args(arguments)
    roles = tuple(LIVES) if options.role is None else (options.role,)
    progress, failed, done = Progress(options.count, sys.stderr), 0, 0
    try:
        for seed in range(options.seed, options.seed + options.count):
            for role in roles:
                try:
                    LIVES[role](seed)
                except Exception as error:
                    failed += 1
                    print(f"\n{role} seed {seed}: {type(error).__name__}: {error}")
                    print(f"again: scripts/simulate links --role {role} --seed {seed} --count 1", flush=True)
            done += 1
            progress.show(done, failed)
            if failed and not options.keep_on:
                break
    except KeyboardInterrupt:  # what was done until now counts
        print()
    print(f"{done} seeds of {' and '.join(roles)} links: {failed or 'no'} failure{'' if failed == 1 else 's'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
