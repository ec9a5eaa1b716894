"""What Spark's filters let a batch leave out: offsets, moments, queues, rows. Pure.

A filter is used to read less, and never to answer for Spark: all of them are given back, and Spark looks at each row
that is left. So nothing here can make a result wrong but what is left out too much. Moments have a lower end only: a
broker's clock may be set back, and what comes behind a later message may be earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from clusterbroker.pipeline.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

END: Final = 2**62
"""No offset is as high."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_BY_VALUE: Final = ("routing_key", "exchange")
"""Columns of which a row may have one of a few values."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Every row that passes the filters is in it; others may be."""

    low: int = 0
    high: int = END
    """Offsets: low <= offset < high."""
    since_ms: int | None = None
    """`enqueued_at`, at least."""
    queues: frozenset[str] | None = None
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(column, values) that rows must have."""

    def wanted(self, queues: Iterable[str]) -> list[str]:
        """Those of them that are to be read."""
        return [queue for queue in queues if self.queues is None or queue in self.queues]


ALL: Final = Narrowed()


def of(filters: Iterable[Filter], texts: Collection[str]) -> Narrowed:
    """All of the filters at once. `texts`: columns whose values are compared byte by byte, as here."""
    found = ALL
    for one in filters:
        column = _column(one)
        values = _values(one)
        if column == "offset":
            low, high = _offsets(one, values)
            found = replace(found, low=max(found.low, low), high=min(found.high, high))
        elif column == "enqueued_at":
            since_ms = _since_ms(one, values)
            if since_ms is not None:
                found = replace(found, since_ms=max(since_ms, found.since_ms or 0))
        elif column in texts and values is not None:
            wanted = tuple(value for value in values if isinstance(value, str))
            if column == "queue":
                found = replace(found, queues=frozenset(found.wanted(wanted)))
            elif column in _BY_VALUE and len(wanted) == len(values):
                found = replace(found, rows=(*found.rows, (column, wanted)))
    return found


def _column(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _values(one: Filter) -> Sequence[Any] | None:
    """The values of which a row must have one; None: the filter says something else."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        return (one.value,)
    return one.value if isinstance(one, In) else None


def _offsets(one: Filter, values: Sequence[Any] | None) -> tuple[int, int]:
    """low <= offset < high."""
    if values is not None:
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) < len(values):  # null, which no offset is, or something unheard of
            return 0, END
        return (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    value = getattr(one, "value", None)
    if not isinstance(value, int):
        return 0, END
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return value + isinstance(one, GreaterThan), END
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return 0, value + isinstance(one, LessThanOrEqual)
    return 0, END


def _since_ms(one: Filter, values: Sequence[Any] | None) -> int | None:
    if values is None and isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        values = (one.value,)
    if not values or not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return None
    earliest: datetime = min(values)
    return max((earliest - _EPOCH) // _MS, 0)


def matching(batch: pa.RecordBatch, narrowed: Narrowed) -> pa.RecordBatch:
    """The rows that have the values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column, values in narrowed.rows:
        array = batch.column(column)
        batch = batch.filter(pc.is_in(array, value_set=pa.array(values, array.type)))
    return batch


class Pushed:
    """`pushFilters` of a reader; it keeps what the filters leave.

    Spark refuses each read of a reader whose `pushFilters` is not the one that it inherited, unless
    spark.sql.python.filterPushdown.enabled is true, lest filters be passed over silently. That does not concern who
    gives all of them back. So this shows the function that Spark looks for; without the setting it is never called.
    """

    def __init__(self, texts: Collection[str], keep: Callable[[Narrowed], object]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._texts = texts
        self._keep = keep

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._keep(of(filters, self._texts))
        return filters


class FilteredReader(DataSourceReader):
    """A batch's reader that reads less where filters allow it. `texts` as of `of`."""

    def __init__(self, options: Options, names: tuple[str, ...], schema: pa.Schema, texts: frozenset[str]) -> None:
        self._options = options
        self._names = names
        self._schema = schema
        self._texts = texts
        self._narrowed = ALL

    @property
    def pushFilters(self) -> Pushed:  # noqa: N802 - Spark's name
        return Pushed(self._texts, self._narrow)

    def _narrow(self, narrowed: Narrowed) -> None:
        self._narrowed = narrowed
