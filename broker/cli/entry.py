"""Where the command begins, before the modules of `broker.cli.main` are there."""

from __future__ import annotations

import sys
from typing import Final

from clusterbroker.broker.cli.collector import look_seldom
from clusterbroker.broker.extras import wanting

COMMAND: Final = "server"
"""What brings what the command needs; a broker inside a test needs less."""


def main() -> None:
    """Never returns: the process ends with the command's exit code."""
    look_seldom()
    try:
        from clusterbroker.broker.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("clusterbroker"):
            raise
        sys.exit(f"clusterbroker: {wanting('the command', error.name, COMMAND)}")
    command()
