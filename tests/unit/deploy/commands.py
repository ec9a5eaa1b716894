"""Command lines that stand in deployment files, held against the real command: each word is one that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from clusterbroker.broker.cli.main import app


def checked(words: Sequence[str]) -> Any:
    """The context that `clusterbroker WORDS` would run in; raises what would end it with exit code 2."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("clusterbroker", list(words[:1]), resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "get_command"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"clusterbroker has no command '{name}'"
        if not hasattr(command, "get_command") or getattr(command, "invoke_without_command", False):
            return command.make_context(name, rest, parent=context)
        context = command.make_context(name, list(rest[:1]), parent=context, resilient_parsing=True)
    raise AssertionError("a group comes first")
