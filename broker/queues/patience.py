"""How long a message of a busy queue may wait for its acknowledgement before it is written: most come before."""

from __future__ import annotations

from typing import Final

PATIENCE_MS: Final = 10
"""Only while much is published."""


class Patience:
    """Of one queue: which of its messages are younger than PATIENCE_MS."""

    __slots__ = ("_ripe_seq", "_young_ms", "_young_seq")

    def __init__(self, now_ms: int) -> None:
        self._young_seq, self._young_ms = 1, now_ms  # a seq, and when it was the next one
        self._ripe_seq = 1  # all below it are older than PATIENCE_MS

    def ripe(self, next_seq: int, now_ms: int) -> int:
        """A seq below which all are PATIENCE_MS old or older; `next_seq` is the one that comes next."""
        if now_ms - self._young_ms >= PATIENCE_MS:
            self._ripe_seq = self._young_seq
            self._young_seq, self._young_ms = next_seq, now_ms
        return self._ripe_seq
