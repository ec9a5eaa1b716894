"""`clusterbroker verify`: a history check on a cluster of your own, while you do to it whatever you like (waits).

It declares a few durable queues of its own name (quorum queues where the broker has several kinds), publishes with
confirms, consumes by push and by get, reconnects to any of the given nodes, drains, judges, and deletes the queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from broker.trial.client import ClientLost, Target, target
from broker.trial.event_log import read_log
from broker.trial.judge import Verdict, judge, judge_owners
from broker.trial.load import Load, LoadPlan

app = typer.Typer(invoke_without_command=True)
SETTLE_TIMEOUT_S = 120.0


@app.callback()
def verify(
    url: Annotated[list[str], typer.Option(help="amqp://USER:PASSWORD@HOST:PORT/VHOST of a node; once for each.")],
    seconds: Annotated[float, typer.Option(min=1, help="How long messages are published.")] = 30.0,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 500.0,
    queues: Annotated[int, typer.Option(min=1, max=100, help="How many queues.")] = 3,
    log: Annotated[list[Path] | None, typer.Option(help="A node's log: owners are checked as well.")] = None,
    history: Annotated[Path | None, typer.Option(help="Where the history is written.")] = None,
    strict: Annotated[bool, typer.Option(help="Living consumers must keep what they hold through failovers.")] = True,
) -> None:
    """Check on your own cluster that no confirmed message is lost, doubled or out of order."""
    try:
        targets = tuple(map(target, url))
    except ValueError as error:
        typer.echo(f"clusterbroker: --url: {error}", err=True)
        raise typer.Exit(2) from None
    missing = [path for path in log or [] if not path.is_file()]
    if missing:
        typer.echo(f"clusterbroker: --log {missing[0]}: there is no such file", err=True)
        raise typer.Exit(2)
    plan = LoadPlan(
        targets, f"clusterbroker-verify-{os.getpid()}-{int(time.time())}", queues, queues, 2 * queues, rate
    )  # fmt: skip
    load = Load(plan, seed=os.getpid())
    try:
        trouble = asyncio.run(_watch(load, seconds, Console(highlight=False), targets))
    except ClientLost as error:
        trouble = str(error)
    except KeyboardInterrupt:
        trouble = "interrupted"
    if history is not None:
        history.write_bytes(load.history.dump())
    verdict = judge(load.history.events, drained=not trouble, living=strict)
    verdict.add(_owners(log or []))
    failure = "; ".join([trouble, *map(str, verdict.findings.values())]).strip("; ")
    if failure or not verdict.confirmed:
        typer.echo(f"verify failed: {failure or 'nothing was confirmed'} ({verdict.figures()})")
        raise typer.Exit(1)
    typer.echo(f"verify passed: {verdict.figures()}")


def _owners(logs: list[Path]) -> Verdict:
    lines = [line for path in logs for line in read_log(path)]
    return judge_owners(sorted(lines, key=lambda line: line.at_s))


async def _watch(load: Load, seconds: float, console: Console, targets: tuple[Target, ...]) -> str:
    """Runs the load; what went wrong, "" for nothing."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}")
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(f"{len(targets)} nodes", total=seconds, figures="")
            await load.start()
            load.resume()
            began_s = time.monotonic()
            while (gone_s := time.monotonic() - began_s) < seconds and not load.mistakes:
                bar.update(
                    task, completed=gone_s, figures=f"{load.confirmed:,} confirmed, {load.delivered:,} delivered"
                )
                await asyncio.sleep(0.1)
            bar.update(task, completed=seconds, description="settling")
            unsettled = await load.settle(SETTLE_TIMEOUT_S)
        return f"the trial itself failed: {load.mistakes[0]!r}" if load.mistakes else unsettled
    finally:
        with contextlib.suppress(ClientLost):
            await load.stop(delete=True)
