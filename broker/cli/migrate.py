"""`clusterbroker migrate`: definitions and messages of another broker move here, or go from here to it (waits).

1  definitions    of the other broker's management API, as `definitions import` reads them
2  queues         of the same API, or those of --queue; what belongs to a connection is passed over
3  messages       queue by queue (`broker.bridges.migration`)
4  a report       a line for each queue that had messages or failed; exit code 1 when one failed
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from clusterbroker.broker.bridges.migration import PATIENCE_S, Job, Migration, NotBegun, StateDirectory
from clusterbroker.broker.bridges.outgoing import outgoing
from clusterbroker.broker.bridges.places import Place, place
from clusterbroker.broker.cli.api import Api
from clusterbroker.broker.cli.commands import operation
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.parameters import duration
from clusterbroker.broker.cli.readable import visible
from clusterbroker.broker.cli.target import Address, Target
from clusterbroker.broker.cli.uris import HOW, uri
from clusterbroker.broker.management.foreign_definitions import GENERATED

app = typer.Typer()
STATE: Final = Path("clusterbroker-migration")
HERE: Final = "amqp://guest:guest@127.0.0.1:5672"
HELD_S: Final = 6.0
"""Counts of RabbitMQ are up to 5 s old: what a mover held then is told once more."""
LINE_S: Final = 10.0
"""Without a terminal: between two lines about what has moved."""
QUIET_S: Final = 60.0
"""... and about that nothing has."""
PASS_S: Final = 1.0
"""With --follow: between two looks at all queues."""


@operation(app, "migrate")
def migrate(
    reach: Target,
    source: Annotated[str | None, typer.Option("--from", help=f"AMQP URI of the broker to leave; {HOW}.")] = None,
    destination: Annotated[str | None, typer.Option("--to", help=f"AMQP URI of the broker to go to; {HOW}.")] = None,
    management: Annotated[
        str | None, typer.Option("--management", help=f"http://USER:PASSWORD@HOST:PORT of that broker; {HOW}.")
    ] = None,
    amqp: Annotated[str, typer.Option("--amqp", help=f"AMQP URI of this broker; {HOW}.")] = HERE,
    vhost: Annotated[list[str] | None, typer.Option("--vhost", help="Only this vhost; may be repeated. [all]")] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", help="Only this queue, or a pattern with * or ?; may be repeated.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Messages a second; 0: as fast as it goes.")] = 0.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until interrupted, while clients are switched.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out what this broker does not have.")
    ] = False,
    definitions: Annotated[bool, typer.Option("--definitions/--no-definitions", help="Take definitions along.")] = True,
    state: Annotated[Path, typer.Option("--state", help="Directory of what an interrupted run has to know.")] = STATE,
    patience: Annotated[float, duration("Dial an end that is lost for so long.", least=0)] = PATIENCE_S,
) -> str:
    """Move definitions and messages of RabbitMQ, or of another 0-9-1 broker, to this one, or back with --to.

    An interrupted run goes on when it is started again with the same --state. Into this broker nothing is lost or
    doubled; to another one messages of the last moments before an interruption may come twice.
    """
    far, near = _ends(source, destination, amqp)
    way = _Way(reach, None if management is None else _api(management), inwards=source is not None)
    try:
        said = way.definitions(definitions, vhost, skip_unsupported, dry_run)
        jobs = way.jobs(far if source is not None else near, vhost, queue)
        if dry_run:
            return "\n".join([*said, *_planned(jobs, way.counts), "nothing was done"])
        for line in said:
            _say(line)
        ends = (far, near) if source is not None else (near, far)
        return _run(_Run(way, ends, state, rate, patience, follow, vhost, queue), jobs)
    except NotBegun as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{state}: {error.strerror or error}") from None
    finally:
        if way.far is not None:
            way.far.close()


def _ends(source: str | None, destination: str | None, amqp: str) -> tuple[Place, Place]:
    if (source is None) is (destination is None):
        raise Failed("say --from, to come from a broker, or --to, to go to one", USAGE)
    try:
        far = uri(source, "--from") if source is not None else uri(destination or "", "--to")
        return place(far), place(uri(amqp, "--amqp"))
    except ValueError as error:
        raise Failed(str(error), USAGE) from None


def _api(url: str) -> Api:
    try:
        address = Address(uri(url, "--management"))
    except Failed as failed:
        raise Failed(failed.text.replace("--url", "--management"), USAGE) from None
    return Api.over_url(address.url, (address.user or "guest", address.password or "guest"), None, _say)


def _say(line: str) -> None:
    typer.echo(f"clusterbroker: {visible(line)}", err=True)


class _Way:
    """The two management APIs."""

    def __init__(self, reach: Target, far: Api | None, inwards: bool) -> None:
        self._reach, self.far, self._inwards = reach, far, inwards
        self.passed_over: list[str] = []

    @property
    def counts(self) -> bool:
        """Whether it is known how many messages the queues have."""
        return self._source is not None

    @property
    def _source(self) -> Api | None:
        return self.far if self._inwards else self._reach.api

    def definitions(self, wanted: bool, vhosts: list[str] | None, skip: bool, dry_run: bool) -> list[str]:
        """Takes them along; what there is to tell. Failed with all obstacles."""
        if not wanted or self.far is None:
            return []
        document = self._source.get("/api/definitions") if self._source is not None else {}
        if not self._inwards:
            out = outgoing(document, frozenset(vhosts or ()))
            if not dry_run:
                self.far.post("/api/definitions", body=out.document)
            return [f"warning: {line}" for line in out.warnings]
        from clusterbroker.broker.cli.definitions import imported

        document = _of_vhosts(document, vhosts)
        return imported(self._reach.api, document, skip=skip, dry_run=dry_run)

    def jobs(self, source: Place, vhosts: list[str] | None, patterns: list[str] | None) -> list[Job]:
        """The queues to move. Failed."""
        if self._source is None:
            if not patterns or any(any(sign in name for sign in "*?") for name in patterns):
                raise Failed("without --management say which queues: --queue NAME", USAGE)
            return [Job(vhost, name) for vhost in vhosts or [source.vhost] for name in patterns]
        found, self.passed_over = [], []
        for row in self._source.get("/api/queues"):
            name, vhost = row["name"], row["vhost"]
            if (vhosts and vhost not in vhosts) or (patterns and not _any(name, patterns)):
                continue
            kind = row.get("type") or (row.get("arguments") or {}).get("x-queue-type")
            if row.get("exclusive") or name.startswith(GENERATED):
                self.passed_over.append(f"queue '{name}' in vhost '{vhost}' is passed over: it belongs to a connection")
            else:
                found.append(Job(vhost, name, int(row.get("messages") or 0), kind == "stream"))
        return sorted(found, key=lambda job: (job.vhost, job.queue))

    def gone(self, jobs: Iterable[Job]) -> set[tuple[str, str]]:
        """Queues of failed jobs that the source lists no more: they went with their client, or were deleted."""
        failed = {(job.vhost, job.queue) for job in jobs if job.state == "failed"}
        if not failed or self._source is None:
            return set()
        with contextlib.suppress(Failed):
            return failed - {(row["vhost"], row["name"]) for row in self._source.get("/api/queues")}
        return set()

    def held(self, jobs: Iterable[Job]) -> dict[tuple[str, str], int]:
        """Messages that consumers of the source hold, by queue."""
        wanted = {(job.vhost, job.queue) for job in jobs}
        if self._source is None:
            return {}
        found: dict[tuple[str, str], int] = {}
        for again_s in (HELD_S, 0.0):
            try:
                rows = self._source.get("/api/queues")
            except Failed:
                return {}
            found = {
                key: int(row["messages_unacknowledged"])
                for row in rows
                if (key := (row["vhost"], row["name"])) in wanted and row.get("messages_unacknowledged")
            }
            if not found:
                break
            time.sleep(again_s)
        return found


def _any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _of_vhosts(document: dict[str, Any], vhosts: list[str] | None) -> dict[str, Any]:
    if not vhosts:
        return document
    return {
        section: [entry for entry in entries if entry.get("name" if section == "vhosts" else "vhost") in vhosts]
        if isinstance(entries, list) and section not in ("users", "global_parameters")
        else entries
        for section, entries in document.items()
    }


def _planned(jobs: list[Job], counted: bool) -> list[str]:
    if not counted:
        return [f"messages of {len(jobs)} queues would move; --management tells how many there are"]
    total = sum(job.expected for job in jobs)
    lines = [f"{job.expected:,} messages of queue '{job.queue}' in vhost '{job.vhost}'" for job in jobs if job.expected]
    return [f"{total:,} messages in {len(jobs)} queues would move, by the last statistics of the source", *lines]


class _Run:
    """What a run needs."""

    def __init__(
        self,
        way: _Way,
        ends: tuple[Place, Place],
        state: Path,
        rate: float,
        patience_s: float,
        follow: bool,
        vhosts: list[str] | None,
        patterns: list[str] | None,
    ) -> None:
        self.way, self.ends, self.follow, self.vhosts, self.patterns = way, ends, follow, vhosts, patterns
        self.state = StateDirectory(state, *ends)
        self.rate, self.patience_s = rate, patience_s

    def jobs(self) -> list[Job]:
        """Of the next pass: queues that have something."""
        found = self.way.jobs(self.ends[0], self.vhosts, self.patterns)
        return found if self.way.far is None else [job for job in found if job.expected]


class Lines:
    """What is told at intervals where no bar is drawn."""

    __slots__ = ("_at_s", "_moved", "_told_s")

    def __init__(self, now_s: float) -> None:
        self._at_s = self._told_s = now_s
        self._moved = 0

    def line(self, moved: int, now_s: float) -> str:
        """Each LINE_S; empty: there is nothing to tell."""
        came, took_s = moved - self._moved, now_s - self._at_s
        self._moved, self._at_s = moved, now_s
        if not came and now_s < self._told_s + QUIET_S:
            return ""
        self._told_s = now_s
        return f"{moved:,} messages moved, {came / took_s:,.0f}/s" if came else f"{moved:,} messages moved, none comes"


async def _tell_at_intervals(migration: Migration) -> None:
    lines = Lines(time.monotonic())
    while True:
        await asyncio.sleep(LINE_S)
        if line := lines.line(sum(job.moved for job in migration.jobs.values()), time.monotonic()):
            _say(line)


def _run(run: _Run, jobs: list[Job]) -> str:
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn()
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("moving", total=max(1, sum(job.expected for job in jobs)), figures="")

            def tell(migration: Migration) -> None:
                moved = sum(job.moved for job in migration.jobs.values())
                bar.update(task, completed=moved, figures=f"{moved:,} messages")

            migration, interrupted = asyncio.run(_passes(run, jobs, tell, lines=not console.is_terminal))
    finally:
        run.state.close()
    return _report(run.way, migration, interrupted)


async def _passes(
    run: _Run, jobs: list[Job], tell: Callable[[Migration], None], *, lines: bool
) -> tuple[Migration, bool]:
    migration = Migration(*run.ends, run.state, run.rate, run.patience_s, lambda: tell(migration), _say)
    if jobs:
        await migration.check(jobs[0].vhost)
    migration.add(jobs)
    work = asyncio.ensure_future(_all(run, migration))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    telling = asyncio.ensure_future(_tell_at_intervals(migration)) if lines else None
    try:
        await work
    except asyncio.CancelledError:
        return migration, True
    finally:
        if telling is not None:
            telling.cancel()
    return migration, False


async def _all(run: _Run, migration: Migration) -> None:
    while True:
        await migration.run()
        if not run.follow:
            return
        await asyncio.sleep(PASS_S)
        with contextlib.suppress(Failed):  # an end that is away comes back, or is interrupted
            migration.add(await asyncio.to_thread(run.jobs))


def _report(way: _Way, migration: Migration, interrupted: bool) -> str:
    jobs = list(migration.jobs.values())
    lines = [f"clusterbroker: {line}" for line in way.passed_over]
    held = {} if interrupted else way.held(jobs)
    gone = way.gone(jobs)
    for job in jobs:
        name = f"queue '{job.queue}' in vhost '{job.vhost}'"
        told = f"{job.moved:,} messages"
        if job.again:
            told += f", {job.again:,} of them recognised after an interruption"
        if job.doubtful:
            told += f", {job.doubtful:,} redelivered ones that were not known"
        if (job.vhost, job.queue) in gone:
            lines.append(f"{name}: {told}; the source has deleted it meanwhile")
        elif job.state == "failed":
            lines.append(f"{name}: {told}; failed: {job.why}")
        elif job.moved:
            more = (
                "; places of its readers are not moved: they begin at an offset of their choice" if job.stream else ""
            )
            lines.append(f"{name}: {told}{more}")
        if count := held.get((job.vhost, job.queue)):
            lines.append(f"{name}: {count:,} messages are held by consumers of the source: end them, and run again")
    failed = sum(job.state == "failed" for job in jobs) - len(gone)
    total = f"{sum(job.moved for job in jobs):,} messages of {sum(bool(job.moved) for job in jobs)} queues moved"
    typer.echo("\n".join(map(visible, lines))) if lines else None
    if failed:
        raise Failed(
            f"{total}; {failed} queue{'' if failed == 1 else 's'} failed: run it again when their reasons are gone",
            FAILED,
        )
    return f"{total}; interrupted: run it again to go on" if interrupted else total
