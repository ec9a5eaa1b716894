"""`clusterbroker pools places` and `pools watch`."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.pools import PlaceRow, PoolPlaceRow, PoolRow, TemplateRow
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.management.set_up import NODE, NOW_MS

ROOT = Path(__file__).resolve().parents[4]
MIB = 1 << 20
GONE = "its socket is gone: start its service"


@pytest.fixture(scope="module")
def pools(served: Any) -> Any:
    """`core` with three keys and two workers at this node, and `docker`, whose service is gone."""
    replica, must = served.place.replica, served.place.must
    told = []
    for name, template in (("core", "core"), ("boxes", "boxes")):
        (applied,) = served.place.apply(c.DeclarePool(vhost="/", name=name, template=template))
        pool = applied.result
        told.append(PoolRow(pool.pool_id, places={NODE: PoolPlaceRow(1024 * MIB, 512 * MIB, 2)}, version="v1"))
        if name == "core":
            epoch = replica.map.queue_by_id(pool.orphans).epoch
            known = {"pool_id": pool.pool_id, "epoch": epoch}
            must(c.RequireGroups(keys=("1", "2", "3"), **known))
            must(c.LaunchWorkers(workers=(("1", NODE, "v1"), ("2", NODE, "v1")), **known))
            for group in replica.map.pools.groups(pool.pool_id):
                row = rows.QueueRow(queue_id=group.queue_id, epoch=epoch, ready=int(group.key), head_ms=NOW_MS - 4000)
                served.place.tell(row)
    place = PlaceRow(
        {"core": TemplateRow("v1", "subprocess"), "boxes": TemplateRow("v1", "docker", suspended=GONE)},
        2048 * MIB, 300 * MIB, 2,
    )  # fmt: skip
    served.place.tell(rows.NodeRow(name=NODE, place=place, pools=tuple(told)))
    return served


def test_places_of_one_pool_and_of_all(pools: Any, here: Any, there: Any) -> None:
    said = here("pools", "places", "core").stdout.splitlines()
    assert said[0].split()[:7] == ["pool", "place", "state", "workers", "room", "promised", "free"]
    assert said[1].split()[:9] == ["core", NODE, "ready", "2", "1.0", "GiB", "512", "MiB", "512"]
    assert len(said) == 2
    rows_of_all = json.loads(there("pools", "places", "--json").stdout)
    assert [(row["pool"], row["state"], row["why"]) for row in rows_of_all] == [
        ("boxes", "suspended", GONE),
        ("core", "ready", ""),
    ]


def test_machines_are_for_those_who_may_see_nodes(pools: Any, there: Any) -> None:
    denied = there("pools", "places", "core", CLUSTERBROKER_USER="man", CLUSTERBROKER_PASSWORD="secret-pass")
    assert denied.exit_code != 0
    assert GONE not in denied.stdout + denied.stderr


def _watch(pools: Any, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "clusterbroker.broker.cli.main", "pools", "watch", *words),
        *("--data-dir", str(pools.directory), "--every", "0.1"),
    ]


def _as_in_a_terminal() -> None:
    """Shells start what stands before a `&` without SIGINT, and with it these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_line_of_json_each_time_until_ctrl_c(pools: Any) -> None:
    process = subprocess.Popen(
        _watch(pools, "core", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=_as_in_a_terminal,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(2):
        told = json.loads(process.stdout.readline())
        assert (told["pool"]["name"], told["pool"]["oldest_s"]) == ("core", 4)
        assert [group["key"] for group in told["groups"]["items"]] == ["3", "2", "1"], "most waiting ones first"
        assert len(told["workers"]["items"]) == 2
        assert [place["place"] for place in told["places"]] == [NODE]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("core",), ("core: running", "6 waiting, the oldest for 4 s", "3 keys", "2 workers", "core-req-3")),
        ((), ("pools", "core", "boxes", "places", GONE)),
    ],
)
def test_a_terminal_is_redrawn(pools: Any, words: tuple[str, ...], shown: tuple[str, ...]) -> None:
    own, terminal = pty.openpty()
    size = {"COLUMNS": "160", "LINES": "50", "TERM": "xterm"}
    process = subprocess.Popen(
        _watch(pools, *words), stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT, env=os.environ | size,
        preexec_fn=_as_in_a_terminal,
    )  # fmt: skip
    os.close(terminal)
    heard, end_s = b"", time.monotonic() + 30
    while (heard.count(shown[0].encode()) < 3 or b"\x1b[2K" not in heard) and time.monotonic() < end_s:
        if select.select([own], [], [], 0.5)[0]:
            heard += os.read(own, 1 << 16)
    process.send_signal(signal.SIGINT)
    while process.poll() is None and time.monotonic() < end_s:
        if select.select([own], [], [], 0.1)[0]:
            try:
                os.read(own, 1 << 16)
            except OSError:
                break
    os.close(own)
    assert process.wait(20) == 0
    for one in shown:
        assert one.encode() in heard, heard.decode()
