"""Record batches to the frames of basic.publish: what a row costs before the socket.

    method  01 channel u32 size | 60 u16, 40 u16, 0 u16, exchange shortstr, key shortstr, bits u8 | CE
    header  02 channel u32 size | 60 u16, 0 u16, body size u64, property flags u16, properties    | CE
    body    03 channel u32 size | as much as fits a frame; an empty body has none                 | CE

A loop per row in Python affords a few dictionary lookups and no calls. So all that rows have in common is made once: a
method frame per exchange and key, the frames from there to the body per length of body. A frame's end marker stands at
the *beginning* of what follows it, so a row is three pieces of a join, and its body is one of them as Arrow gave it.
Only properties that differ from row to row are put together per row, column by column.

Rows that are no message are found first, by Arrow, over whole columns (`bad_rows`); what is left needs no check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES_MAX: Final = 4 << 20
SHORT_BYTES_MAX: Final = 255
REMEMBERED_MAX: Final = 16_384
"""Method frames and lengths that are kept; what comes beyond is made anew each time they are full."""
ROW_ERROR_HEADER: Final = "x-row-error"

_END: Final = b"\xce"
_FRAME: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">BHIHHQ")
_HEADER_FIXED_BYTES: Final = 12
_FIELD_OVERHEAD_BYTES: Final = 6
"""Of a table's entry: length of the name, type, length of the value."""
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_BASIC: Final = 60
_MANDATORY: Final = 1
_LONG: Final = struct.Struct(">I")
_LONGLONG: Final = struct.Struct(">Q")
_FLAGS: Final = struct.Struct(">H")
_SIZES: Final = tuple(bytes((size,)) for size in range(256))

WIRE_ORDER: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip
"""Properties, the highest bit of the flags first."""
_BITS: Final = {name: 1 << (15 - place) for place, name in enumerate(WIRE_ORDER)}
_SHORT: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id",
)  # fmt: skip

Pieces = Iterable[bytes]


class Chunk(NamedTuple):
    """Frames of some rows, for one send."""

    data: bytes
    rows: int


class BadRow(NamedTuple):
    """A row that is no message. `row` counts from the start of its batch."""

    row: int
    why: str


@dataclass(frozen=True, slots=True)
class Template:
    """What all rows of a task have in common."""

    exchange: str = ""
    routing_key: str = ""
    persistent: bool = True
    mandatory: bool = True
    message_id_prefix: str | None = None
    """Rows without a `message_id` get this and their number in the task; None: they get none."""
    message_bytes_max: int = 16 << 20
    chunk_rows_max: int = 2500


