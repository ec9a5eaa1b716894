"""`python -m bench`: measures, writes `bench/results/`, prints the table, and its verdict as the last line.

Exit code 0 when every run of ours was clean, 1 when one was not: a target that is missed is a figure to report,
a lost message is a failure. 2 for a wrong command line.
"""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import harness, machine, rabbitmq_root, report, spark_scenarios
from bench.amqp10_workloads import AMQP10_WORKLOADS
from bench.cluster_workloads import CLUSTER_WORKLOADS
from bench.generator import CACHE, GeneratorError
from bench.management_workloads import MANAGEMENT_WORKLOADS
from bench.servers import SERVERS, RabbitMqNode
from bench.spark_workloads import SPARK_WORKLOADS
from bench.workloads import QUICK, WORKLOADS, Scale

RESULTS = Path(__file__).parent / "results"


def main(
    only: Annotated[list[str] | None, typer.Option(help="a workload's name; may be given more than once")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="runs per workload and broker")] = None,
    cluster: Annotated[bool, typer.Option(help="the cluster's rows: three nodes of each broker")] = False,
    management: Annotated[bool, typer.Option(help="the rows of the management API, its web page and imports")] = False,
    spark: Annotated[
        bool, typer.Option(help="Spark's rows, which have no peer: what they are held against runs beside")
    ] = False,
    amqp10: Annotated[bool, typer.Option(help="the rows of AMQP 1.0, on one node and on three")] = False,
    quick: Annotated[bool, typer.Option(help="small amounts: proves that every row works")] = False,
    seconds: Annotated[float | None, typer.Option(help="measured seconds of a load run")] = None,
    backlog: Annotated[int | None, typer.Option(help="messages of the backlog and restart rows")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="unconfirmed messages of a publisher, in all rows")] = None,
    prefetch: Annotated[int | None, typer.Option(min=1, help="prefetch, or link-credit, in all rows")] = None,
    peer: Annotated[str, typer.Option(help="rabbitmq or none")] = "rabbitmq",
    node: Annotated[str, typer.Option(help="clusterbroker, rabbitmq or relay")] = "clusterbroker",
    data_root: Annotated[Path | None, typer.Option(help="where the brokers keep their data")] = None,
    results: Annotated[Path, typer.Option(help="where the report is written")] = RESULTS,
) -> None:
    """Measures this broker against RabbitMQ on this machine."""
    console = Console()
    known = (*WORKLOADS, *CLUSTER_WORKLOADS, *MANAGEMENT_WORKLOADS, *SPARK_WORKLOADS, *AMQP10_WORKLOADS)
    names = [workload.name for workload in known]
    unknown = [name for name in only or [] if name not in names]
    if unknown or node not in SERVERS or peer not in (*SERVERS, "none"):
        console.print(f"unknown: {', '.join(unknown) or f'{node} / {peer}'}; workloads: {', '.join(names)}")
        raise typer.Exit(2)
    peer_kind = None if peer == "none" else SERVERS[peer]
    if peer_kind is RabbitMqNode and rabbitmq_root.installed() is None:
        console.print("RabbitMQ is not installed: ratios are left out")
        peer_kind = None
    if spark or (only and {*only} <= {workload.name for workload in SPARK_WORKLOADS}):
        peer_kind = None
    if data_root is None:
        CACHE.mkdir(exist_ok=True)
        data_root = CACHE
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=data_root))
    scale = QUICK if quick else Scale()
    scale = dataclasses.replace(
        scale,
        rounds=rounds or scale.rounds,
        seconds=seconds or scale.seconds,
        backlog=backlog or scale.backlog,
    )
    table = MANAGEMENT_WORKLOADS if management else CLUSTER_WORKLOADS if cluster else WORKLOADS
    table = SPARK_WORKLOADS if spark else AMQP10_WORKLOADS if amqp10 else table
    limits = {name: value for name, value in (("window", window), ("prefetch", prefetch)) if value}
    plan = harness.Plan(
        [
            dataclasses.replace(workload, load=dataclasses.replace(workload.load, **limits))
            for workload in (known if only else table)
            if not only or workload.name in only
        ],
        SERVERS[node], peer_kind, scale, directory,
    )  # fmt: skip
    try:
        ok, verdict = _carry_out(plan, console, results, quick)
    except GeneratorError as error:
        ok, verdict = False, f"bench failed: {error}"
    finally:
        spark_scenarios.stop()
        shutil.rmtree(directory, ignore_errors=True)
    console.print(verdict, soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(0 if ok else 1)


def _carry_out(plan: harness.Plan, console: Console, results: Path, quick: bool) -> tuple[bool, str]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("machine and load generator", total=plan.runs)
        described = machine.describe(plan.directory)
        described["commit"] = machine.commit()
        described["generator"] = harness.generator_limits(plan.directory)
        rows = harness.run(plan, lambda what, done: bar.update(task, description=what, advance=done))
    ours, peer = plan.ours.name, plan.peer.name if plan.peer else None
    now = datetime.datetime.now().astimezone()
    settings = {
        "date": now.date().isoformat(),
        "rounds": plan.scale.rounds,
        "scale": "quick amounts, rough figures" if quick else "full amounts",
        "amounts": dataclasses.asdict(plan.scale),
        "versions": plan.versions,
    }
    measured = [workload.name for workload in plan.workloads]
    tables = {
        "": WORKLOADS,
        "-cluster": CLUSTER_WORKLOADS,
        "-management": MANAGEMENT_WORKLOADS,
        "-spark": SPARK_WORKLOADS,
        "-amqp10": AMQP10_WORKLOADS,
    }
    whole = [name for name, table in tables.items() if measured == [workload.name for workload in table]]
    only_some = whole[0] if whole else "-" + "-".join(measured)
    stem = f"{now.date().isoformat()}-{described['tag']}{only_some}{'-quick' if quick else ''}"
    paths = report.write(results, stem, rows, described, settings, ours, peer)
    console.print(report.machine_text(described, plan.versions), soft_wrap=True, highlight=False, markup=False)
    console.print(report.markdown(rows, ours, peer), soft_wrap=True, highlight=False, markup=False)
    console.print(f"written: {', '.join(str(path) for path in paths)}", soft_wrap=True, highlight=False)
    return report.verdict_text(rows)


if __name__ == "__main__":
    typer.run(main)
