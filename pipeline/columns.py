"""The sink's columns: their names, the types that they may have, and the property of the message that each becomes.

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
"""Name to the types that it may have."""


def check(columns: Iterable[tuple[str, str]], ignore_unknown: bool) -> tuple[str, ...]:
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
        if _plain(kind) not in allowed:
            raise BadColumns(f"column '{name}' has type {kind}: cast it to {' or '.join(allowed)}")
        if name in wanted:
            raise BadColumns(f"column '{name}' is there twice: drop or rename one")
        wanted.append(name)
    if "value" not in wanted:
        raise BadColumns("column 'value' is missing: it is the body of each message (binary or string)")
    return tuple(wanted)


def _plain(kind: str) -> str:
    """Without what does not matter: collations of strings."""
    return "string" if kind.startswith("string collate") else kind
