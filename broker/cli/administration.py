"""What is asked of the running node of a data directory only: members, facts, limits, test alarms (waits)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any, Final

import typer

from clusterbroker.broker.cli import tables
from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.exit_codes import Failed, end
from clusterbroker.broker.cli.operator_door import performed
from clusterbroker.broker.cli.parameters import duration
from clusterbroker.broker.cli.tables import ABSENT, Column, counted, number, size, span, text
from clusterbroker.broker.cli.target import DATA_DIR as DATA_DIR
from clusterbroker.broker.cli.target import Target

PATIENCE_S: Final = 300.0
"""Limit for commands that wait until queues have moved."""
LEAVE_TIMEOUT_S: Final = 300.0
PROGRESS_S: Final = 1.0

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="CLUSTERBROKER_DATA_DIR", readable=False, help="The node's data directory."),
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


alarm = typer.Typer(no_args_is_help=True, help="Raise or clear a resource alarm by hand, for tests.")


@alarm.command("set")
def alarm_set(
    name: str,
    raised: Annotated[str, typer.Argument(help="on or off")] = "on",
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Raise the memory or disk alarm by hand (on), or clear it (off)."""
    if raised not in ("on", "off"):
        raise typer.BadParameter("say on or off")
    perform(data_dir, "alarm.set", name=name, raised=raised == "on")


@alarm.command("clear")
def alarm_clear(name: str, data_dir: DataDir = DATA_DIR) -> None:
    """Clear an alarm that was raised by hand."""
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
    show(perform(data_dir, "copying"), as_json)


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
    elif not shown:
        typer.echo("no listener has a certificate")
    for one in () if as_json else shown:
        typer.echo(f"{one['file']} serial {one['serial']} until {one['expires']}")


# -- facts ------------------------------------------------------------------------------------------------------


def _alerts(value: Any) -> str:
    return "; ".join(f"{one['kind']} {one['subject']}: {text(one['text'])}" for one in value) or ABSENT


def _scrub(value: Any) -> str:
    found = counted(value["found"], "damaged place") if value["found"] else "no damage"
    return f"{value['percent']:.0f} % of a pass, {value['passes']:,} before, {size(value['bytes'])} read, {found}"


def _bound(value: Any) -> str:
    return f"{size(value)}/s" if value else "unlimited"


FACTS: Final = {
    column.name: column
    for column in (
        Column("messages_ready", show=number),
        Column("messages_unacknowledged", show=number),
        Column("queues", show=number),
        Column("messages", show=number),
        Column("consumers", show=number),
        Column("owner", heading="leader"),
        Column("owns", show=number, heading="leads"),
        Column("holds", show=number, heading="replicas"),
        Column("queues_owned", show=number, heading="leads"),
        Column("replicas_held", show=number, heading="replicas"),
        Column("clock_ahead_ms", show=span, heading="clock_ahead"),
        Column("alerts", show=_alerts),
        Column("scrub", show=_scrub),
        Column("copies_syncing", show=number, heading="replicas_in_synchronisation"),
        Column("copying_bytes", show=size, heading="received"),
        Column("copying_rate_bytes", show=_bound, heading="synchronisation_rate"),
        Column("copying_paused", heading="synchronisation_paused"),
        Column("resident_bytes", show=size, heading="memory"),
        Column("memory_limit_bytes", show=size, heading="memory_limit"),
        Column("wiring_index", show=number, heading="metadata_index"),
        Column("wiring_digest", heading="metadata_digest"),
        Column("term", heading="metadata_term"),
    )
}
"""Fields of a node's answers that are shown otherwise than as they are."""


def show(
    told: Sequence[dict[str, Any]] | dict[str, Any], as_json: bool, empty: str = "nothing", **headings: str
) -> None:
    """A table of rows, or a line for each fact, for people; JSON for programs. `headings`: by field. `empty`: of no
    rows."""
    rows = [told] if isinstance(told, dict) else told
    if as_json:
        typer.echo(json.dumps(told))
    elif rows:
        columns = (FACTS.get(name) or Column(name, heading=headings.get(name, "")) for name in rows[0])
        table, wish = tables.Table(tuple(columns)), tables.Wish()
        if isinstance(told, dict):
            tables.printed(tables.lines_of(table, told, wish), head=False)
        else:
            tables.printed(tables.lines(table, rows, wish, tables.WIDE), head=True)
    else:
        typer.echo(empty)