class _Made(dict[Any, bytes]):
    """Bytes that are made when they are first asked for, and bounded."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Any], bytes]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, key: Any) -> bytes:
        if len(self) >= REMEMBERED_MAX:
            self.clear()
        made = self[key] = self.make(key)
        return made


def _short(value: bytes) -> bytes:
    return _SIZES[len(value)] + value


class Encoder:
    """Of one channel. `frame_bytes_max` is the negotiated one, framing included."""

    def __init__(self, template: Template, channel: int = 1, frame_bytes_max: int = 131_072) -> None:
        self.template = template
        self._channel = channel
        self._body_max = frame_bytes_max - _FRAME.size - len(_END)
        self._default = (template.exchange.encode(), template.routing_key.encode())
        self._methods = _Made(self._method)
        self._bodies = _Made(self._body_opening)
        self._openings = _Made(self._opening)
        self._keys = _Made(lambda name: _short(name.encode()) + b"S")
        self._fixed = b""
        self.instead: dict[str, str] = {}
        """Exchanges to publish to in the place of those that rows name."""

    def targets(self, batch: pa.RecordBatch) -> list[str]:
        """The exchanges that these rows name, each once."""
        if "exchange" not in batch.schema.names:
            return [self.template.exchange] if batch.num_rows else []
        named: list[str | None] = batch.column("exchange").unique().to_pylist()
        return list(dict.fromkeys(self.template.exchange if name is None else name for name in named))

    def encode(self, batch: pa.RecordBatch, first: int = 0) -> Iterator[Chunk]:
        """The rows, none of which is bad. `first` is the number of the first one in its task."""
        rows = batch.num_rows
        if not rows:
            return
        too_many = rows > self.template.chunk_rows_max or batch.column("value").nbytes > CHUNK_BYTES_MAX
        if too_many and rows > 1:
            half = rows // 2
            yield from self.encode(batch.slice(0, half), first)
            yield from self.encode(batch.slice(half), first + half)
        else:
            yield Chunk(self._joined(batch, first), rows)

    def _joined(self, batch: pa.RecordBatch, first: int) -> bytes:
        bodies = _binaries(batch.column("value"))
        methods = self._routes(batch)
        constant, columns = self._properties(batch, first)
        if columns is None:
            if constant != self._fixed:
                self._fixed = constant
                self._openings.clear()
            openings: Pieces = map(self._openings.__getitem__, map(len, bodies))
        else:
            channel, pack, body = self._channel, _HEADER.pack, self._bodies
            openings = [
                pack(2, channel, _HEADER_FIXED_BYTES + len(own), _BASIC, 0, len(value)) + own + body[len(value)]
                for own, value in zip(columns, bodies, strict=True)
            ]
        if max(map(len, bodies)) > self._body_max:
            bodies = [self._framed(value) if len(value) > self._body_max else value for value in bodies]
        pieces = [piece for row in zip(methods, openings, bodies, strict=False) for piece in row]
        pieces[0] = pieces[0][len(_END) :]
        pieces.append(_END)
        return b"".join(pieces)

    # -- the frames; each begins with the end marker of the one before --------------------------------------------

    def _routes(self, batch: pa.RecordBatch) -> Pieces:
        exchange, key = self._default
        names = batch.schema.names
        if "exchange" not in names and "routing_key" not in names:
            return repeat(self._methods[self._default])
        exchanges: Iterable[bytes] = (
            _binaries(batch.column("exchange"), exchange) if "exchange" in names else repeat(exchange)
        )
        keys: Iterable[bytes] = _binaries(batch.column("routing_key"), key) if "routing_key" in names else repeat(key)
        return map(self._methods.__getitem__, zip(exchanges, keys, strict=False))

    def _method(self, route: tuple[bytes, bytes]) -> bytes:
        exchange, key = route
        if self.instead:
            exchange = self.instead[exchange.decode()].encode()
        bits = _SIZES[_MANDATORY if self.template.mandatory else 0]
        payload = _BASIC_PUBLISH + _short(exchange) + _short(key) + bits
        return _END + _FRAME.pack(1, self._channel, len(payload)) + payload + _END

    def _opening(self, length: int) -> bytes:
        """From the header frame to the body, for rows whose properties are `_fixed`."""
        size = _HEADER_FIXED_BYTES + len(self._fixed)
        return _HEADER.pack(2, self._channel, size, _BASIC, 0, length) + self._fixed + self._bodies[length]

    def _body_opening(self, length: int) -> bytes:
        if not length:
            return b""
        return _END + _FRAME.pack(3, self._channel, min(length, self._body_max))

    def _framed(self, body: bytes) -> bytes:
        """A body that is longer than a frame, from behind its first frame's head."""
        pieces = [body[: self._body_max]]
        for start in range(self._body_max, len(body), self._body_max):
            piece = body[start : start + self._body_max]
            pieces += (_END, _FRAME.pack(3, self._channel, len(piece)), piece)
        return b"".join(pieces)

    # -- properties -------------------------------------------------------------------------------------------------

    def _properties(self, batch: pa.RecordBatch, first: int) -> tuple[bytes, list[bytes] | None]:
        """Flags and properties: the same for all rows, or (then the first is void) of each row."""
        flags, valid, fixed = 0, [], b""
        columns: list[Pieces] = []
        for name in WIRE_ORDER:
            if name == "delivery_mode":
                if self.template.persistent:
                    flags |= _BITS[name]
                    fixed = b"\x02"
                    columns.append(repeat(fixed))
            elif name in batch.schema.names:
                column = batch.column(name)
                flags |= _BITS[name]
                if column.null_count:
                    valid.append((_BITS[name], column.is_valid().to_pylist()))
                columns.append(self._column(name, column))
                fixed = b""
            elif name == "message_id" and self.template.message_id_prefix is not None:
                flags |= _BITS[name]
                columns.append(_numbered(self.template.message_id_prefix.encode(), first, batch.num_rows))
        if all(isinstance(column, repeat) for column in columns):
            return _FLAGS.pack(flags) + fixed, None
        heads: Pieces = repeat(_FLAGS.pack(flags))
        if valid:
            absent = [0] * batch.num_rows
            for bit, there in valid:
                absent = [word if is_there else word | bit for word, is_there in zip(absent, there, strict=True)]
            heads = [_FLAGS.pack(flags & ~word) for word in absent]
        return b"", list(map(b"".join, zip(heads, *columns, strict=False)))

    def _column(self, name: str, column: pa.Array) -> list[bytes]:
        """The property of each row as it stands on the wire, b"" where it is absent."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name == "headers":
            return self.tables(column)
        if name == "timestamp" and pa.types.is_timestamp(column.type):
            column = pc.divide(_microseconds(column), 1_000_000)
        if name in ("priority", "timestamp"):
            pack = _SIZES.__getitem__ if name == "priority" else _LONGLONG.pack
            return [b"" if value is None else pack(value) for value in column.to_pylist()]
        if name == "expiration" and pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        values = _binaries(column)
        if not column.null_count:
            return [_SIZES[len(value)] + value for value in values]
        there = column.is_valid().to_pylist()
        return [_SIZES[len(value)] + value if is_there else b"" for value, is_there in zip(values, there, strict=True)]

    def tables(self, column: pa.Array) -> list[bytes]:
        """Field tables of a column of maps; a null value has no type and no bytes (V)."""
        offsets = column.offsets.to_pylist()
        low, high = offsets[0], offsets[-1]
        keys = column.keys.slice(low, high - low).to_pylist()
        items = column.items.slice(low, high - low)
        known, pack = self._keys, _LONG.pack
        fields = [known[key] + pack(len(item)) + item for key, item in zip(keys, _binaries(items), strict=True)]
        if items.null_count:
            fields = [
                field if is_there else known[key][:-1] + b"V"
                for key, field, is_there in zip(keys, fields, items.is_valid().to_pylist(), strict=True)
            ]
        tables = [b"".join(fields[begin - low : end - low]) for begin, end in pairwise(offsets)]
        tables = [pack(len(table)) + table for table in tables]
        if column.null_count:
            there = column.is_valid().to_pylist()
            tables = [table if is_there else b"" for table, is_there in zip(tables, there, strict=True)]
        return tables

    # -- bad rows ---------------------------------------------------------------------------------------------------

    def bad_rows(self, batch: pa.RecordBatch) -> list[BadRow]:
        """Rows that cannot be messages, ascending, each with the first reason."""
        found: dict[int, str] = {}
        for rows, why in self._faults(batch):
            for row in rows:
                found.setdefault(row, why)
        return [BadRow(row, found[row]) for row in sorted(found)]

    def _faults(self, batch: pa.RecordBatch) -> Iterator[tuple[Sequence[int], str]]:
        """What is wrong with which rows. A struct `value` is measured by who makes a message of it (`packing`)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        value = batch.column("value")
        if value.null_count:
            yield _where(value.is_null()), "column 'value' is null"
        limit = self.template.message_bytes_max
        if value.nbytes > limit and not pa.types.is_struct(value.type):
            yield _where(pc.greater(pc.binary_length(value), limit)), f"column 'value' has more than {limit} bytes"
        for name in ("exchange", "routing_key", *_SHORT):
            if name in batch.schema.names and batch.column(name).nbytes > SHORT_BYTES_MAX:
                # bytes, not characters
                long = pc.greater(pc.binary_length(batch.column(name).cast(pa.binary())), SHORT_BYTES_MAX)
                yield _where(long), f"column '{name}' has more than {SHORT_BYTES_MAX} bytes"
        for name, high in (("priority", 255), ("timestamp", 2**63 - 1)):
            if name in batch.schema.names:
                yield _outside(batch.column(name), high), f"column '{name}' is not between 0 and {high}"
        if "expiration" in batch.schema.names:
            yield _bad_expirations(batch.column("expiration")), "column 'expiration' is no whole number of ms"
        if "headers" in batch.schema.names:
            yield from self._bad_headers(batch.column("headers"))
        if "headers" in batch.schema.names:
            yield from self._too_long(batch)

    def _bad_headers(self, column: pa.Array) -> Iterator[tuple[Sequence[int], str]]:
        import pyarrow.compute as pc

        if column.keys.nbytes <= SHORT_BYTES_MAX:
            return
        long = pc.greater(pc.binary_length(column.keys.cast("binary")), SHORT_BYTES_MAX)
        if pc.any(long).as_py():
            flags, offsets = long.to_pylist(), column.offsets.to_pylist()
            rows = [row for row, (begin, end) in enumerate(pairwise(offsets)) if any(flags[begin:end])]
            yield rows, f"a name in column 'headers' has more than {SHORT_BYTES_MAX} bytes"

    def _too_long(self, batch: pa.RecordBatch) -> Iterator[tuple[Sequence[int], str]]:
        """A content header is one frame. The longest row that there could be is looked at first."""
        import pyarrow.compute as pc

        room = self._body_max - _HEADER_FIXED_BYTES - len(WIRE_ORDER) * (SHORT_BYTES_MAX + 1)
        column = batch.column("headers")
        begins = column.offsets
        low, high = begins[0].as_py(), begins[-1].as_py()
        if low == high:
            return
        keys = pc.binary_length(column.keys.slice(low, high - low))
        items = pc.fill_null(pc.binary_length(column.items.slice(low, high - low)), 0)
        entries = pc.max(pc.subtract(begins.slice(1), begins.slice(0, len(begins) - 1))).as_py()
        if entries * (_FIELD_OVERHEAD_BYTES + pc.max(keys).as_py() + pc.max(items).as_py()) <= room:
            return
        sizes = pc.add(pc.add(keys, items), _FIELD_OVERHEAD_BYTES).to_pylist()
        offsets = pairwise(begins.to_pylist())
        rows = [row for row, (begin, end) in enumerate(offsets) if sum(sizes[begin - low : end - low]) > room]
        yield rows, f"column 'headers' has more than {room} bytes"


