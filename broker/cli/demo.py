"""`clusterbroker demo`: three nodes on this machine, a load, a killed leader, and the result (waits).

Everything is in a temporary directory and on free ports of the loopback; nothing is left behind, unless the demo fails:
then its directory stays, with the nodes' logs and the clients' history, and the verdict names it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clusterbroker.broker.cli.parameters import duration
from clusterbroker.broker.trial.client import ClientLost
from clusterbroker.broker.trial.judge import Verdict, judge, judge_owners
from clusterbroker.broker.trial.load import Load, LoadPlan
from clusterbroker.broker.trial.nodes import LocalCluster, TrialError

app = typer.Typer(invoke_without_command=True)
REFRESH_S = 0.1
TAKE_OVER_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 60.0


@app.callback()
def demo(
    seconds: Annotated[float, duration("Calm load before and after each kill.", least=1)] = 3.0,
    kills: Annotated[int, typer.Option(min=1, help="Number of kills of the leader.")] = 1,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 1000.0,
) -> None:
    """Start three nodes, kill a queue's leader under load, count lost messages."""
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="clusterbroker-demo-"))
    stage = Stage(LocalCluster(directory))
    began_s = time.perf_counter()
    try:
        verdict = asyncio.run(_play(stage, console, seconds, kills, rate))
        failure = "; ".join(map(str, verdict.findings.values()))
    except (TrialError, ClientLost) as error:
        verdict, failure = Verdict(), str(error)
    except KeyboardInterrupt:
        verdict, failure = Verdict(), "interrupted"
    if not console.is_terminal:
        console.print()  # there the picture is drawn once, without an end of line
    took_s = time.perf_counter() - began_s
    if failure:
        if stage.load is not None:
            (directory / "history.jsonl").write_bytes(stage.load.history.dump())
        typer.echo(f"demo failed: {failure} (logs and history are kept in {directory})")
        raise typer.Exit(1)
    shutil.rmtree(directory, ignore_errors=True)
    gaps = ", ".join(f"{gap:.2f} s" for gap in stage.gaps_s)
    typer.echo(f"demo passed: {verdict.figures()}, gap after each kill: {gaps}, {took_s:.0f} s in all")


class Stage:
    """State of the display."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.load: Load | None = None
        self.owner: str | None = None
        self.what = "starting three nodes"
        self.said: list[str] = []
        self.gaps_s: list[float] = []
        self._at_s = time.monotonic()
        self._counts = (0, 0)
        self._rates = (0.0, 0.0)
        self._last: Group | None = None

    def say(self, text: str) -> None:
        """One more line of the story."""
        self.said.append(text)

    def end(self, what: str) -> None:
        """The picture of this moment is the last one: what is cleared away behind it is not shown."""
        self.what = what
        self._last = self.render()

    def render(self) -> Group:
        """The picture of this moment."""
        if self._last is not None:
            return self._last
        nodes = Table("node", "process", "AMQP", "leader of the queue", box=None, pad_edge=False, header_style="bold")
        for name in self.cluster.names:
            pid = self.cluster.pid(name)
            state = f"[green]{pid}[/green]" if pid else "[red]dead[/red]"
            nodes.add_row(name, state, str(self.cluster.target(name)), "leader" if name == self.owner else "")
        lines = [Text(line) for line in self.said]
        return Group(*lines, Text(f"... {self.what}", style="bold"), nodes, Text(self._traffic()))

    def _traffic(self) -> str:
        if self.load is None:
            return ""
        now_s, counts = time.monotonic(), (self.load.confirmed, self.load.delivered)
        if now_s - self._at_s >= 0.5:
            per_s = 1 / (now_s - self._at_s)
            self._rates = tuple((new - old) * per_s for new, old in zip(counts, self._counts, strict=True))  # type: ignore[assignment]
            self._at_s, self._counts = now_s, counts
        quiet_s = now_s - min(self.load.last_confirm_s, self.load.last_delivery_s)
        return (
            f"confirmed {counts[0]:>7,} ({self._rates[0]:>5,.0f}/s)  delivered {counts[1]:>7,} "
            f"({self._rates[1]:>5,.0f}/s)  silence {quiet_s:5.2f} s"
        )


async def _play(stage: Stage, console: Console, seconds: float, kills: int, rate: float) -> Verdict:
    with Live(get_renderable=stage.render, console=console, refresh_per_second=1 / REFRESH_S):
        try:
            verdict = await _acts(stage, seconds, kills, rate)
            stage.end("done")
            return verdict
        finally:
            if stage.load is not None:
                await stage.load.stop()
            await stage.cluster.end()


async def _acts(stage: Stage, seconds: float, kills: int, rate: float) -> Verdict:
    cluster = stage.cluster
    began_s = time.monotonic()
    await cluster.begin()
    stage.say(f"three nodes are one broker after {time.monotonic() - began_s:.1f} s")
    stage.what = "publishing and consuming through all nodes"
    targets = tuple(map(cluster.target, cluster.names))
    plan = LoadPlan(targets, "demo", queues=1, publishers=3, consumers=3, rate_per_s=rate)
    stage.load = load = Load(plan, seed=1)
    await load.start()
    load.resume()
    for _ in range(kills):
        await asyncio.sleep(seconds)
        stage.owner = owner = await cluster.owner(plan.queue(0))
        if owner is None:
            raise TrialError("no node's log says that it owns the queue")
        await _kill(stage, load, owner, plan.queue(0))
        await asyncio.sleep(seconds)
        stage.what = f"starting {owner} again"
        await cluster.start(owner)
        stage.say(f"{owner} is back")
    await asyncio.sleep(seconds)
    stage.what = "settling: all is consumed"
    unsettled = await load.settle(SETTLE_TIMEOUT_S)
    if unsettled or load.mistakes:
        raise TrialError(unsettled or f"the load itself failed: {load.mistakes[0]!r}")
    verdict = judge(load.history.events)
    verdict.add(judge_owners(cluster.events()))
    return verdict


async def _kill(stage: Stage, load: Load, owner: str, queue: str) -> None:
    """SIGKILL, and the time until publishers and consumers all over the cluster go on."""
    stage.what = f"{owner} leads the queue, and is killed"
    killed_s = time.monotonic()
    await stage.cluster.kill(owner)
    stage.owner = None
    heir_s = 0.0
    while True:
        heir = await stage.cluster.owner(queue)
        if heir != owner:  # what still came of the old one counts for nothing
            heir_s = heir_s or time.monotonic()
            if min(load.last_confirm_s, load.last_delivery_s) > heir_s:
                break
        if time.monotonic() - killed_s > TAKE_OVER_TIMEOUT_S:
            raise TrialError(f"nothing moved for {TAKE_OVER_TIMEOUT_S:g} s after {owner} was killed")
        await asyncio.sleep(0.005)
    stage.owner = heir
    stage.gaps_s.append(min(load.last_confirm_s, load.last_delivery_s) - killed_s)
    stage.say(f"{owner} was killed (SIGKILL), {heir} took over after {stage.gaps_s[-1]:.2f} s")
    stage.what = f"going on with {heir}"
