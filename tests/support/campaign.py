"""Many lives, seed after seed, until one fails: the arguments, the progress and the verdict of a campaign.

What lives is handed in; a failure says how to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, TextIO

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


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """The arguments of each campaign: `seed`, `count`, `keep_on`. A campaign adds its own."""
    made = argparse.ArgumentParser(
        prog=command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seed", type=int, default=1, help="the first one")
    made.add_argument("--count", type=int, default=100, help="how many seeds")
    made.add_argument("--keep-on", action="store_true", help="go on after a failure")
    return made


def run(options: argparse.Namespace, lives: Mapping[str, Callable[[int], object]], again: str, subject: str) -> int:
    """The exit code: 1 when a life raised. Each seed is given to each of `lives`.

    A key of `lives` is what the command `again` needs to repeat that one alone, "" for nothing; `subject` names the
    campaign in its last line.
    """
    progress, failed, done = Progress(options.count, sys.stderr), 0, 0
    try:
        for seed in range(options.seed, options.seed + options.count):
            for flags, live in lives.items():
                try:
                    live(seed)
                except Exception as error:
                    failed += 1
                    print(f"\nseed {seed}: {type(error).__name__}: {error}")
                    print(" ".join(("again:", again, *flags.split(), f"--seed {seed} --count 1")), flush=True)
            done += 1
            progress.show(done, failed)
            if failed and not options.keep_on:
                break
    except KeyboardInterrupt:  # what was done until now counts
        print()
    print(f"{done} seeds of {subject}: {failed or 'no'} failure{'' if failed == 1 else 's'}")
    return 1 if failed else 0
