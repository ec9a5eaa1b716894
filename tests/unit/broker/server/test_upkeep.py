"""Segments that nobody commits, and producers that are silent, end by themselves; by the log's age, and no clock's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from server_support import Lines, options, until

from clusterbroker.broker.node.alerts import Alerts
from clusterbroker.broker.node.log import Silence
from clusterbroker.broker.node.log_clock import LogClock
from clusterbroker.broker.server import upkeep
from clusterbroker.broker.server.clock import Clock
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.server.upkeep import AHEAD, DIFFERS, Upkeep
from clusterbroker.cluster.liveness.clocks import Clocks
from clusterbroker.cluster.liveness.steady import steady
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring_log import MemoryWiringLog
from tests.property.test_transaction_fold import staging

HOUR, MONTH = 3_600_000, 31 * 86_400_000
NOW = 1_800_000_000_000


class Place:
    """What Upkeep sees of a node: its clocks go as the test says."""

    def __init__(self, wiring: MemoryWiringLog, leads: bool | None) -> None:
        self.monotonic_ms, self.wall_ms, self.own_ms = 5_000, NOW, NOW
        self.clocks = Clocks()
        heart = SimpleNamespace(clocks=self.clocks, clocks_ahead_ms=lambda: self.clocks.ahead_ms(steady()))
        cluster = SimpleNamespace(raft=SimpleNamespace(is_leader=leads), heart=heart)
        self.delays: list[float] = []
        self.alerts = Alerts(Silence(), lambda: NOW)
        self.log_clock = LogClock()
        shell: Any = SimpleNamespace(
            loop=SimpleNamespace(call_later=lambda delay_s, _: self.delays.append(delay_s)),
            storage=SimpleNamespace(wiring=wiring),
            cluster=None if leads is None else cluster,
            clock=SimpleNamespace(
                now_ms=lambda: self.own_ms, wall_ms=lambda: self.wall_ms, monotonic_ms=lambda: self.monotonic_ms
            ),
            node=SimpleNamespace(alerts=self.alerts, log_clock=self.log_clock),
            options=SimpleNamespace(node=SimpleNamespace(name="a")),
            ended=asyncio.get_running_loop().create_future(),
        )
        self.expiry = Upkeep(shell)

    def look(self, later_ms: int) -> None:
        self.monotonic_ms += later_ms
        self.wall_ms += later_ms
        self.own_ms += later_ms
        self.expiry._look()


def wired() -> MemoryWiringLog:
    wiring = MemoryWiringLog()
    wiring.propose(staging("txn.a", lived_ms=1000))
    wiring.propose(staging("txn.b", lived_ms=5000))
    wiring.propose(
        c.CommitTransaction(vhost="/", producer="old", epoch=1, run="r", transactions=(), user="u", ttl_ms=HOUR)
    )
    return wiring


def left(wiring: MemoryWiringLog) -> tuple[list[str], list[str]]:
    return [s.name for s in wiring.map.segments("/")], [p.name for p in wiring.map.producers("/")]


@pytest.mark.parametrize("leads", [None, True, False])
async def test_what_is_over_is_ended_by_who_leads(leads: bool | None) -> None:
    wiring = wired()
    place = Place(wiring, leads)
    place.look(10_998)  # its first word was that the log is 1 ms old
    assert left(wiring) == (["txn.a", "txn.b"], ["p", "old"])
    place.look(2)
    assert left(wiring) == (["txn.a", "txn.b"] if leads is False else ["txn.b"], ["p", "old"])
    place.look(HOUR)
    assert left(wiring)[1] == (["p", "old"] if leads is False else ["p"])
    place.look(MONTH)
    place.look(1)  # who had segments goes after them
    assert left(wiring) == ((["txn.a", "txn.b"], ["p", "old"]) if leads is False else ([], []))


async def test_who_is_far_from_the_others_ends_nothing_and_says_so() -> None:
    wiring = wired()
    place = Place(wiring, True)
    assert place.delays == [upkeep.SOON_S], "nobody was heard yet"
    for name in "bc":
        place.clocks.heard(name, -MONTH, steady())
    place.look(2 * HOUR)
    assert left(wiring) == (["txn.a", "txn.b"], ["p", "old"])
    assert place.log_clock.doubted
    assert not place.alerts.holds(DIFFERS, "a"), "perhaps more are heard yet"
    assert place.delays[-1] == upkeep.SOON_S
    place.look(1000)
    assert place.alerts.holds(DIFFERS, "a")
    assert "31.0 days ahead" in next(iter(place.alerts)).text
    assert place.delays[-1] == upkeep.EVERY_S
    for name in "bc":
        place.clocks.heard(name, 1000, steady())
    place.look(1)
    assert not place.log_clock.doubted
    assert not place.alerts.holds(DIFFERS, "a")
    assert left(wiring)[0] == []


async def test_a_machine_whose_clock_was_set_wrong_is_told_of_too() -> None:
    """The node's own time follows slowly, so it is right for a while."""
    place = Place(wired(), True)
    for name in "bc":
        place.clocks.heard(name, 0, steady())
    place.wall_ms -= HOUR
    place.look(1)
    place.look(1)
    assert place.alerts.holds(DIFFERS, "a")


async def test_a_wall_clock_far_ahead_of_the_log_is_told_of() -> None:
    wiring = wired()
    Place(wiring, None)
    place = Place(wiring, None)
    assert not place.alerts.holds(AHEAD, "a")
    place.wall_ms += MONTH
    place.look(1)
    assert place.alerts.holds(AHEAD, "a")
    place.wall_ms -= MONTH
    place.look(1)
    assert not place.alerts.holds(AHEAD, "a")


async def test_a_wrong_clock_at_a_start_forgets_no_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings, p7: a month ahead for one start, right again in the next; a batch is repeated and published once."""
    monkeypatch.setattr(upkeep, "EVERY_S", 0.005)
    looked = [0]
    look = Upkeep._look

    def counted(self: Upkeep) -> None:
        look(self)
        looked[0] += 1

    monkeypatch.setattr(Upkeep, "_look", counted)
    lines = Lines()

    async def life(ahead_ms: int, then: Callable[[NodeShell], Any]) -> Any:
        shell = NodeShell(options(data_dir=tmp_path), NodeLog(lines, "debug"))
        shell.clock = Clock(lambda: time.time_ns() + ahead_ms * 1_000_000)
        await shell.start()
        try:
            result = await then(shell)
            seen = looked[0]
            await until(lambda: looked[0] > seen + 3)
            return result
        finally:
            await shell.stop()

    def commit(shell: NodeShell) -> Any:
        fields = {"vhost": "/", "producer": "job", "epoch": 17, "run": "r", "transactions": (), "user": "guest"}
        return shell.propose(c.CommitTransaction(at_ms=shell.clock.now_ms(), **fields))

    async def nothing(_: NodeShell) -> None:
        pass

    assert (await life(0, commit)).result.outcome == "committed"
    await life(MONTH, nothing)
    assert ("warning", "alert.raised", AHEAD) in [
        (level, event, facts.get("alert")) for level, event, facts in lines.lines
    ]
    assert (await life(0, commit)).result.outcome == "already"
