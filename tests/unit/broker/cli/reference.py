"""All commands and options as Markdown, as they stand in docs/command-line.md; run it to write them there:

python -m tests.unit.broker.cli.reference
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from clusterbroker.broker.cli.commands import SHOWN, WHERE
from clusterbroker.broker.cli.main import app
from clusterbroker.broker.cli.tree import COMMANDS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "command-line.md"
BEGIN, END = "<!-- reference: begins -->", "<!-- reference: ends -->"
SHARED = (WHERE, SHOWN)
"""Panels of options that are told once, above."""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that is not hidden, a group that may be called alone too: its words, and what typer made of it."""
    root: Any = typer.main.get_group(app)
    context: Any = None
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield (name,), command
        for verb, below in (inner or {}).items():
            if not below.hidden:
                yield (name, verb), below


def line(words: tuple[str, ...], command: Any) -> str:
    """A row of the table."""
    said = [f"`{' '.join(words)}`"]
    options = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            metavar = parameter.metavar or parameter.name.upper().replace("_", "-")
            said.append(f"`{metavar if parameter.required or metavar[0] == '[' else f'[{metavar}]'}`")
        elif parameter.rich_help_panel not in SHARED:
            names = [*parameter.opts, *parameter.secondary_opts]
            metavar = f" {parameter.metavar}" if parameter.metavar else ""
            options.append(f"`{', '.join(names)}{metavar}` {escaped(parameter.help or '')}".strip())
    text = escaped((command.help or "").strip().split("\n\n")[0])
    return f"| {' '.join(said)} | {text} | {'; '.join(options)} |"


def escaped(text: str) -> str:
    """A cell of a Markdown table, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def reference() -> str:
    """All of it."""
    tables: dict[str, list[str]] = {}
    for words, command in commands():
        entry = COMMANDS.get(words[0])
        panel = entry.panel if entry is not None else COMMANDS["status"].panel
        tables.setdefault(panel, []).append(line(words, command))
    parts = []
    for panel, lines in tables.items():
        parts.append(f"### {panel}\n\n| command | | options of its own |\n|---|---|---|\n" + "\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
