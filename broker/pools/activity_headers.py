"""Headers of workers' reports: names, and how a text is read, whoever wrote it."""

from __future__ import annotations

from typing import Final

EVENT: Final = "x-event"
WORKER: Final = "x-worker-id"


def text_of(value: object) -> str:
    """Of a header; empty: it is no text."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value if isinstance(value, str) else ""
