"""`clusterbroker definitions`: all that was declared, as a file, in RabbitMQ's form (waits)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.parameters import OfVhost
from clusterbroker.broker.cli.readable import visible
from clusterbroker.broker.cli.target import Target

if TYPE_CHECKING:
    from clusterbroker.broker.cli.api import Api

app = typer.Typer(no_args_is_help=True, help="Export and import of definitions, also RabbitMQ's.")
FILE_BYTES_MAX = 64 << 20
NOTES = ("warnings", "unsupported", "obstacles")
"""What a trial tells beside its sections."""


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
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out what this broker does not have.")
    ] = False,
) -> str:
    """Import a file of this broker or of RabbitMQ, all or nothing.

    All obstacles are told at once. What has no meaning here, like mirroring, is translated or left out with a warning.
    """
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
    told = imported(reach.api, document, vhost, skip=skip_unsupported, dry_run=dry_run)
    return "\n".join(told)


def imported(api: Api, document: dict[str, Any], vhost: str | None = None, *, skip: bool, dry_run: bool) -> list[str]:
    """Imports a document, or only tries it; lines for the user. Failed with all obstacles."""
    path = "/api/definitions" if vhost is None else "/api/definitions/{}"
    names = () if vhost is None else (vhost,)
    query = {"skip_unsupported": "true"} if skip else {}
    trial = api.post(path, *names, body=document, query={"dry_run": "true", **query})
    for line in trial["warnings"]:
        _say(f"warning: {line}")
    if trial["unsupported"] or trial["obstacles"]:
        raise Failed(_obstacles(trial["unsupported"], trial["obstacles"]))
    if dry_run:
        return _told(trial).split("\n")
    api.post(path, *names, body=document, query=query)
    return ["all definitions are there"]


def _say(line: str) -> None:
    typer.echo(f"clusterbroker: {visible(line)}", err=True)


def _obstacles(unsupported: list[str], others: list[str]) -> str:
    """Tells all of them, a line for each; the last line is the answer."""
    lines = [f"unsupported: {line}" for line in unsupported] + others
    if len(lines) == 1 and not unsupported:
        return lines[0]
    for line in lines:
        _say(line)
    way = "mend the file"
    if unsupported:
        way = "mend the file, or leave out what is unsupported with --skip-unsupported"
    return f"{len(lines)} obstacle{'' if len(lines) == 1 else 's'}; nothing was done: {way}"


def _told(trial: dict[str, Any]) -> str:
    """What an import would do, in a line; below it the names of what would be new or changed, as many as are told."""
    wanted = [
        (f"{what} {section.replace('_', ' ')}", counts[what], counts["names"][what])
        for section, counts in trial.items()
        if section not in NOTES
        for what in ("new", "changed")
        if counts[what]
    ]
    line = ", ".join(f"{count} {kind}" for kind, count, _ in wanted)
    lists = [f"{kind}: {', '.join(names)}{', ...' if len(names) < count else ''}" for kind, count, names in wanted]
    return "\n".join((f"{line or 'nothing would change'}; nothing was done", *lists))


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)
