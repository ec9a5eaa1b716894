"""`clusterbroker journal ls | inspect | check | export | import | compact | forget`: a journal from outside (waits).

Everything but `compact` and `forget` only reads, offline or beside a running node, whose log goes on meanwhile;
`import` asks for no directory, it publishes. What was stored may be hostile: it reaches the terminal through
`readable.visible` alone. Exit codes: 0 done, 1 the journal or the disk is not as it should be, 2 the command names
something that is not there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clusterbroker.broker.cli.exit_codes import NOT_ALLOWED, UNREACHABLE, USAGE, Failed, end
from clusterbroker.broker.cli.export import Export, ExportImpossible
from clusterbroker.broker.cli.operator_door import foreign
from clusterbroker.broker.cli.readable import body_text, plain, properties_of, visible
from clusterbroker.broker.cli.tables import (
    WIDE,
    Column,
    Document,
    Table,
    Wish,
    counted,
    lines,
    lines_of,
    moment,
    number,
    pairs,
    printed,
    quoted,
    size,
)
from clusterbroker.cluster.data_directory import RAFT, DataDirectory, NoJournal, NotThere
from clusterbroker.cluster.errors import ClusterError
from clusterbroker.journal.check import Broken, CheckReport, Costs
from clusterbroker.journal.check import check as check_journal
from clusterbroker.journal.compact import compact as compact_journal
from clusterbroker.journal.compact import forget as forget_queue
from clusterbroker.journal.errors import DamagedJournal, JournalError, LockedJournal
from clusterbroker.journal.inspect import JournalView, StoredMessage

BODY_SHOWN_MAX = 2000
"""Characters of a body in a table; --json has all of it."""
TABLE_ROWS_MAX = 500
NAMES_MAX = 5

app = typer.Typer(
    help="Read, check, export or compact the messages on a node's disk, also without the node.",
    no_args_is_help=True,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The node's data directory.", show_default=False)]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Its name, or its id: as `ls` prints it, or decimal.", show_default=False)
]
VhostName = Annotated[str, typer.Option("--vhost", help="The vhost of the queue.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@contextmanager
def _one_line() -> Iterator[None]:
    """Obstacles go to stderr in one line; the exit code names the kind."""
    try:
        yield
    except NoJournal as error:
        _fail(str(error), UNREACHABLE)
    except (NotThere, ExportImpossible) as error:
        _fail(str(error), USAGE)
    except LockedJournal as error:
        _fail(f"{error}: stop the node first (it compacts what is worth it by itself while it runs)", 1)
    except (JournalError, ClusterError) as error:
        _fail(str(error), 1)
    except PermissionError as error:
        _fail(foreign(Path(error.filename or ".")), NOT_ALLOWED)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _fail(f"{error.filename or 'the journal'}: {error.strerror or error}", 1)


def _fail(text: str, code: int) -> NoReturn:
    end(Failed(text, code))


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print(table: Table, rows: Sequence[Document]) -> None:
    printed(lines(table, rows, Wish(), WIDE), head=True)


QUEUES = Table(
    (
        Column("vhost"),
        Column("name"),
        Column("id"),
        Column("ready", show=number),
        Column("redelivered", show=number),
        Column("dead", show=number),
        Column("bytes", show=size),
        Column("oldest", "oldest_ms", moment),
        Column("newest", "newest_ms", moment),
    )
)


@dataclass(slots=True)
class _Line:
    """A queue in `ls`. `name` is None: unknown to the wiring; `deleted`: its deletion is known."""

    vhost: str | None
    name: str | None
    id: str
    ready: int = 0
    redelivered: int = 0
    dead: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _lines(place: DataDirectory, view: JournalView) -> list[_Line]:
    lines = {int(queue.queue_id): _Line(queue.vhost, queue.name, hex(queue.queue_id)) for queue in place.queues()}
    for found in view.queues():
        line = lines.setdefault(found.queue_id, _Line(None, None, hex(found.queue_id)))
        line.deleted = line.name is None and place.was_deleted(found.queue_id)
        line.ready, line.redelivered, line.bytes = found.ready - found.dead, found.redelivered, found.body_bytes
        line.dead = found.dead
        line.oldest_ms, line.newest_ms = found.oldest_ms, found.newest_ms
    return list(lines.values())


@app.command("ls")
def list_queues(directory: Directory, as_json: AsJson = False) -> None:
    """The queues of the journal: ready messages, and dead ones (held for their dead-letter targets)."""
    with _one_line():
        place = DataDirectory(directory)
        found = place.look(lambda view: _lines(place, view))
    if as_json:
        print(json.dumps([line.as_json() for line in found], indent=2))
        return
    if place.wiring_problem:
        print(f"names are not known: {visible(place.wiring_problem)}", file=sys.stderr)
    rows = [line.as_json() | {"name": _nameless(place, line) if line.name is None else line.name} for line in found]
    _print(QUEUES, rows)
    state = "its node runs: this is a moment that has passed" if place.running else "no node runs on it"
    print(f"{counted(len(found), 'queue')}, {counted(sum(line.ready for line in found), 'message')}; {state}")


def _nameless(place: DataDirectory, line: _Line) -> str:
    if place.wiring is None:
        return "?"
    return "(deleted)" if line.deleted else "(set aside)"


def _message_json(stored: StoredMessage, body: bool) -> dict[str, Any]:
    entry, message, file = stored
    properties, headers = properties_of(message)
    found: dict[str, Any] = {
        "seq": entry.seq,
        "exchange": plain(message.exchange),
        "routing_key": plain(message.routing_key),
        "properties": properties,
        "headers": headers,
        "bytes": message.body_length,
        "delivery_count": entry.delivery_count,
        "redelivered": entry.redelivered,
        "enqueued_ms": message.time_ms,
        **({"file": file} if file else {"segment": entry.segment, "offset": entry.offset}),
    }
    if body:
        found["body"], found["body_encoding"] = body_text(message.body)
    return found


@app.command("inspect")
def inspect_queue(
    directory: Directory,
    queue: QueueName,
    vhost: VhostName = "/",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Number of messages, oldest first; 0: all.")] = 20,
    body: Annotated[bool, typer.Option("--body", help="With bodies: as text, or hexadecimal.")] = False,
    as_json: AsJson = False,
) -> None:
    """The messages of one queue, oldest first: properties, headers, size, place in the journal."""
    with _one_line():
        place = DataDirectory(directory)
        queue_id = place.queue_id(vhost, queue)
        with closing(place.view()) as view:
            if queue_id not in view.queue_ids() and place.queue_by_id(queue_id) is None:
                raise NotThere(f"no queue has the id {queue}: {place.listing}")
            found = islice(view.messages(queue_id), limit or None)
            if as_json:
                _inspect_json(found, body)
            else:
                _inspect_table(found, body)
                if limit and view.count(queue_id, limit + 1) > limit:
                    print(f"only the first {limit} are shown: --limit 0 shows all")


def _inspect_json(messages: Iterator[StoredMessage], body: bool) -> None:
    between = "[\n"
    for stored in messages:
        print(between, json.dumps(_message_json(stored, body)), sep="", end="")
        between = ",\n"
    print("[]" if between == "[\n" else "\n]")


def _inspect_table(messages: Iterator[StoredMessage], body: bool) -> None:
    count = 0
    while rows := list(islice(messages, TABLE_ROWS_MAX)):
        count += len(rows)
        _print(MESSAGES_AND_BODIES if body else MESSAGES, [_inspect_row(stored, body) for stored in rows])
    print(counted(count, "message"))


MESSAGES = Table(
    (
        Column("seq", show=number),
        Column("exchange", show=quoted),
        Column("routing_key"),
        Column("bytes", show=number),
        Column("deliveries", "delivery_count", number),
        Column("redelivered"),
        Column("segment:offset", "place"),
        Column("properties", show=pairs),
    )
)
MESSAGES_AND_BODIES = Table((*MESSAGES.columns, Column("body")))


def _inspect_row(stored: StoredMessage, body: bool) -> Document:
    entry, message, file = stored
    row = _message_json(stored, False)
    row["place"] = file or f"{entry.segment}:{entry.offset}"
    if row["headers"] is not None:
        row["properties"]["headers"] = row["headers"]
    if body:
        shown, _ = body_text(message.body)
        rest = len(shown) - BODY_SHOWN_MAX
        row["body"] = shown[:BODY_SHOWN_MAX] + (f" ... and {rest:,} more characters" if rest > 0 else "")
    return row


class _Unknown(NamedTuple):
    """Queues that the journal holds, and the wiring does not."""

    deleted: int
    """The node forgets them when it starts."""
    set_aside: int
    """Nobody knows that they were deleted: they are kept."""


@app.command("check")
def check(directory: Directory, as_json: AsJson = False) -> None:
    """Check every byte of the journal against its checksum; exit code 1 names the damaged places."""
    with _one_line():
        place = DataDirectory(directory)
        with _progress() as progress:
            task = progress.add_task("segments", total=None)
            report = check_journal(
                place.journal,
                lambda done, of: progress.update(task, completed=done, total=of),
                lambda queue_id: place.queue_by_id(queue_id) is not None,
            )
        unknown = _unknown_queues(place, report)
    broken = [_broken_json(place, one) for one in report.broken]
    if place.wiring_problem and place.wiring_expected:
        wiring = Broken(place.wiring_file, None, place.wiring_problem)
        broken.append(_broken_json(place, wiring))
    if as_json:
        print(json.dumps(_report_json(place, report, broken, unknown), indent=2))
    else:
        _print_report(place, report, unknown)
        for one in broken:
            print(f"broken: {visible(_sentence(one))}")
        print(_verdict(place, report, broken))
    if broken:
        raise typer.Exit(1)


def _unknown_queues(place: DataDirectory, report: CheckReport) -> _Unknown:
    if place.wiring is None or report.broken:
        return _Unknown(0, 0)
    found = place.look(lambda view: [number for number in view.queue_ids() if place.queue_by_id(number) is None])
    deleted = sum(map(place.was_deleted, found))
    return _Unknown(deleted, len(found) - deleted)


def _broken_json(place: DataDirectory, broken: Broken) -> dict[str, Any]:
    found = {"file": broken.file, "offset": broken.offset, "what": broken.what, "queue_id": None}
    found |= {"seq": broken.seq, "costs": str(broken.costs)}
    if broken.queue_id is not None:
        found["queue_id"] = hex(broken.queue_id)
        queue = place.queue_by_id(broken.queue_id)
        if queue is not None:
            found |= {"vhost": queue.vhost, "queue": queue.name}
    return found


def _sentence(broken: dict[str, Any]) -> str:
    place = "" if broken["offset"] is None else f" at byte {broken['offset']}"
    queue = "" if broken["queue_id"] is None else f" ({_whose(broken)}, {broken['queue_id']})"
    return f"{broken['file']}{place}{queue}: {broken['what']}"


def _whose(broken: dict[str, Any]) -> str:
    """Which message, as far as that is known, of which queue."""
    message = "" if broken["seq"] is None else f"message {broken['seq']} of "
    queue = f"{broken['queue']!r} of vhost {broken['vhost']!r}" if "queue" in broken else broken["queue_id"]
    return f"{message}queue {queue}"


def _report_json(
    place: DataDirectory, report: CheckReport, broken: list[dict[str, Any]], unknown: _Unknown
) -> dict[str, Any]:
    return {
        "directory": str(place.directory),
        "ok": not broken,
        "running": report.running,
        "segments": report.segments,
        "groups": report.groups,
        "records": report.records,
        "bytes": report.bytes,
        "queues": report.queues,
        "runs": report.runs,
        "indexed_messages": report.indexed_messages,
        "checkpoint": None if report.checkpoint is None else report.checkpoint._asdict(),
        "end": report.end._asdict(),
        "torn_tail": report.torn,
        "wiring_commands": place.wiring_commands,
        "deleted_queues": unknown.deleted,
        "queues_set_aside": unknown.set_aside,
        "broken": broken,
    }


def _print_report(place: DataDirectory, report: CheckReport, unknown: _Unknown) -> None:
    records = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.records.items())) or "0"
    checkpoint = "none yet"
    if report.checkpoint is not None:
        checkpoint = f"{report.checkpoint.segment}:{report.checkpoint.offset}, group {report.checkpoint.lsn:,}"
    facts = {
        "segments": f"{report.segments:,}",
        "groups": f"{report.groups:,}",
        "records": records,
        "bytes": size(report.bytes),
        "queues in the index": f"{report.queues:,}",
        "messages in the index": f"{report.indexed_messages:,} in {counted(report.runs, 'run')}",
        "checkpoint": checkpoint,
        "end of the log": f"{report.end.segment}:{report.end.offset}, group {report.end.lsn:,}",
        "metadata log": "unreadable" if place.wiring is None else counted(place.wiring_commands, "command"),
    }
    printed(lines_of(Table(tuple(map(Column, facts))), facts, Wish()), head=False)
    if report.torn:
        print("the last group was not finished (a kill or a power cut): never confirmed, cut at the next start")
    if unknown.deleted:
        print(
            f"{counted(unknown.deleted, 'deleted queue')} still in the journal: the next start forgets what is deleted"
        )
    if unknown.set_aside:
        print(
            f"{counted(unknown.set_aside, 'queue')} set aside: the wiring knows neither that they are nor that "
            "they were deleted, so they are kept (`clusterbroker journal ls` names them, `export` saves them)"
        )


def _verdict(place: DataDirectory, report: CheckReport, broken: list[dict[str, Any]]) -> str:
    if not broken:
        beside = " (beside its running node)" if report.running else ""
        groups, segments = counted(report.groups, "group"), counted(report.segments, "segment")
        return f"whole{beside}: {groups} in {segments}, as they were written"
    places = f"broken in {counted(len(broken), 'place')}; nothing was changed."
    if goes_on := _how_it_goes_on(place, broken):
        return f"{places} {goes_on}. Look at the disk."
    stop = "Stop the node. " if report.running else ""
    return (
        f"{places} {stop}Copy {place.directory} "
        f"before anything else; save what can be read with `clusterbroker journal export {place.directory} QUEUE --to "
        f"FILE.jsonl`; then {_what_then(place)}."
    )


def _how_it_goes_on(place: DataDirectory, broken: list[dict[str, Any]]) -> str:
    """What a start makes of damage with which it goes on; empty: of some of it nothing."""
    member = place.wiring_file == RAFT
    by_cost: dict[str, list[str]] = {}
    for one in broken:
        by_cost.setdefault(one["costs"], []).append("" if one["queue_id"] is None else _whose(one))
    if Costs.JOURNAL in by_cost:
        return ""
    does = []
    if held := by_cost.get(Costs.MESSAGE):
        does.append(f"holds back {_few(held)} (`clusterbroker queues delete-messages` drops what is held back)")
    if hurt := by_cost.get(Costs.QUEUE):
        does.append(f"serves what can be read of {_few(hurt)}")
    if not does:
        return "A start does not read what is broken, unless it has to read a queue from the log anew"
    if member:
        return (
            "A start serves everything else, and makes the node's copy of such a queue anew from another member that "
            f"has all of it; where there is none it {' and '.join(does)}"
        )
    return f"A start serves everything else: it {' and '.join(does)}"


def _few(names: list[str]) -> str:
    """The first of them, each once."""
    once = list(dict.fromkeys(names))
    return ", ".join(once[:NAMES_MAX]) + (f" and {len(once) - NAMES_MAX} more" if len(once) > NAMES_MAX else "")


def _what_then(place: DataDirectory) -> str:
    if place.wiring_file == RAFT:
        return "start the node: it is a cluster's member, and what others have a copy of is made anew from them"
    return "restore the directory from a backup, or start the node with an empty one"


@app.command("export")
def export(
    directory: Directory,
    queue: QueueName,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Ends in .parquet, .csv or .jsonl.")],
    vhost: VhostName = "/",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE when it exists.")] = False,
) -> None:
    """The messages of one queue as Parquet, CSV or JSON lines: properties, headers, body. The queue keeps them."""
    with _one_line():
        place = DataDirectory(directory)
        queue_id = place.queue_id(vhost, queue)
        sheet = Export(to, replace=force)
        with closing(place.view()) as view, _progress() as progress:
            if queue_id not in view.queue_ids() and place.queue_by_id(queue_id) is None:
                raise NotThere(f"no queue has the id {queue}: {place.listing}")
            total = None if progress.disable else view.count(queue_id)
            task = progress.add_task("messages", total=total)
            try:
                with sheet:
                    for count in sheet.write(view.messages(queue_id)):
                        progress.advance(task, count)
            except DamagedJournal as damage:
                _fail(f"{damage} What came before it ({counted(sheet.written, 'message')}) is in {sheet.partial}.", 1)
    print(f"exported {counted(sheet.written, 'message')} to {visible(str(to))} ({size(to.stat().st_size)})")


@app.command("import")
def import_messages(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `journal export` wrote.", show_default=False)],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="An existing queue.", show_default=False)],
    url: Annotated[
        str, typer.Option("--amqp", envvar="CLUSTERBROKER_AMQP_URL", help="amqp://USER:PASSWORD@HOST:PORT/VHOST")
    ] = "amqp://guest:guest@127.0.0.1:5672/",
    skip: Annotated[int, typer.Option(min=0, help="Skip this many messages: published before.")] = 0,
) -> None:
    """Publish exported messages to a queue of a running node, with properties and headers, with confirms."""
    import asyncio

    from clusterbroker.broker.cli.importing import NotImported, publish, rows
    from clusterbroker.broker.trial.client import target

    with _one_line(), _progress() as progress:
        task = progress.add_task("messages", total=None)
        try:
            where = target(url)
        except ValueError as error:
            raise NotThere(f"--amqp: {error}") from None
        try:
            count = asyncio.run(
                publish(where, queue, rows(file), skip, lambda done: progress.update(task, completed=done))
            )
        except NotImported as error:
            _fail(str(error), 1)
    print(f"imported {counted(count, 'message')} into {visible(queue)}")


@app.command("compact")
def compact(directory: Directory) -> None:
    """Copy sparse segments forward and rewrite the index of a stopped node. Messages do not change."""
    with _one_line():
        place = DataDirectory(directory)
        with Console(stderr=True).status("compacting"):
            report = compact_journal(place.journal)
    before, after = size(report.bytes_before), size(report.bytes_after)
    moved = f"{counted(report.segments_removed, 'segment')} removed, {counted(report.messages_moved, 'message')} moved"
    print(f"compacted {visible(str(directory))}: {before} before, {after} after; {moved}")


@app.command("forget")
def forget(
    directory: Directory,
    queue: Annotated[
        str, typer.Argument(metavar="ID", help="Of a queue that is set aside, as `ls` or `check` prints it.")
    ],
    confirm_loss: Annotated[
        bool, typer.Option("--confirm-loss", help="Required: the messages are lost. `export` saves them.")
    ] = False,
) -> None:
    """Drop a queue that is set aside from a stopped node's journal."""
    with _one_line():
        place = DataDirectory(directory)
        if place.wiring is None:
            raise NotThere(f"which queues there are is not known here ({place.wiring_problem})")
        queue_id = place.queue_id("", queue)
        known = place.queue_by_id(queue_id)
        if known is not None:
            raise NotThere(f"{queue} is queue {known.name!r} of vhost {known.vhost!r}: delete that one")
        if queue_id not in place.look(lambda view: view.queue_ids()):
            raise NotThere(f"no queue has the id {queue}: {place.listing}")
        if not confirm_loss:
            raise NotThere(f"its messages would be gone: save them (`clusterbroker journal export {directory} {queue} "
                           "--to FILE`), then say --confirm-loss")  # fmt: skip
        count = forget_queue(place.journal, queue_id)
    print(f"forgot {counted(count, 'message')} of queue {queue}")