def dead_letters(batch: pa.RecordBatch, bad: Sequence[BadRow], bytes_max: int) -> pa.RecordBatch:
    """The bad rows as messages: value and key as far as they are legal, and the reason as a header."""
    import pyarrow as pa

    rows = [row for row, _ in bad]
    values = _binaries(batch.column("value").take(pa.array(rows, pa.int64())))
    columns: dict[str, Any] = {
        "value": pa.array([value if len(value) <= bytes_max else b"" for value in values], pa.binary()),
        "headers": pa.array([[(ROW_ERROR_HEADER, why)] for _, why in bad], pa.map_(pa.string(), pa.string())),
    }
    if "routing_key" in batch.schema.names:
        keys = batch.column("routing_key").take(pa.array(rows, pa.int64())).to_pylist()
        legal = [key if key is not None and len(key.encode()) <= SHORT_BYTES_MAX else None for key in keys]
        columns["routing_key"] = pa.array(legal, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def without(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    """The other rows."""
    import pyarrow as pa

    out = {row for row, _ in bad}
    return batch.filter(pa.array([row not in out for row in range(batch.num_rows)], pa.bool_()))


def _binaries(column: pa.Array, null: bytes = b"") -> list[bytes]:
    """The bytes of texts or binaries; text is not decoded on the way."""
    import pyarrow as pa

    if column.type != pa.binary():
        column = column.cast(pa.binary())
    values: list[bytes] = column.to_pylist()
    return [null if value is None else value for value in values] if column.null_count else values


def _numbered(prefix: bytes, first: int, count: int) -> list[bytes]:
    """Short strings: prefix and number."""
    texts = [prefix + b"%d" % number for number in range(first, first + count)]
    return [_SIZES[len(text)] + text for text in texts]


def _where(mask: Any) -> Sequence[int]:
    import pyarrow.compute as pc

    rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return rows


def _outside(column: pa.Array, high: int) -> Sequence[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        column = _microseconds(column)
    return _where(pc.or_(pc.less(column, 0), pc.greater(column.cast(pa.int64()), high)))


def _microseconds(column: pa.Array) -> pa.Array:
    """Since 1970; nothing here asks for a database of time zones, which small containers lack."""
    import pyarrow as pa

    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _bad_expirations(column: pa.Array) -> Sequence[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type):
        return _where(pc.less(column, pa.scalar(0, column.type)))
    return _where(pc.invert(pc.match_substring_regex(column, "^[0-9]+$")))
