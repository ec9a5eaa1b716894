"""The columns of sink and sources: names, the types that they may have, and what of the message each of them is.

Types are Spark's simple names ("string", "map<string,string>"), as `StructField.dataType.simpleString()` tells them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final


class BadColumns(ValueError):
    """A frame that cannot be written; the text says which column is wrong, and what to do."""


_TEXT: Final = ("string",)
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "routing_key": _TEXT,
    "exchange": _TEXT,
    "headers": ("map<string,string>",),
    "message_id": _TEXT,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "type": _TEXT,
    "app_id": _TEXT,
    "priority": _WHOLE,
    "expiration": (*_TEXT, *_WHOLE),
    "timestamp": ("timestamp", "timestamp_ntz", *_WHOLE),
}
"""Of the sink: name to the types that it may have."""

SOURCE: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "queue": _TEXT,
    "offset": ("bigint",),
    "enqueued_at": ("timestamp",),
    "redelivered": ("boolean",),
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "headers": ("map<string,string>",),
    "message_id": _TEXT,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "type": _TEXT,
    "app_id": _TEXT,
    "user_id": _TEXT,
    "priority": ("int",),
    "expiration": _TEXT,
    "timestamp": ("timestamp",),
}
"""Of the sources: name to the types that it may be read as, the usual one first."""


def check(
    columns: Iterable[tuple[str, str]], ignore_unknown: bool, message_format: str = "raw", rows_per_message: int = 1
) -> tuple[str, ...]:
    """The names of the columns to write, in the order of the frame, out of (name, type). Raises BadColumns."""
    wanted = []
    for name, kind in columns:
        allowed = COLUMNS.get(name)
        if allowed is None:
            if ignore_unknown:
                continue
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean '{near[0]}'? Else" if near else "It is none of the sink's:"
            raise BadColumns(
                f"unknown column '{name}'. {hint} drop it, put it into the column 'value', or set "
                f"ignoreUnknownColumns to true. The sink's columns are {', '.join(COLUMNS)}"
            )
        if name == "value" and message_format == "arrow" and kind.startswith("struct<"):
            kind = allowed[0]
        if _plain(kind) not in allowed:
            hint = ". A struct needs messageFormat arrow, or to_json()" if kind.startswith("struct<") else ""
            raise BadColumns(f"column '{name}' has type {kind}: cast it to {' or '.join(allowed)}{hint}")
        if name in wanted:
            raise BadColumns(f"column '{name}' is there twice: drop or rename one")
        if name == "message_id" and rows_per_message > 1:
            raise BadColumns(
                "column 'message_id' is of each row, and rowsPerMessage puts many into one message: put it into the "
                "column 'value', or set rowsPerMessage to 1"
            )
        wanted.append(name)
    if "value" not in wanted:
        raise BadColumns("column 'value' is missing: it is the body of each message (binary or string)")
    return tuple(wanted)


def schema(with_headers: bool) -> str:
    """All columns of a source, as Spark reads a schema."""
    return ", ".join(f"{name} {kinds[0]}" for name, kinds in SOURCE.items() if with_headers or name != "headers")


def check_source(columns: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The names of the columns to read, in the order of the schema, out of (name, type). Raises BadColumns."""
    wanted = []
    for name, kind in columns:
        allowed = SOURCE.get(name)
        if allowed is None:
            near = difflib.get_close_matches(name, SOURCE, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise BadColumns(f"unknown column '{name}': {hint}The source's columns are {', '.join(SOURCE)}")
        if _plain(kind) not in allowed:
            raise BadColumns(f"column '{name}' has type {kind} in the schema: it is read as {' or '.join(allowed)}")
        if name in wanted:
            raise BadColumns(f"column '{name}' is there twice in the schema: name it once")
        wanted.append(name)
    if not wanted:
        raise BadColumns("the schema has no column: name one at least, such as 'offset bigint' to count messages")
    return tuple(wanted)


def _plain(kind: str) -> str:
    """Without what does not matter: collations of strings."""
    return "string" if kind.startswith("string collate") else kind
