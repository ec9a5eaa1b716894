"""Messages of a queue as a file for other tools: Parquet, CSV or JSON lines, one row a message (waits for the disk).

Rows go out in batches that are bounded in messages and in bytes, so a queue of any length passes through. A file
grows beside its place as NAME.part and takes its name when it is complete.

    column                                   Parquet            CSV, JSONL
    seq, bytes, delivery_count               uint64             number
    redelivered                              bool               true / false
    exchange, routing_key                    string             string
    enqueued                                 timestamp ms UTC   ISO 8601
    the 13 properties beside headers         string, uint8 ...  string, number
    headers                                  string of JSON     string of JSON (JSONL: the object itself)
    body                                     binary             base64
"""

from __future__ import annotations

import base64
import csv
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias

from clusterbroker.broker.cli.readable import plain, properties_of
from clusterbroker.broker.extras import is_there, wanting
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.inspect import StoredMessage

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 16 << 20

Row: TypeAlias = dict[str, Any]
"""A message by column; `enqueued` is in ms since 1970, `headers` a JSON value, `body` bytes."""

_ARROW_TYPES: Final = {"shortstr": "string", "octet": "uint8", "timestamp": "uint64", "table": "string"}
COLUMNS: Final[dict[str, str]] = {
    "seq": "uint64",
    "exchange": "string",
    "routing_key": "string",
    "enqueued": "timestamp[ms]",
    "redelivered": "bool",
    "delivery_count": "uint64",
    "bytes": "uint64",
    **{name: _ARROW_TYPES[domain] for name, domain in PROPERTIES},
    "body": "binary",
}


class ExportImpossible(Exception):
    """The text says what stands in the way and what to do."""


class Sheet(Protocol):
    """A file that takes rows."""

    def write(self, rows: list[Row]) -> None: ...

    def close(self) -> None: ...


def row_of(stored: StoredMessage) -> Row:
    """One message by column."""
    entry, message, _ = stored
    properties, headers = properties_of(message)
    row: Row = dict.fromkeys(COLUMNS)
    row.update(
        (name, plain(value) if isinstance(value, str) else value) for name, value in properties.items() if name in row
    )
    row.update(
        seq=entry.seq,
        exchange=plain(message.exchange),
        routing_key=plain(message.routing_key),
        enqueued=message.time_ms,
        redelivered=entry.redelivered,
        delivery_count=entry.delivery_count,
        bytes=message.body_length,
        headers=headers,
        body=message.body,
    )
    return row


def iso(time_ms: int) -> str:
    """A moment in UTC with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


class CsvSheet:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115  (closed by close)
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def write(self, rows: list[Row]) -> None:
        self._writer.writerows([_csv_cell(name, row[name]) for name in COLUMNS] for row in rows)

    def close(self) -> None:
        self._file.close()


def _csv_cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name == "headers":
        return json.dumps(value, ensure_ascii=False)
    if name == "body":
        return base64.b64encode(value).decode("ascii")
    if name == "enqueued":
        return iso(value)
    return str(value).lower() if isinstance(value, bool) else value


class JsonLinesSheet:
    """Absent properties are left out of their line."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (closed by close)

    def write(self, rows: list[Row]) -> None:
        for row in rows:
            line = {name: value for name, value in row.items() if value is not None}
            line["enqueued"] = iso(row["enqueued"])
            line["body"] = base64.b64encode(row["body"]).decode("ascii")
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class ParquetSheet:
    """One row group a batch, compressed with zstd."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow = pyarrow
        special = {"timestamp[ms]": pyarrow.timestamp("ms", tz="UTC"), "bool": pyarrow.bool_()}
        self._schema = pyarrow.schema(
            (name, special.get(kind) or getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()
        )
        self._writer = pyarrow.parquet.ParquetWriter(str(path), self._schema, compression="zstd")

    def write(self, rows: list[Row]) -> None:
        for row in rows:
            if row["headers"] is not None:
                row["headers"] = json.dumps(row["headers"], ensure_ascii=False)
        self._writer.write_batch(self._arrow.RecordBatch.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


PARQUET: Final = "Parquet", "pyarrow", "export"
"""As `extras.wanting` says it."""
SHEETS: Final[dict[str, type[CsvSheet] | type[JsonLinesSheet] | type[ParquetSheet]]] = {
    ".csv": CsvSheet,
    ".jsonl": JsonLinesSheet,
    ".parquet": ParquetSheet,
}


class Export:
    """`with Export(path, replace=False) as export: export.write(messages)`.

    Leaving normally gives the file its name. When the journal turns out to be damaged, what came before the damage
    stays as `partial`; any other exception removes it.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        """Raises ExportImpossible; nothing has been made then."""
        if path.suffix.lower() not in SHEETS:
            raise ExportImpossible(f"cannot export to {path}: name the file .parquet, .csv or .jsonl")
        if not path.parent.is_dir():
            raise ExportImpossible(
                f"cannot export to {path}: the directory {path.parent} does not exist, make it first"
            )
        if path.is_dir() or (path.exists() and not replace):
            raise ExportImpossible(f"cannot export to {path}: it exists, choose another name or add --force")
        if path.suffix.lower() == ".parquet" and not is_there("pyarrow"):
            raise ExportImpossible(f"{wanting(*PARQUET)}, or export to .csv or .jsonl")
        self.path = path
        self.partial = path.with_name(path.name + ".part")
        self.written = 0
        self._sheet: Sheet
        self._rows: list[Row] = []
        self._bytes = 0

    def __enter__(self) -> Export:
        self._sheet = SHEETS[self.path.suffix.lower()](self.partial)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        whole = error is None
        try:
            if whole or isinstance(error, DamagedJournal):
                self._flush()
            self._sheet.close()
        except BaseException:
            self.partial.unlink(missing_ok=True)
            raise
        if whole:
            os.replace(self.partial, self.path)
        elif not isinstance(error, DamagedJournal):
            self.partial.unlink(missing_ok=True)

    def write(self, messages: Iterable[StoredMessage]) -> Iterable[int]:
        """Writes them all and yields how many, batch by batch."""
        for stored in messages:
            self._rows.append(row_of(stored))
            self._bytes += stored.entry.length
            if len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
                yield self._flush()
        yield self._flush()

    def _flush(self) -> int:
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            self._sheet.write(rows)
        self.written += len(rows)
        return len(rows)
