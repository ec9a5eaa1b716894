"""Where the command begins: before the modules of `broker.cli.main` are there.

What modules make stays, and to look for garbage among it takes a twentieth of a start. So the collector looks as seldom
from here on as it does in a node that is ready (`broker.cli.start`).
"""

from __future__ import annotations

import gc
from typing import Final

SELDOM: Final = 50_000, 20, 50
"""Thresholds of the collector."""


def main() -> None:
    """Never returns: the process ends with the command's exit code."""
    gc.set_threshold(*SELDOM)
    from broker.cli.main import main as command

    command()
