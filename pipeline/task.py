"""What a task does with its rows, whoever calls it: the data source's writers and the helper for foreachBatch (waits).

Connections are kept between the tasks of a worker process, for Spark uses the same processes for batch after batch. One
that is kept is looked at before its next use, and a task that fails gives none back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from clusterbroker.pipeline import encode, packing
from clusterbroker.pipeline.bulk import Publisher
from clusterbroker.pipeline.connection import PublisherError
from clusterbroker.pipeline.encode import BadRow, Encoder, Template
from clusterbroker.pipeline.options import Options
from clusterbroker.pipeline.packing import Packer
from clusterbroker.pipeline.transactions import Staging, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_MAX: Final = 4
"""Connections of a process that wait for their next task, whatever their options: who waits the longest goes first."""
CHUNKS_IN_FLIGHT: Final = 4
"""A window has room for so many chunks at least, so that rows are encoded while others are on their way."""
CHUNK_ROWS_MAX: Final = 10_000


class BadRows(ValueError):
    """A row is no message, and the options say that this fails its task."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rows these are: a query (or job), its batch, the partition, and which attempt at it."""

    query: str
    batch: int
    partition: int
    attempt: int = 0

    @property
    def message_id_prefix(self) -> str:
        return f"{self.query}/{self.batch}/{self.partition}/"


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a task's rows."""

    partition: int
    attempt: int
    rows: int = 0
    """Confirmed."""
    messages: int = 0
    """In which they are: as many, unless messages hold several rows."""
    skipped: int = 0
    dead_lettered: int = 0
    resent: int = 0
    """Of the messages, dead letters included: sent again after a lost connection, so they may be there twice."""
    transaction: Transaction | None = None
    """Exactly-once: what the driver is to commit."""
    segments: tuple[str, ...] = ()
    """And where these rows are staged."""
    query: str = ""
    """Whose rows these are, as `Identity` has it."""


_kept: dict[tuple[int, Options], list[Publisher]] = {}
"""Those that waited the longest come first."""


def _place(options: Options) -> tuple[int, Options]:
    """Where connections for these options wait. What is another one with each batch is none of theirs."""
    return os.getpid(), replace(options, epoch=None, counts_file=None)


def _lend(options: Options, name: str) -> Publisher:
    """A publisher for one task. A process that was forked has the sockets of the one before, and leaves them alone."""
    kept = _kept.pop(_place(options), [])
    publisher = kept.pop() if kept else Publisher(options, name)
    if kept:
        _kept[_place(options)] = kept
    try:
        publisher.begin()
    except BaseException:
        publisher.abandon()
        raise
    return publisher


def _give_back(options: Options, publisher: Publisher) -> None:
    place = _place(options)
    _kept[place] = [*_kept.pop(place, []), publisher]
    mine = [kept for kept in _kept if kept[0] == place[0]]
    if sum(len(_kept[kept]) for kept in mine) > KEPT_MAX:
        _kept[mine[0]].pop(0).close()
        if not _kept[mine[0]]:
            del _kept[mine[0]]


def write(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    options: Options,
    identity: Identity,
    transaction: Transaction | None = None,
) -> Written:
    """Publishes all rows and waits until they are confirmed; with a transaction they are staged, and seen by nobody
    before it is committed. Raises PublisherError, BadRows, BadOption."""
    publisher = _lend(options, f"spark {identity.query} {identity.partition}")
    try:
        if transaction is None:
            written = _write(batches, columns, options, identity, publisher, None)
        else:
            staging = Staging(publisher, options, transaction, identity.partition, identity.attempt)
            publisher.repeats = False
            try:
                written = _write(batches, columns, options, identity, publisher, staging)
            except PublisherError as error:
                raise staging.understood(error) from error
            written = replace(written, transaction=transaction, segments=staging.names)
            publisher.repeats = True
    except BaseException:
        publisher.abandon()
        raise
    _give_back(options, publisher)
    return written


def _write(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    options: Options,
    identity: Identity,
    publisher: Publisher,
    staging: Staging | None,
) -> Written:
    encoder = Encoder(_template(options, identity), frame_bytes_max=publisher.frame_bytes_max)
    graves = Encoder(_graves(options), frame_bytes_max=publisher.frame_bytes_max)
    packer = None
    if options.message_format != packing.RAW:
        packer = Packer(options.message_format, options.rows_per_message, options.message_bytes_max, encoder)
    confirmed, resent = publisher.confirmed, publisher.resent
    seen = rows = messages = skipped = buried = 0
    for whole in batches:
        batch = whole.select(list(columns))
        first, seen = seen, seen + batch.num_rows
        if bad := (packer or encoder).bad_rows(batch):
            if options.on_row_error == "fail":
                raise BadRows(_told(bad[0], first, len(bad)))
            if options.on_row_error == "deadLetter":
                dead = encode.dead_letters(packing.alone(batch, bad), bad, options.message_bytes_max)
                _publish(publisher, graves, staging, dead, 0)
                buried += len(bad)
            else:
                skipped += len(bad)
            batch = encode.without(batch, bad)
        rows += batch.num_rows
        if packer is not None:
            first, batch = messages, packer.pack(batch)
        messages += batch.num_rows
        _publish(publisher, encoder, staging, batch, first)
    publisher.drain()
    assert publisher.confirmed - confirmed >= messages + buried, "a task ends when each of its messages is confirmed"
    return Written(
        identity.partition, identity.attempt, rows, messages, skipped, buried, publisher.resent - resent,
        query=identity.query,
    )  # fmt: skip


def _publish(
    publisher: Publisher, encoder: Encoder, staging: Staging | None, batch: pa.RecordBatch, first: int
) -> None:
    if staging is not None:
        for target in encoder.targets(batch):
            encoder.instead[target] = staging.segment(target)
    for chunk in encoder.encode(batch, first):
        publisher.publish(chunk)


def _template(options: Options, identity: Identity) -> Template:
    return Template(
        options.exchange,
        options.routing_key,
        options.persistent,
        mandatory=options.unroutable == "fail",
        message_id_prefix=identity.message_id_prefix if options.message_id == "auto" else None,
        message_bytes_max=options.message_bytes_max,
        chunk_rows_max=max(min(options.in_flight_max // CHUNKS_IN_FLIGHT, CHUNK_ROWS_MAX), 1),
    )


def _graves(options: Options) -> Template:
    return replace(
        _template(options, Identity("", 0, 0)), exchange=options.dead_letter_exchange or "", message_id_prefix=None
    )


def _told(bad: BadRow, first: int, count: int) -> str:
    more = f" (and {count - 1} more of its batch)" if count > 1 else ""
    return (
        f"row {first + bad.row} of its partition{more} is no message: {bad.why}. "
        "Mend it, or set onRowError to skip or deadLetter"
    )
