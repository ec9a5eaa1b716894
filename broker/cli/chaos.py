"""`clusterbroker chaos`: nodes on this machine, tormented round by round, and a history that is checked (waits).

Each round is random by seed and number: kills, freezes, restarts, journals that are lost or damaged, cut, slow and
reset wires (relays of ours between the nodes, so that no privilege is needed); where a small file system can be
mounted, full disks; and where there is a compiler, wrong clocks.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from clusterbroker.broker.cli.tables import counted
from clusterbroker.broker.trial.client import ClientLost
from clusterbroker.broker.trial.clocks import Clocks, build
from clusterbroker.broker.trial.faults import Nemesis, mount_small_disk, unmount
from clusterbroker.broker.trial.load import PUBLISHER_KINDS, QUEUE_KINDS, Load, LoadPlan
from clusterbroker.broker.trial.nodes import LocalCluster, TrialError
from clusterbroker.broker.trial.recoverable_load import RecoverableLoad
from clusterbroker.broker.trial.rounds import Round, Trial, run_rounds

app = typer.Typer(invoke_without_command=True)
SMALL_DISK_MIB = 192


@app.callback()
def chaos(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Repeats the plan of a run; none: a new plan.")] = None,
    nodes: Annotated[int, typer.Option(help="3 or 5.")] = 3,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 600.0,
    links: Annotated[
        bool,
        typer.Option(help="Clients of AMQP 1.0 with recoverable links beside the others; they are killed as well."),
    ] = True,
) -> None:
    """Inject faults into a cluster on this machine, and check the clients' results."""
    if nodes not in (3, 5):
        typer.echo("clusterbroker: --nodes: a cluster of 3 or of 5 is put on trial", err=True)
        raise typer.Exit(2)
    chosen = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="clusterbroker-chaos-"))
    began_s = time.perf_counter()
    console.print(f"seed {chosen}, {nodes} nodes, {counted(rounds, 'round')}")
    failure, result = "", Trial()
    try:
        result = asyncio.run(_torment(console, directory, rounds, chosen, nodes, rate, links))
        failure = "; ".join([result.trouble, *map(str, result.verdict.findings.values())]).strip("; ")
    except (TrialError, ClientLost) as error:
        failure = str(error)
    except KeyboardInterrupt:
        failure = "interrupted"
    told = f"{counted(len(result.rounds), 'round')}, {result.verdict.figures()}, {time.perf_counter() - began_s:.0f} s"
    if failure or not result.passed:
        typer.echo(f"chaos failed: {failure} ({told}; seed {chosen}; logs and histories are kept in {directory})")
        raise typer.Exit(1)
    shutil.rmtree(directory, ignore_errors=True)
    typer.echo(f"chaos passed: {told}, seed {chosen}")


async def _torment(
    console: Console, directory: Path, rounds: int, seed: int, count: int, rate: float, linked: bool
) -> Trial:
    cluster = LocalCluster(directory, count, wired=True)
    small = cluster.names[-1]
    refused = mount_small_disk(cluster.nodes[small].directory / "data", SMALL_DISK_MIB)
    if refused:
        console.print(f"no full disks in this trial: {refused}")
    library = build(directory)
    if isinstance(library, str):
        console.print(f"no wrong clocks in this trial: {library}")
    else:
        cluster.clocks = {name: Clocks(directory, library, name) for name in cluster.names}
    load: Load | None = None
    links: RecoverableLoad | None = None
    try:
        await cluster.begin()
        plan = LoadPlan(
            tuple(map(cluster.target, cluster.names)),
            f"chaos-{seed}",
            queues=len(QUEUE_KINDS),
            publishers=2 * len(PUBLISHER_KINDS),
            consumers=3 * len(QUEUE_KINDS),
            rate_per_s=rate,
            kinds=PUBLISHER_KINDS,
            committing=5,
            extras=QUEUE_KINDS,
        )
        load = Load(plan, seed)
        await load.start()
        if linked:
            links = RecoverableLoad(directory, plan.targets, plan.prefix)
            await links.start()
        nemesis = Nemesis(cluster, plan.queue(0), () if refused else (small,))
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("rounds", total=rounds)

            def tell(done: Round) -> None:
                bar.advance(task)
                said = done.trouble or done.verdict.figures()
                console.print(
                    f"{done.number:4d}  {'ok    ' if done.passed else 'FAILED'}  {', '.join(done.done)}: {said}",
                    soft_wrap=True,
                )

            return await run_rounds(nemesis, load, seed, rounds, tell, evidence=directory, links=links)
    finally:
        if links is not None:
            await links.stop()
        if load is not None:
            await load.stop()
        await cluster.end()
        if not refused:
            unmount(cluster.nodes[small].directory / "data")
