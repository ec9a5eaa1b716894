"""Where the command begins, before the modules of `broker.cli.main` are there."""

from __future__ import annotations

from broker.cli.collector import look_seldom


def main() -> None:
    """Never returns: the process ends with the command's exit code."""
    look_seldom()
    from broker.cli.main import main as command

    command()
