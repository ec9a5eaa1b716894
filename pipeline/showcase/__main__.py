"""`python -m clusterbroker.pipeline.showcase`: all of it with one command; the verdict is the last line.

1. three nodes start, exchanges and queues are declared, consumers begin
2. files of readings appear, the Spark job publishes them and writes the archive
3. at a third of the rows the job is killed (its driver and Java, SIGKILL) and started again
4. at two thirds the node that owns the archive is killed (SIGKILL), and started again later
5. when all is through, the job compares both ends, and what the consumers have is held against it
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from clusterbroker.pipeline.showcase import consumers, plot, readings
from clusterbroker.pipeline.showcase.consumers import Consumers
from clusterbroker.pipeline.showcase.frames import ARCHIVE
from clusterbroker.pipeline.showcase.nodes import Nodes, ShowcaseFailed
from clusterbroker.pipeline.showcase.watch import Watch

ROWS_PER_FILE_MAX: Final = 2_500
FILES_MIN: Final = 40
"""The job takes eight at a time: of fewer there would be nothing left to do after the kills."""
ROWS_MIN: Final = 1_000
FEED_EVERY_S: Final = 0.25
QUIET_TIMEOUT_S: Final = 400.0
RESTARTS_MAX: Final = 5
AWAY_S: Final = 5.0
"""So long the killed node is gone."""
LAST_S: Final = 60.0
"""So long the end waits for what consumers have not been told yet."""


class Feeder(threading.Thread):
    """Files of readings, one after the other, whole or not at all."""

    def __init__(self, directory: Path, seed: int, rows: int) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._seed = seed
        self._rows = rows
        self.fed = 0

    def run(self) -> None:
        rows_per_file = min(ROWS_PER_FILE_MAX, self._rows // FILES_MIN)
        for number, text in enumerate(readings.files(self._seed, self._rows, rows_per_file)):
            fresh = self._directory.parent / "next"
            fresh.write_text(text)
            fresh.rename(self._directory / f"{number:05d}.json")
            self.fed += text.count("\n")
            time.sleep(FEED_EVERY_S)
        (self._directory.parent / "_DONE").touch()


class SparkJob:
    """The job as a process of its own, with all that it starts."""

    def __init__(self, directory: Path, endpoints: str, guarantee: str) -> None:
        self._words = [sys.executable, "-m", "clusterbroker.pipeline.showcase.job", "--directory", str(directory)]
        self._words += ["--endpoints", endpoints, "--guarantee", guarantee, "--master", "local[2,4]"]
        self.log = directory / "job.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        """After errors, such as a Python worker that did not start in time."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def kill(self) -> None:
        """Driver and Java at once. Its workers may go on for a moment: such zombies are what fencing is for."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        """Starts it again when it ended with an error, as whoever runs jobs does. Raises ShowcaseFailed in the end."""
        if self._process is not None and self._process.poll() not in (None, 0):
            if self.restarts < RESTARTS_MAX:
                self.restarts += 1
                self.start()
                return
            said = self.log.read_text(errors="replace").strip().splitlines()
            reason = next((line for line in reversed(said) if "Error" in line or "Exception" in line), "no reason")
            raise ShowcaseFailed(f"the Spark job failed: {reason[:300]} (its log: {self.log})")


class Showcase:
    """One run in a directory."""

    def __init__(self, given: argparse.Namespace, directory: Path, progress: Progress) -> None:
        self._given = given
        self._directory = directory
        self._bars = progress
        (directory / "input").mkdir(parents=True)
        self.kills: dict[str, float] = {}
        self.result: dict[str, Any] = {}
        self.restarts = 0

    def run(self) -> tuple[Consumers, Watch]:
        """Raises ShowcaseFailed."""
        given, directory = self._given, self._directory
        with Nodes(directory / "nodes") as nodes:
            asyncio.run(consumers.declare(nodes.all[0].endpoint))
            taking = Consumers(nodes.endpoints)
            feeder = Feeder(directory / "input", given.seed, given.rows)
            watch = Watch(nodes.endpoints, directory / "progress.jsonl", lambda: feeder.fed, lambda: len(taking.seen))
            job = SparkJob(directory, nodes.endpoints, given.guarantee)
            bars = {name: self._bars.add_task(title, total=given.rows) for name, title in {
                "fed": "lines in files", "archived": "in the archive stream", "consumed": "taken by a consumer",
                "filed": "in Parquet",
            }.items()}  # fmt: skip
            try:
                job.start()
                for thread in (taking, feeder, watch):
                    thread.start()
                if not given.no_kills:
                    self._until(lambda: watch.last.archived >= given.rows // 3, bars, watch, job)
                    self._kill("driver", watch, job.kill)
                    job.start()
                    self._until(lambda: watch.last.archived >= given.rows * 2 // 3, bars, watch, job)
                    owner = nodes.owner(ARCHIVE)
                    self._kill(f"owner of the archive ({owner.name})", watch, lambda: owner.end(signal.SIGKILL))
                    gone_s = time.monotonic()
                    self._until(lambda: time.monotonic() - gone_s > AWAY_S, bars, watch, job)
                    nodes.restart(owner)
                self._until((directory / "result.json").exists, bars, watch, job)
                self.result = json.loads((directory / "result.json").read_text())
                for name in ("archived", "consumed", "filed"):  # not every line is a reading
                    self._bars.update(bars[name], total=self.result["readings"])
                last_s = time.monotonic() + LAST_S
                self._until(lambda: taking.have(self.result) or time.monotonic() > last_s, bars, watch, job)
                self._show(bars, watch)
            finally:
                self.restarts = job.restarts
                job.kill()
                watch.stop()
                if taking.is_alive():
                    taking.stop()
            return taking, watch

    def _kill(self, name: str, watch: Watch, deed: Callable[[], None]) -> None:
        self.kills[name] = time.monotonic() - watch.began_s
        self._bars.console.print(f"{self.kills[name]:6.1f} s  kill -9: {name}")
        deed()

    def _show(self, bars: dict[str, TaskID], watch: Watch) -> None:
        for name, bar in bars.items():
            self._bars.update(bar, completed=getattr(watch.last, name))

    def _until(self, done: Callable[[], bool], bars: dict[str, TaskID], watch: Watch, job: SparkJob) -> None:
        moved_s, before = time.monotonic(), watch.last[1:]
        while not done():
            job.check()
            self._show(bars, watch)
            if watch.last[1:] != before:
                moved_s, before = time.monotonic(), watch.last[1:]
            elif time.monotonic() - moved_s > QUIET_TIMEOUT_S:
                raise ShowcaseFailed(f"nothing moved for {QUIET_TIMEOUT_S:.0f} s: see {self._directory}")
            time.sleep(0.1)


def table_of(result: dict[str, Any], taking: Consumers, watch: Watch, kills: dict[str, float], restarts: int) -> Table:
    """What became of the rows."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in ("what", "rows", "how"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    took_s = watch.last.at_s
    table.add_row("lines in files", f"{result['lines']:,}", f"in {took_s:.0f} s, Spark's starts included")
    table.add_row("readings among them", f"{result['readings']:,}", "valid, each id once")
    table.add_row("malformed", f"{result['malformed']:,}", f"{taking.malformed:,} taken from the dead-letter exchange")
    table.add_row("archived in Parquet", f"{result['archived']:,}", f"by date: {', '.join(result['dates'])}")
    table.add_row("in files, not in the archive", f"{result['missing']:,}", "exceptAll; must be 0")
    table.add_row("in the archive, not in files", f"{result['surplus']:,}", "exceptAll the other way; must be 0")
    table.add_row("alarms", f"{len(taking.alarms):,}", f"of {result['alarms']:,}")
    sums = "as in the files" if taking.totals == result["totals"] else f"not as in the files: {result['totals']}"
    table.add_row("totals by region", f"{len(taking.seen):,}", f"Wh of {len(taking.totals)} regions: {sums}")
    table.add_row("delivered again", f"{taking.again:,}", "after a kill, and known by their ids")
    table.add_row("windows", f"{len(taking.windows):,}", "of 15 minutes and a region, when complete")
    for name, at_s in kills.items():
        table.add_row("kill -9", "", f"{name}, after {at_s:.0f} s")
    if restarts:
        table.add_row("job ended with an error", f"{restarts}", "and was started again")
    return table


