"""`--watch`: the same question again and again, the answer redrawn in place (waits).

A node that cannot be reached for a while is told above the last answer, and asked again: who watches a restart wants to
see its end. Everything else that goes wrong ends the watch. Ctrl-C ends it as it is meant to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import typer

from clusterbroker.broker.cli.exit_codes import UNREACHABLE, Failed
from clusterbroker.broker.cli.readable import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EVERY_S: Final = 2.0
LEAST_S: Final = 0.1


def normalised(words: list[str]) -> list[str]:
    """Words of a command line in which `--watch` always has its number: it may be left out."""
    found: list[str] = []
    for place, word in enumerate(words):
        if word == "--":
            return found + words[place:]
        following = words[place + 1] if place + 1 < len(words) else ""
        found.append(f"--watch={EVERY_S:g}" if word == "--watch" and not _is_number(following) else word)
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def watch_lines(line: Callable[[], str], every_s: float, pause: Callable[[float], None] = time.sleep) -> None:
    """A line of JSON each time, or in a file one picture below the other, until Ctrl-C. Failed when the first is."""
    first = True
    try:
        while True:
            try:
                typer.echo(line())
            except Failed as failed:
                if first or failed.code != UNREACHABLE:
                    raise
                typer.echo(f"clusterbroker: {visible(failed.text)}", err=True)
            first = False
            pause(max(every_s, LEAST_S))
    except KeyboardInterrupt:
        return


def watch(
    draw: Callable[[], RenderableType],
    every_s: float,
    console: Console,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Redraws a terminal in place, until Ctrl-C. Failed when the first answer is."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown = draw()
    try:
        with Live(shown, console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while True:
                pause(max(every_s, LEAST_S))
                try:
                    shown = draw()
                    live.update(shown, refresh=True)
                except Failed as failed:
                    if failed.code != UNREACHABLE:
                        raise
                    away = Text(f"{time.strftime('%H:%M:%S')} {visible(failed.text)}", style="red")
                    live.update(Group(away, shown), refresh=True)
    except KeyboardInterrupt:
        return
