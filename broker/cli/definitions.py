"""`clusterbroker definitions`: all that was declared, as a file, in RabbitMQ's form (waits)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.parameters import OfVhost
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Export and import of definitions, also RabbitMQ's.")
FILE_BYTES_MAX = 64 << 20
IDLE = {"shovel": "shovel", "federation-upstream": "federation", "federation-upstream-set": "federation"}
"""Components of RabbitMQ's parameters that its plugins read."""


@operation(app, "export")
def definitions_export(
    reach: Target,
    file: Annotated[Path | None, typer.Argument(help="Target; none or -: standard output.")] = None,
    vhost: OfVhost = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> str | None:
    """Write vhosts, users, permissions, policies, queues, exchanges and bindings to a file that only you may read.

    With --vhost what is in this one, without users, to be imported under any name. Passwords are in it as hashes.
    """
    path = "/api/definitions" if vhost is None else "/api/definitions/{}"
    document = reach.api.get(path, *(() if vhost is None else (vhost,)))
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if file is None or str(file) == "-":
        sys.stdout.write(text)
        return None
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with os.fdopen(os.open(file, flags, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Failed(f"{file} is there already: say --force to write over it", USAGE) from None
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}", FAILED) from None
    counts = ", ".join(
        f"{len(part)} {section}" for section, part in document.items() if isinstance(part, list) and part
    )
    return f"{file}: {counts or 'nothing'}"


@operation(app, "import")
def definitions_import(
    reach: Target,
    file: Annotated[Path, typer.Argument(help="-: standard input.")],
    vhost: Annotated[str | None, typer.Option("--vhost", help="Import everything into this vhost.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list new and changed objects.")] = False,
) -> str:
    """Import a file, all or nothing."""
    try:
        raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1) if str(file) == "-" else _read(file)
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}", USAGE) from None
    if len(raw) > FILE_BYTES_MAX:
        raise Failed(f"{file}: more than {FILE_BYTES_MAX >> 20} MiB", USAGE)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Failed(f"{file} is not JSON: {error}", USAGE) from None
    if not isinstance(document, dict):
        raise Failed(f"{file} is no JSON object: definitions are what 'definitions export' writes", USAGE)
    for line in _idle(document):
        typer.echo(f"clusterbroker: {line}", err=True)
    path = "/api/definitions" if vhost is None else "/api/definitions/{}"
    names = () if vhost is None else (vhost,)
    if dry_run:
        return _told(reach.api.post(path, *names, body=document, query={"dry_run": "true"}))
    reach.api.post(path, *names, body=document)
    return "all definitions are there"


def _idle(document: dict[str, Any]) -> list[str]:
    """What is kept as a parameter and does nothing, for nobody here reads it: a line for each component."""
    found: dict[str, list[str]] = {}
    parameters = document.get("parameters")
    for entry in parameters if isinstance(parameters, list) else ():
        if isinstance(entry, dict) and entry.get("component") in IDLE:
            found.setdefault(entry["component"], []).append(str(entry.get("name")))
    return [
        f"{component} {', '.join(map(repr, names))}: kept, and does nothing: there is no {IDLE[component]} here"
        for component, names in found.items()
    ]


def _told(trial: dict[str, dict[str, Any]]) -> str:
    """What an import would do, in a line; below it the names of what would be new or changed, as many as are told."""
    wanted = [
        (f"{what} {section.replace('_', ' ')}", counts[what], counts["names"][what])
        for section, counts in trial.items()
        for what in ("new", "changed")
        if counts[what]
    ]
    line = ", ".join(f"{count} {kind}" for kind, count, _ in wanted)
    lists = [f"{kind}: {', '.join(names)}{', ...' if len(names) < count else ''}" for kind, count, names in wanted]
    return "\n".join((f"{line or 'nothing would change'}; nothing was done", *lists))


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)