def verdict(result: dict[str, Any], taking: Consumers, guarantee: str) -> list[str]:
    """What is wrong; empty: nothing."""
    wrong = []
    if result["missing"]:
        wrong.append(f"{result['missing']:,} readings are missing in the archive")
    if result["surplus"] and guarantee == "exactly-once":
        wrong.append(f"{result['surplus']:,} rows too many are in the archive")
    if len(taking.alarms) != result["alarms"]:
        wrong.append(f"{len(taking.alarms):,} alarms came, {result['alarms']:,} were sent")
    if taking.totals != result["totals"]:
        wrong.append("the totals differ")
    twice = taking.malformed > result["malformed"] and guarantee == "exactly-once"
    if taking.malformed < result["malformed"] or twice:
        wrong.append(f"{taking.malformed:,} malformed lines came, {result['malformed']:,} were sent")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m clusterbroker.pipeline.showcase", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", type=int, default=200_000, help="lines of input (default: 200000)")
    parser.add_argument("--seed", type=int, default=1, help="of what is made up (default: 1)")
    parser.add_argument("--guarantee", default="exactly-once", choices=("exactly-once", "at-least-once"))
    parser.add_argument("--no-kills", action="store_true", help="nothing is killed")
    parser.add_argument("--plot", type=Path, help="where the picture goes, .svg or .png (else into the directory)")
    parser.add_argument("--directory", type=Path, help="where everything is kept (else it is removed in the end)")
    given = parser.parse_args()
    if given.rows < ROWS_MIN:
        parser.error(f"--rows must be at least {ROWS_MIN}")
    began_s = time.monotonic()
    console = Console(highlight=False)
    for name in ("aio_pika", "aiormq"):  # a node that is killed is no news here
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    directory = (given.directory or Path(tempfile.mkdtemp(prefix="clusterbroker-showcase-"))).absolute()
    columns = TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        showcase = Showcase(given, directory, progress)
        try:
            taking, watch = showcase.run()
        except ShowcaseFailed as error:
            progress.stop()
            print(f"showcase failed: {' '.join(str(error).split())} (all is kept in {directory})")
            return 1
    console.print(table_of(showcase.result, taking, watch, showcase.kills, showcase.restarts))
    picture = given.plot or directory / "rates.svg"
    kept = {"kills": showcase.kills, "samples": [sample._asdict() for sample in watch.samples]}
    (directory / "rates.json").write_text(json.dumps(kept))
    try:
        title = f"{given.rows:,} lines through Spark and the broker, {given.guarantee}"
        plot.draw(watch.samples, showcase.kills, title, picture)
        if given.plot or given.directory:
            console.print(f"picture: {picture}")
    except ImportError:
        console.print("no picture: pip install 'clusterbroker[showcase]' brings matplotlib")
    if wrong := verdict(showcase.result, taking, given.guarantee):
        print(f"showcase failed: {'; '.join(wrong)} (all is kept in {directory})")
        return 1
    if given.directory is None:
        shutil.rmtree(directory)
    result = showcase.result
    print(
        f"showcase passed: {result['readings']:,} readings, {result['missing']} missing, {result['surplus']} surplus "
        f"after {len(showcase.kills)} kills, {time.monotonic() - began_s:.0f} s in all"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
