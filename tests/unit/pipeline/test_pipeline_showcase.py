"""The showcase's parts that need neither Spark nor nodes: its input, its verdict, its picture."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.pipeline.showcase.plot import draw, rates, steps
from clusterbroker.pipeline.showcase.readings import BEGIN, HOURS, REGIONS, files
from clusterbroker.pipeline.showcase.watch import Sample

ROWS = 20_000


def lines(seed: int) -> list[str]:
    return [line for text in files(seed, ROWS, 3_000) for line in text.splitlines()]


def test_the_same_seed_makes_the_same_files() -> None:
    once, again, other = (list(files(seed, 5_000, 750)) for seed in (7, 7, 8))
    assert once == again != other
    assert [text.count("\n") for text in once] == [750] * 6 + [500]


def test_what_the_readings_are_like() -> None:
    good: list[dict[str, Any]] = []
    broken = 0
    for line in lines(1):
        try:
            said = json.loads(line)
            assert said["wh"] >= 0
            datetime.fromisoformat(said["at"])
        except (ValueError, AssertionError):
            broken += 1
        else:
            good.append(said)
    assert 0.003 < broken / ROWS < 0.008
    ids = Counter(said["id"] for said in good)
    assert 0.005 < sum(count - 1 for count in ids.values()) / ROWS < 0.015
    devices = Counter(said["device"] for said in good)
    assert sum(count for _, count in devices.most_common(10)) > ROWS / 4, "few devices send most of them"
    assert {said["region"] for said in good} == set(REGIONS)
    times = [datetime.fromisoformat(said["at"]) for said in good]
    assert min(times) < BEGIN < max(times) < BEGIN + timedelta(hours=HOURS)
    assert len({at.date() for at in times}) == 2
    late = sum(later < before - timedelta(minutes=1) for before, later in pairwise(times))
    assert 0.02 < late / ROWS < 0.05


def samples() -> list[Sample]:
    return [Sample(at / 4, at * 25, at * 20, at * 10, 0) for at in range(1, 41)]


def test_rates_are_those_of_the_counts() -> None:
    found = rates(samples(), "fed")
    assert [at for at, _ in found] == [second + 0.5 for second in range(10)]
    assert found[1:] == [(second + 0.5, 100.0) for second in range(1, 10)]
    assert {rate for _, rate in rates(samples(), "filed")} == {0.0}


def test_bins_of_the_same_height_are_one_step() -> None:
    assert steps([(0.5, 0.0), (1.5, 0.0), (2.5, 7.0), (3.5, 7.0), (4.5, 0.0)], 1.0) == ([0.0, 7.0, 0.0], [0, 2, 4, 5])
    assert steps([(1.0, 5.0)], 2.0) == ([5.0], [0.0, 2.0])
    assert steps([], 1.0) == ([0.0], [0.0, 1.0])


@pytest.mark.long
def test_a_picture_of_a_long_run_is_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    long = [Sample(at / 4, at * at, at * at, at * at, at * at) for at in range(4 * 3600)]
    draw(long, {"driver": 900.0}, "an hour", tmp_path / "rates.svg")
    assert (tmp_path / "rates.svg").stat().st_size < 60_000


@pytest.mark.long
def test_a_picture_with_the_kills(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "rates.svg"
    draw(samples(), {"driver": 3.0, "owner of the archive (a)": 6.0}, "a title", picture)
    text = picture.read_text()
    assert all(word in text for word in ("a title", "driver", "owner of the archive (a)", "in Parquet"))
    draw(samples(), {}, "a title", tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "change, guarantee, said",
    [
        ({}, "exactly-once", []),
        ({"missing": 1}, "at-least-once", ["1 readings are missing in the archive"]),
        ({"surplus": 2}, "exactly-once", ["2 rows too many are in the archive"]),
        ({"surplus": 2}, "at-least-once", []),
        ({"alarms": 4}, "exactly-once", ["3 alarms came, 4 were sent"]),
        ({"totals": {"north": 6}}, "exactly-once", ["the totals differ"]),
        ({"malformed": 1}, "exactly-once", ["2 malformed lines came, 1 were sent"]),
        ({"malformed": 3}, "at-least-once", ["2 malformed lines came, 3 were sent"]),
    ],
)
def test_the_verdict(change: dict[str, Any], guarantee: str, said: list[str]) -> None:
    pytest.importorskip("aio_pika")
    from clusterbroker.pipeline.showcase.__main__ import verdict

    taking: Any = SimpleNamespace(alarms={"a", "b", "c"}, totals=Counter(north=5), malformed=2)
    result = {"missing": 0, "surplus": 0, "alarms": 3, "totals": {"north": 5}, "malformed": 2, **change}
    assert verdict(result, taking, guarantee) == said


def test_consumers_tell_what_was_redelivered_from_what_came_twice() -> None:
    pytest.importorskip("aio_pika")
    from clusterbroker.pipeline.showcase.consumers import Consumers

    taking = Consumers("localhost")
    result = {"readings": 1, "alarms": 0, "malformed": 2}

    def come(body: bytes, redelivered: bool) -> None:
        taking._broken(SimpleNamespace(body=body, redelivered=redelivered))

    come(b"a", False)
    come(b"b", True)
    assert (taking.malformed, taking.again) == (2, 0), "the first delivery of b was never heard"
    come(b"a", True)
    assert (taking.malformed, taking.again) == (2, 1)
    assert not taking.have(result)
    taking._total(SimpleNamespace(message_id="r1", body=b'{"region": "north", "wh": 5}'))
    assert taking.have(result)
    come(b"a", False)
    assert taking.malformed == 3, "published twice: the verdict must hear of it"
