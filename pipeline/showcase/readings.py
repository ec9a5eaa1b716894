"""The input: readings of electricity meters as lines of JSON, made up from a seed. Pure.

Few devices send most of the readings (Zipf). One in thirty is late by up to 40 minutes, one in a hundred comes twice,
one in two hundred is no reading: cut off, or with a value that cannot be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

REGIONS: Final = ("north", "east", "south", "west")
DEVICES: Final = 1_000
BEGIN: Final = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
HOURS: Final = 4
"""So long the readings go on, over a midnight."""
VOLTS: Final = (207.0, 253.0)
"""Outside of this it is an alarm."""
WH_MAX: Final = 100_000
TWICE, BROKEN, LATE, ALARM = 0.01, 0.005, 0.03, 0.01
REMEMBERED: Final = 5_000
"""A line comes again within so many."""


def files(seed: int, rows: int, rows_per_file: int) -> Iterator[str]:
    """The text of one file after the other, `rows` lines in all."""
    lines = _lines(random.Random(seed), rows)  # noqa: S311 - made up, and not to be guessed at
    while text := "".join(line + "\n" for _, line in zip(range(rows_per_file), lines, strict=False)):
        yield text


def _lines(chance: random.Random, rows: int) -> Iterator[str]:
    weights = [1 / (rank + 1) for rank in range(DEVICES)]
    devices = chance.choices(range(DEVICES), weights, k=rows)
    recent: list[str] = []
    for number, device in enumerate(devices):
        if recent and chance.random() < TWICE:
            yield chance.choice(recent)
            continue
        line = _reading(chance, number, device, rows)
        if chance.random() < BROKEN:
            yield _broken(chance, line)
            continue
        recent.append(line)
        if len(recent) > REMEMBERED:
            recent = recent[REMEMBERED // 2 :]
        yield line


def _reading(chance: random.Random, number: int, device: int, rows: int) -> str:
    at = BEGIN + timedelta(hours=HOURS) * number / rows
    if chance.random() < LATE:
        at -= timedelta(minutes=40) * chance.random()
    low, high = VOLTS
    volts = chance.uniform(low + 1, high - 1) if chance.random() >= ALARM else chance.choice((low - 5, high + 5))
    return json.dumps({
        "id": f"r{number:09d}",
        "device": f"meter-{device:04d}",
        "region": REGIONS[device % len(REGIONS)],
        "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "wh": chance.randint(0, 2_000),
        "volts": round(volts, 1),
    })  # fmt: skip


def _broken(chance: random.Random, line: str) -> str:
    kind = chance.randrange(3)
    if kind == 0:
        return line[: len(line) // 3]
    if kind == 1:
        return json.dumps({**json.loads(line), "wh": -1})
    return json.dumps({**json.loads(line), "at": "yesterday"})
