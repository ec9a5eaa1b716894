"""How a command ends when it cannot do what it was asked to: one line on stderr, and an exit code.

0    done
1    refused, or failed: what was asked for cannot be; a health check that found something
2    the words themselves are wrong
3    no node could be asked: none runs there, none answered in time, or it is cut off and says so
4    signed in as nobody, or as one who may not do this
"""

from __future__ import annotations

from typing import Final, NoReturn

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_ALLOWED: Final = 4


class Failed(Exception):
    """The command is over; the text is one line for the user."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def end(failed: Failed) -> NoReturn:
    """Says why, and leaves."""
    import typer

    from clusterbroker.broker.cli.readable import visible

    typer.echo(f"clusterbroker: {visible(failed.text)}", err=True)
    raise typer.Exit(failed.code)
