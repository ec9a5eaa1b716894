"""The columns of `records` as a batch of Arrow, without a copy.

A batch has the columns and types of the schema that Spark asks for, which `columns.check_source` has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.pipeline.stored import HEADER_NAMES, HEADER_VALUES, HEADERS, Column, Records

if TYPE_CHECKING:
    import pyarrow as pa

QUEUE: Final = "queue"


def batch(records: Records, schema: pa.Schema, queue: str) -> pa.RecordBatch:
    """All rows; `queue` is where they are from."""
    import pyarrow as pa

    arrays = [_array(records, field, queue) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(records: Records, field: pa.Field, queue: str) -> pa.Array:
    import pyarrow as pa

    if field.name == QUEUE:
        return pa.repeat(pa.scalar(queue, field.type), records.rows)
    column = records.columns[field.name]
    if field.name == HEADERS:
        return _map(records, column, field.type)
    if column.nulls == records.rows:
        return pa.nulls(records.rows, field.type)
    if column.offsets is not None:
        return _made(field.type, records.rows, column)
    if pa.types.is_int32(field.type) or pa.types.is_boolean(field.type):
        return _made(pa.int64(), records.rows, column).cast(field.type)
    return _made(field.type, records.rows, column)


def _made(kind: Any, count: int, column: Column) -> pa.Array:
    import pyarrow as pa

    data = [column.valid, *([] if column.offsets is None else [column.offsets]), column.data]
    buffers = [None if part is None else pa.py_buffer(part) for part in data]
    return pa.Array.from_buffers(kind, count, buffers, column.nulls)


def _map(records: Records, column: Column, kind: Any) -> pa.Array:
    import pyarrow as pa

    names, values = records.columns[HEADER_NAMES], records.columns[HEADER_VALUES]
    assert names.offsets is not None, "names are texts"
    entries = len(names.offsets) // 4 - 1
    pair = pa.struct([kind.key_field, kind.item_field])
    arrays = [_made(kind.key_type, entries, names), _made(kind.item_type, entries, values)]
    table = pa.StructArray.from_buffers(pair, entries, [None], children=arrays)
    valid = None if column.valid is None else pa.py_buffer(column.valid)
    return pa.Array.from_buffers(
        kind, records.rows, [valid, pa.py_buffer(column.offsets)], column.nulls, children=[table]
    )
