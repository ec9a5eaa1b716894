"""The showcase: what its job does with rows, and all of it with its kills."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.pipeline.showcase.readings import files
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_a_reading_and_what_is_not(spark: Any, tmp_path: Path) -> None:
    from clusterbroker.pipeline.showcase.frames import malformed_messages, reading_messages, valid

    good = {"id": "r1", "device": "d", "region": "north", "at": "2026-03-01T22:00:00.5Z", "wh": 5, "volts": 230.0}
    lines = [
        good, {**good, "id": "r2", "volts": 200.0}, {**good, "wh": -1}, {**good, "wh": 100_001},
        {**good, "region": "up"},
        {**good, "at": "yesterday"}, {**good, "id": None}, {"id": "r9"}, [1],
    ]  # fmt: skip
    texts = [*(json.dumps(line) for line in lines), json.dumps(good)[:40], "", "no JSON"]
    frame = spark.createDataFrame([(text,) for text in texts], "value string")
    found = reading_messages(valid(frame)).selectExpr("routing_key", "message_id").collect()
    assert sorted(tuple(row) for row in found) == [("north.alarm", "r2"), ("north.ok", "r1")]
    assert sorted(row.value for row in malformed_messages(frame).collect()) == sorted(texts[2:])


def test_every_line_is_one_or_the_other(spark: Any, tmp_path: Path) -> None:
    from clusterbroker.pipeline.showcase.frames import malformed_messages, valid

    for number, text in enumerate(files(3, 5_000, 1_000)):
        (tmp_path / f"{number}.json").write_text(text)
    lines = spark.read.text(str(tmp_path))
    assert valid(lines).count() + malformed_messages(lines).count() == 5_000


@pytest.mark.faults
@pytest.mark.parametrize(
    "rows",
    [
        6_000,
        pytest.param(
            100_000,
            marks=pytest.mark.skipif("SHOWCASE_WHOLE" not in os.environ, reason="takes minutes: SHOWCASE_WHOLE=1"),
        ),
    ],
)
@pytest.mark.timeout(1200)
def test_all_of_it_with_both_kills(rows: int, tmp_path: Path) -> None:
    pytest.importorskip("aio_pika")
    words = ["--rows", str(rows), "--directory", str(tmp_path / "run"), "--plot", str(tmp_path / "rates.svg")]
    done = processes.run(
        [sys.executable, "-m", "clusterbroker.pipeline.showcase", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 missing, 0 surplus after 2 kills" in done.stdout.splitlines()[-1]
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()[:-1] if "picture:" not in line) <= 80
