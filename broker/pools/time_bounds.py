"""Bounds of the durations that pools count (`times`)."""

from __future__ import annotations

from typing import Final

BOUNDS_MS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
)  # fmt: skip
