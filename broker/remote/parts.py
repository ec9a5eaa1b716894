"""Frames of several parts with their payloads one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbroker.replication.errors import BadMessage


def check_parts(parts: Sequence[tuple[int, ...]], payload: memoryview) -> None:
    """Raises BadMessage unless the parts, whose last numbers are their sizes in bytes, fill the payload."""
    whole = sum(part[-1] for part in parts)
    if whole != len(payload):
        raise BadMessage(f"parts of {whole} bytes in a payload of {len(payload)}")
