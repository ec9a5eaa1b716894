"""The specification of `journal.due_index`: a sorted list of (due time, seq)."""

from __future__ import annotations

from bisect import bisect_right, insort

VOIDS_LEAST = 1024


class DueIndex:
    """Messages that wait."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.voids: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def first_ms(self) -> int:
        return self.rows[0][0] if self.rows else -1

    def reserve(self, _: int) -> None:
        """Of memory alone."""

    def add(self, due_ms: int, seq: int) -> None:
        insort(self.rows, (due_ms, seq))

    def take(self, now_ms: int, most: int) -> list[int]:
        end = min(most, bisect_right(self.rows, now_ms, key=lambda row: row[0]))
        taken, self.rows = self.rows[:end], self.rows[end:]
        return [seq for _, seq in taken]

    def clear(self) -> None:
        self.rows = []
        self.voids = []

    def void(self, seq: int) -> None:
        self.voids.append(seq)
        if len(self.voids) >= VOIDS_LEAST and len(self.voids) >= len(self.rows) // 4:
            gone = set(self.voids)
            self.rows = [row for row in self.rows if row[1] not in gone]
            self.voids = []

    def within(self, first_ms: int, last_ms: int, most: int) -> list[tuple[int, int]]:
        return [row for row in self.rows if first_ms <= row[0] <= last_ms][:most]
