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

from clusterbroker.broker.cli.parameters import duration
from clusterbroker.broker.trial.client import ClientLost, target
from clusterbroker.broker.trial.event_log import read_log
from clusterbroker.broker.trial.judge import Verdict, judge, judge_owners
from clusterbroker.broker.trial.load import Load, LoadPlan

app = typer.Typer(invoke_without_command=True)
SETTLE_TIMEOUT_S = 120.0
SEGMENT_S = 60.0
"""so long a history is kept in memory before it is judged"""


@app.callback()
def verify(
    url: Annotated[list[str], typer.Option(help="amqp://USER:PASSWORD@HOST:PORT/VHOST of a node; once for each.")],
    seconds: Annotated[float, duration("Publish this long.", least=1)] = 30.0,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 500.0,
    queues: Annotated[int, typer.Option(min=1, max=100, help="Number of queues.")] = 3,
    log: Annotated[list[Path] | None, typer.Option(help="A node's log: leadership is checked as well.")] = None,
    history: Annotated[Path | None, typer.Option(help="File for the history of a failure.")] = None,
    strict: Annotated[bool, typer.Option(help="Living consumers must keep their messages through failovers.")] = True,
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
    verdict, trouble = Verdict(), ""
    try:
        trouble = asyncio.run(_watch(load, seconds, verdict, strict, Console(highlight=False)))
    except ClientLost as error:
        trouble = str(error)
    except KeyboardInterrupt:
        trouble = "interrupted"
    verdict.add(_owners(log or []))
    failure = "; ".join([trouble, *map(str, verdict.findings.values())]).strip("; ")
    if failure or not verdict.confirmed:
        if history is not None:
            history.write_bytes(load.history.dump())
        typer.echo(f"verify failed: {failure or 'nothing was confirmed'} ({verdict.figures()})")
        raise typer.Exit(1)
    typer.echo(f"verify passed: {verdict.figures()}")


def _owners(logs: list[Path]) -> Verdict:
    lines = [line for path in logs for line in read_log(path)]
    return judge_owners(sorted(lines, key=lambda line: line.at_s))


async def _watch(load: Load, seconds: float, verdict: Verdict, strict: bool, console: Console) -> str:
    """Runs the load, drained and judged once a minute, into `verdict`; what went wrong, "" for nothing."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}")
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("connecting", total=seconds, figures="")
            await load.start()
            left_s, trouble, settled_below = seconds, "", dict[int, int]()
            while left_s > 0 and not trouble and verdict.passed:
                load.resume()
                until_s = time.monotonic() + min(left_s, SEGMENT_S)
                left_s -= min(left_s, SEGMENT_S)
                while (now_s := time.monotonic()) < until_s and not load.mistakes:
                    figures = f"{load.confirmed:,} confirmed, {load.delivered:,} delivered"
                    done_s = seconds - left_s - (until_s - now_s)
                    bar.update(task, description="publishing", completed=done_s, figures=figures)
                    await asyncio.sleep(0.1)
                bar.update(task, description="draining", completed=seconds - left_s)
                trouble = await load.settle(SETTLE_TIMEOUT_S)
                if load.mistakes:
                    trouble = f"the trial itself failed: {load.mistakes[0]!r}"
                verdict.add(judge(load.history.events, settled_below, drained=True, living=strict))
                if verdict.passed and not trouble:
                    _, settled_below = load.new_history()
        return trouble
    finally:
        with contextlib.suppress(ClientLost):
            await load.stop(delete=True)