def status(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """State of the running node: listeners, connections, queues, messages, alarms, memory."""
    show(perform(data_dir, "status"), as_json, leader="metadata_leader")


# -- members ----------------------------------------------------------------------------------------------------

draining = typer.Typer(add_completion=False)


def members(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All members: alive, voter, metadata leader, number of queues that each leads and replicates."""
    show(perform(data_dir, "members")["members"], as_json)


@operation(draining, "drain")
def drain(
    reach: Target,
    undo: Annotated[bool, typer.Option("--undo", help="Accept queues again.")] = False,
    wait: Annotated[float, duration("First wait this long for queues that need this node for confirms.")] = 0.0,
) -> None:
    """Transfer this node's queues to others, then ask its clients to move (320). The node stays a member."""
    end_s = time.monotonic() + wait
    while wait and reach.is_critical and time.monotonic() < end_s:
        time.sleep(PROGRESS_S)
    done = reach.change("drain", PATIENCE_S, undo=undo)
    typer.echo(
        "accepts queues again"
        if undo
        else f"transferred the leadership of {counted(done['moved'], 'queue')}, {done['left']:,} left"
    )
    if done.get("left"):
        raise typer.Exit(1)


def leave(
    name: Annotated[str | None, typer.Argument(help="A dead member to remove; none: this node.")] = None,
    timeout: Annotated[float, duration("Wait this long until others have this node's replicas.")] = LEAVE_TIMEOUT_S,
    force: Annotated[bool, typer.Option("--force", help="Then leave even if queues have too few replicas.")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Even with the only replica of a queue.")] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Remove a member: this node (its queues and replicas go to others first), or a dead one by its name."""
    asked = {"member": name, "timeout_s": timeout, "force": force, "accept_loss": accept_loss}
    meanwhile = _progress(data_dir) if name is None else None
    perform(data_dir, "leave", patience_s=timeout + PATIENCE_S, meanwhile=meanwhile, **asked)
    typer.echo(f"{name or 'this node'} is a member no more")


@contextmanager
def _progress(data_dir: Path) -> Iterator[None]:
    """A line on stderr each time that less is left to move, while the command waits."""
    from clusterbroker.broker.server.control.client import ask

    over = Event()

    def look() -> None:
        told = 0, 0
        while not over.is_set():
            try:
                answer = ask(data_dir, "leave.progress") or {}
            except (OSError, ValueError):  # it has left
                return
            if answer.get("leaving") and (now := (answer["owns"], answer["counting"])) != told:
                told = now
                typer.echo(f"{counted(now[0], 'queue')} to transfer, {now[1]:,} wait for a replica elsewhere", err=True)
            over.wait(PROGRESS_S)

    watcher = Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def join(
    to: Annotated[str, typer.Argument(help="HOST:PORT, the cluster address of any member.")],
    name: Annotated[str, typer.Option(help="The new member's name.")],
    cluster: Annotated[str, typer.Option(help="HOST:PORT of the new member for the others.")],
    secret_file: Annotated[Path | None, typer.Option(help="The join secret. [~/.config/clusterbroker/secret]")] = None,
    witness: Annotated[bool, typer.Option("--witness", help="Vote only, without messages.")] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Prepare an empty data directory for a new member; `clusterbroker start` then starts the node."""
    from clusterbroker.broker.server.member.joining import Unjoined
    from clusterbroker.broker.server.member.joining import join as ask
    from clusterbroker.journal.errors import JournalError

    try:
        known = ask(data_dir, name, cluster, to, secret_file, witness)
    except (Unjoined, JournalError, ValueError, OSError) as error:
        typer.echo(f"clusterbroker: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{name} may join {', '.join(known)}: start it with --name {name} --cluster {cluster}")
