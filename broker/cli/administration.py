"""What is asked of the running node of a data directory only: what it holds, its limits, drills (waits)."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli.exit_codes import Failed, end
from clusterbroker.broker.cli.operator_door import performed
from clusterbroker.broker.cli.target import DATA_DIR as DATA_DIR

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="CLUSTERBROKER_DATA_DIR", help="The node's data directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def perform(
    directory: Path,
    do: str,
    *,
    patience_s: float = 30.0,
    meanwhile: AbstractContextManager[None] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """As `performed`; leaves with one line when it is no."""
    try:
        return performed(directory, do, patience_s=patience_s, meanwhile=meanwhile, **arguments)
    except Failed as failed:
        end(failed)


alarm = typer.Typer(no_args_is_help=True, help="Drills: raise a resource alarm by hand.")


@alarm.command("set")
def alarm_set(
    name: str,
    raised: Annotated[str, typer.Argument(help="on or off")] = "on",
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Raise the memory or disk alarm (on), or end the drill (off)."""
    if raised not in ("on", "off"):
        raise typer.BadParameter("say on or off")
    perform(data_dir, "alarm.set", name=name, raised=raised == "on")


@alarm.command("clear")
def alarm_clear(name: str, data_dir: DataDir = DATA_DIR) -> None:
    """End the drill."""
    perform(data_dir, "alarm.set", name=name, raised=False)


def limit(
    name: Annotated[str, typer.Argument(help="consumers-per-channel, queues or exchanges")],
    value: Annotated[int, typer.Argument(help="0: as configured.", min=0)],
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Change a limit of the running node until its end."""
    perform(data_dir, "limit.set", name=name, value=value)


copying = typer.Typer(no_args_is_help=True, help="Rate of synchronisation of replicas on this node.")


@copying.command("show")
def copying_show(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """Replicas in synchronisation on this node, bytes received, and the bound."""
    _told(perform(data_dir, "copying"), as_json)


@copying.command("rate")
def copying_rate(
    rate: Annotated[str, typer.Argument(help="Bytes per second: 50MiB; 0: unlimited; default: as configured.")],
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Limit synchronisation that no publisher waits for, until the node ends (copy_rate_bytes)."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    wanted: int | None = None
    if rate != "default":
        try:
            wanted = int(TypeAdapter(ByteSize).validate_python(rate))
        except ValidationError:
            raise typer.BadParameter(f"'{rate}' is no number of bytes: 52428800, 50MiB, or default") from None
    perform(data_dir, "copying.set", rate_bytes=wanted)


@copying.command("pause")
def copying_pause(data_dir: DataDir = DATA_DIR) -> None:
    """Pause synchronisation, except for queues that need this node for confirms. An alert stays meanwhile."""
    perform(data_dir, "copying.set", paused=True)


@copying.command("resume")
def copying_resume(data_dir: DataDir = DATA_DIR) -> None:
    """Resume synchronisation."""
    perform(data_dir, "copying.set", paused=False)


def reload_certificates(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """Reload the TLS certificates of the running node, as after a change of their files."""
    shown = perform(data_dir, "certificates.reload")["certificates"]
    if as_json:
        typer.echo(json.dumps(shown))
    for one in () if as_json else shown:
        typer.echo(f"{one['file']} serial {one['serial']} until {one['expires']}")


def status(
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """State of the running node: listeners, connections, queues, messages, alarms, memory."""
    _told(perform(data_dir, "status"), as_json)


def _told(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name:24} {', '.join(map(str, value)) if isinstance(value, list) else value}")
