"""Members and leaders of queues, from the command line (waits). The running node of the data directory answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

import typer

from clusterbroker.broker.cli import tables
from clusterbroker.broker.cli.administration import DATA_DIR, AsJson, DataDir, perform
from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.target import Target

PATIENCE_S = 300.0
"""Limit for commands that wait until queues have moved."""
LEAVE_TIMEOUT_S = 300.0
PROGRESS_S = 1.0
HEADINGS = {"owner": "leader", "owns": "leads", "holds": "replicas"}
"""Fields of the node, as tables name them."""

draining = typer.Typer(add_completion=False)


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table for people, JSON for programs."""
    if as_json:
        typer.echo(json.dumps(rows))
    elif rows:
        columns = (tables.Column(name, heading=HEADINGS.get(name, "")) for name in rows[0])
        table = tables.Table(tuple(columns))
        tables.printed(tables.lines(table, rows, tables.Wish(), tables.WIDE), head=True)


def members(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All members: alive, voter, metadata leader, number of queues that each leads and replicates."""
    show(perform(data_dir, "members")["members"], as_json)


@operation(draining, "drain")
def drain(
    reach: Target,
    undo: Annotated[bool, typer.Option("--undo", help="Accept queues again.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="First wait this long for queues that need this node for confirms.")
    ] = 0.0,
) -> None:
    """Transfer this node's queues to others, then ask its clients to move (320). The node stays a member."""
    end_s = time.monotonic() + wait
    while wait and reach.here and reach.perform("copies")["critical"] and time.monotonic() < end_s:
        time.sleep(PROGRESS_S)
    if reach.here:
        done = reach.perform("drain", PATIENCE_S, undo=undo)
    else:
        done = reach.api.post("/api/nodes/{}/drain", reach.api.get("/api/overview")["node"], body={"undo": undo})
    typer.echo("takes queues again" if undo else f"handed over {done['moved']} queues, {done['left']} left")
    if done.get("left"):
        raise typer.Exit(1)


def leave(
    name: Annotated[str | None, typer.Argument(help="A dead member to remove; none: this node.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for the others to take this node's replicas.")
    ] = LEAVE_TIMEOUT_S,
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
                typer.echo(f"{now[0]} queues to hand over, {now[1]} wait for a copy elsewhere", err=True)
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
