"""Many rows in one message: rows of a record batch that go the same way, as an Arrow stream or as JSON lines. Pure.

    arrow    the body is an Arrow IPC stream of one record batch: the fields of the struct `value`, or a column `value`
    jsonl    the body is the texts of `value`, joined by line feeds

Rows share a message when all their other columns are equal: exchange, key, headers and properties belong to the
message. They are found with Arrow, column by column: each column's values are numbered, the numbers of a row make one,
and a stable sort by it puts the rows of a message side by side. So rows that go the same way keep their order, and what
the encoder gets is a batch as any other, whose rows are messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.pipeline.encode import BadRow, Encoder

if TYPE_CHECKING:
    import pyarrow as pa

RAW: Final = "raw"
ARROW: Final = "arrow"
JSONL: Final = "jsonl"
CONTENT_TYPES: Final = {ARROW: "application/vnd.apache.arrow.stream", JSONL: "application/x-ndjson"}
"""Of messages that have no column `content_type`."""
_LINE_FEED: Final = b"\n"


class Packer:
    """Of one task. rows_max: of a message; bytes_max: of its body."""

    def __init__(self, message_format: str, rows_max: int, bytes_max: int, encoder: Encoder) -> None:
        self._format = message_format
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._encoder = encoder

    def bad_rows(self, batch: pa.RecordBatch) -> list[BadRow]:
        """Rows that no message can hold, ascending, each with the first reason."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = {bad.row: bad.why for bad in self._encoder.bad_rows(batch)}
        value = batch.column("value")
        if self._format == JSONL:
            if not pa.types.is_binary(value.type):
                value = value.cast(pa.binary())
            broken = pc.or_(pc.match_substring(value, _LINE_FEED), pc.equal(pc.binary_length(value), 0))
            for row in pc.indices_nonzero(pc.fill_null(broken, False)).to_pylist():
                found.setdefault(row, "column 'value' is not one line")
        elif value.nbytes + 2 * len(stream(value[:0])) > self._bytes_max:
            for row in self._too_long(value, 0, batch.num_rows):
                found.setdefault(row, f"column 'value' has more than {self._bytes_max} bytes as an Arrow stream")
        return [BadRow(row, found[row]) for row in sorted(found)]

    def _too_long(self, value: pa.Array, begin: int, end: int) -> Iterator[int]:
        """Rows of the range that are too long as messages of their own: halves that are short enough have none."""
        if begin == end or len(stream(value[begin:end])) <= self._bytes_max:
            return
        if end - begin == 1:
            yield begin
            return
        half = (begin + end) // 2
        yield from self._too_long(value, begin, half)
        yield from self._too_long(value, half, end)

    def pack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The messages of these rows, none of which is bad: `value` and what the rows of each have in common."""
        import pyarrow as pa

        if not batch.num_rows:
            return pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
        shared = [name for name in batch.schema.names if name != "value"]
        groups = self._groups(batch, shared)
        value = batch.column("value")
        if groups is None:
            begins, bodies = self._bodies(value, [(0, batch.num_rows)])
            rows = pa.array(begins, pa.int64())
        else:
            order, ranges = groups
            begins, bodies = self._bodies(value.take(order), ranges)
            rows = order.take(pa.array(begins, pa.int64()))
        packed: dict[str, Any] = {"value": pa.array(bodies, pa.binary())}
        packed |= {name: batch.column(name).take(rows) for name in shared}
        if "content_type" not in shared:
            packed["content_type"] = pa.repeat(CONTENT_TYPES[self._format], len(bodies))
        return pa.RecordBatch.from_pydict(packed)

    def _groups(self, batch: pa.RecordBatch, shared: Sequence[str]) -> tuple[pa.Array, list[tuple[int, int]]] | None:
        """Rows in the order of their messages, and (begin, end) of those there that go the same way. None: all do."""
        import pyarrow as pa
        import pyarrow.compute as pc

        codes = None
        for name in shared:
            column = batch.column(name)
            if pa.types.is_map(column.type):
                column = pa.array(self._encoder.tables(column), pa.binary())
            numbered = pc.dictionary_encode(column, null_encoding="encode")
            if len(numbered.dictionary) == 1:
                continue
            numbers = numbered.indices.cast(pa.int64())
            if codes is not None:  # numbered anew each time, or they would grow beyond 64 bits
                both = pc.add(pc.multiply(codes, len(numbered.dictionary)), numbers)
                numbers = pc.dictionary_encode(both).indices.cast(pa.int64())
            codes = numbers
        if codes is None:
            return None
        order = pc.array_sort_indices(codes)  # stable
        ends = pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
        return order, list(zip([0, *ends[:-1]], ends, strict=True))

    def _bodies(self, value: pa.Array, ranges: Sequence[tuple[int, int]]) -> tuple[list[int], list[bytes]]:
        """(first row, body) of each message, as two lists."""
        begins: list[int] = []
        bodies: list[bytes] = []
        make = self._lines(value) if self._format == JSONL else lambda begin, end: stream(value[begin:end])
        for first, last in ranges:
            for begin in range(first, last, self._rows_max):
                for at, body in self._fitting(make, begin, min(begin + self._rows_max, last)):
                    begins.append(at)
                    bodies.append(body)
        return begins, bodies

    def _fitting(self, make: Callable[[int, int], bytes], begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """One message, or so many that each is short enough."""
        body = make(begin, end)
        if len(body) <= self._bytes_max or end - begin == 1:
            yield begin, body
        else:
            half = (begin + end) // 2
            yield from self._fitting(make, begin, half)
            yield from self._fitting(make, half, end)

    def _lines(self, value: pa.Array) -> Callable[[int, int], bytes]:
        import pyarrow as pa

        lines = value.cast(pa.binary()).to_pylist()
        return lambda begin, end: _LINE_FEED.join(lines[begin:end])


def stream(value: pa.Array) -> bytes:
    """These rows as an Arrow IPC stream."""
    import pyarrow as pa

    if pa.types.is_struct(value.type):
        batch = pa.RecordBatch.from_arrays(value.flatten(), names=[field.name for field in value.type])
    else:
        batch = pa.RecordBatch.from_arrays([value], names=["value"])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    body: bytes = out.getvalue().to_pybytes()
    return body


def alone(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    """The batch, with each bad row's struct `value` as an Arrow stream of its own: what a dead letter shows of it."""
    import pyarrow as pa

    value = batch.column("value")
    if not pa.types.is_struct(value.type):
        return batch
    bodies: list[bytes | None] = [None] * batch.num_rows
    for row, _ in bad:
        bodies[row] = stream(value.slice(row, 1)) if value[row].is_valid else None
    return batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(bodies, pa.binary()))
