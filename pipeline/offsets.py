"""Offsets of streams: where a query is, how much a batch takes, and how that is split into tasks. Pure.

An offset counts from 0 and names the same message for ever, in one *life* of its stream: a stream that is deleted and
declared anew, or that lost what was confirmed, begins another. So a checkpoint says of each stream

    {"readings": {"life": "19aa5b3c1f0.12.0", "offset": 1200}}        the next message that is not read yet

and what has another life, or is behind what retention has left, is lost to the query: `DataLost`, unless its options
say that it goes on with what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

PARTS_MAX: Final = 100_000
"""Tasks of a batch: each is an object in the driver, and more of them would end it."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class DataLost(Exception):
    """Messages that were to be read are not there any more, or the checkpoint is of something else."""


class TooManyParts(ValueError):
    """A batch of more tasks than a driver can have; the text says what to change."""


class Bounds(NamedTuple):
    """What a stream holds now: offsets from `first` up to, and without, `next`; `bytes` of them."""

    life: str
    first: int
    next: int
    bytes: int = 0


class Position(NamedTuple):
    """The next message of a stream that is not read yet."""

    life: str
    offset: int


Positions = Mapping[str, Position]


class Span(NamedTuple):
    """Messages of one stream, for one task: start <= offset < end."""

    stream: str
    life: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch takes, of all streams together; None: no limit."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    """A batch waits until there are so many, but not longer than `delay_max_s` after the one before."""
    delay_max_s: float = 0.0


def as_json(positions: Positions) -> dict[str, dict[str, Any]]:
    """As Spark keeps it in a checkpoint."""
    return {stream: {"life": at.life, "offset": at.offset} for stream, at in positions.items()}


def of_json(said: Any, streams: Sequence[str]) -> dict[str, Position]:
    """The reverse; the checkpoint must be of these streams. Raises DataLost."""
    try:
        positions = {stream: Position(str(at["life"]), int(at["offset"])) for stream, at in said.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataLost(
            f"the checkpoint has offsets of another source: {said}. Use another checkpointLocation"
        ) from None
    if set(positions) != set(streams):
        raise DataLost(
            f"the checkpoint is of {_named(positions)}, and the options name {_named(streams)}: "
            "use another checkpointLocation, or name the same"
        )
    return positions


def begin(stream: str, where: str | int, bounds: Bounds, fail_on_data_loss: bool) -> Position:
    """Where to begin: "earliest", "latest" or an offset. Raises DataLost."""
    if where == EARLIEST:
        return Position(bounds.life, bounds.first)
    if where == LATEST:
        return Position(bounds.life, bounds.next)
    return kept(stream, Position(bounds.life, int(where)), bounds, fail_on_data_loss)


def kept(stream: str, at: Position, bounds: Bounds, fail_on_data_loss: bool) -> Position:
    """The position, if the stream still has what comes there, or where it goes on. Raises DataLost."""
    if at.life != bounds.life:
        if fail_on_data_loss:
            raise DataLost(
                f"stream '{stream}' is not the one that the checkpoint is of: it was deleted and declared anew, or "
                f"lost messages (life {at.life} there, {bounds.life} now). Use another checkpointLocation, or set "
                "failOnDataLoss to false to go on with its first message"
            )
        return Position(bounds.life, bounds.first)
    if at.offset < bounds.first:
        if fail_on_data_loss:
            raise DataLost(
                f"stream '{stream}' has no offset {at.offset} any more, its first is {bounds.first}: retention was "
                "quicker than the query. Let it keep more, or set failOnDataLoss to false to go on with what there is"
            )
        return Position(bounds.life, bounds.first)
    if at.offset > bounds.next:
        if fail_on_data_loss:
            raise DataLost(
                f"stream '{stream}' ends before offset {at.offset}, its next one is {bounds.next}. "
                "Give a lower one (or another checkpointLocation: is this one of another broker?), or set "
                "failOnDataLoss to false"
            )
        return Position(bounds.life, bounds.next)
    return at


def target(start: Positions, tails: Mapping[str, Bounds], limits: Limits, waited_s: float) -> dict[str, Position]:
    """The end of the next batch from `start` on: `start` itself when there is to be none.

    Each stream has a share of a limit according to what it has waiting, and at least one row of it.
    """
    waiting = {stream: max(tails[stream].next - at.offset, 0) for stream, at in start.items()}
    total = sum(waiting.values())
    if limits.rows_min is not None and total < limits.rows_min and waited_s < limits.delay_max_s:
        return dict(start)
    share = 1.0
    if limits.rows_max is not None and total > limits.rows_max:
        share = limits.rows_max / total
    if limits.bytes_max is not None:
        size = sum(count * _mean_bytes(tails[stream]) for stream, count in waiting.items())
        if size * share > limits.bytes_max:
            share = limits.bytes_max / size
    return {
        stream: at._replace(offset=at.offset + min(waiting[stream], max(int(waiting[stream] * share), 1)))
        for stream, at in start.items()
    }


def _mean_bytes(bounds: Bounds) -> float:
    return bounds.bytes / max(bounds.next - bounds.first, 1)


def spans(start: Positions, end: Positions, parts_min: int, rows_max: int | None) -> list[Span]:
    """The tasks of a batch: at least `parts_min` as far as there are rows, and none with more than `rows_max`. Raises
    TooManyParts."""
    every = (Span(stream, at.life, at.offset, end[stream].offset) for stream, at in start.items())
    whole = [span for span in every if span.start < span.end]
    total = sum(span.end - span.start for span in whole)
    if rows_max is not None and total > rows_max * PARTS_MAX:
        raise TooManyParts(
            f"option 'maxRecordsPerPartition' is '{rows_max}', and a batch of {total} messages would have more than "
            f"{PARTS_MAX} tasks: raise it, or bound a micro-batch with maxRecordsPerTrigger"
        )
    found: list[Span] = []
    for span in whole:
        count = span.end - span.start
        parts = max(1, round(parts_min * count / total))
        if rows_max is not None:
            parts = max(parts, -(-count // rows_max))
        found += _split(span, min(parts, count))
    for _ in range(min(parts_min, total) - len(found)):  # what rounding took away
        largest = max(found, key=lambda span: span.end - span.start)
        place = found.index(largest)
        found[place : place + 1] = _split(largest, 2)
    return found


def _split(span: Span, parts: int) -> Iterable[Span]:
    count = span.end - span.start
    edges = [span.start + count * part // parts for part in range(parts + 1)]
    return [span._replace(start=low, end=high) for low, high in pairwise(edges)]


def _named(streams: Iterable[str]) -> str:
    return ", ".join(f"'{stream}'" for stream in sorted(streams)) or "none"
