"""Segments that nobody commits, and producers that are silent, end by themselves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.server import upkeep
from broker.server.upkeep import Upkeep
from cluster import commands as c
from cluster.wiring_log import MemoryWiringLog
from tests.property.test_transaction_fold import staging


@pytest.mark.parametrize("leads", [None, True, False])
async def test_what_is_over_is_ended_by_who_leads(monkeypatch: pytest.MonkeyPatch, leads: bool | None) -> None:
    monkeypatch.setattr(upkeep, "EVERY_S", 0.001)
    wiring = MemoryWiringLog()
    wiring.propose(staging("txn.a", at_ms=1000))
    wiring.propose(staging("txn.b", at_ms=5000))
    wiring.propose(
        c.CommitTransaction(
            at_ms=5, vhost="/", producer="old", epoch=1, run="r", transactions=(), user="u", ttl_ms=3_600_000
        )
    )
    now_ms = 0
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    shell: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        storage=SimpleNamespace(wiring=wiring),
        cluster=None if leads is None else SimpleNamespace(raft=SimpleNamespace(is_leader=leads)),
        clock=SimpleNamespace(now_ms=lambda: now_ms),
        ended=ended,
    )
    looked = asyncio.Event()
    look = Upkeep._look

    def told(self: Upkeep) -> None:
        look(self)
        looked.set()

    monkeypatch.setattr(Upkeep, "_look", told)
    Upkeep(shell)

    async def left() -> tuple[list[str], list[str]]:
        looked.clear()
        await looked.wait()
        return [s.name for s in wiring.map.segments("/")], [p.name for p in wiring.map.producers("/")]

    now_ms = 10_999
    assert await left() == (["txn.a", "txn.b"], ["p", "old"])
    now_ms = 11_000
    assert await left() == (["txn.a", "txn.b"] if leads is False else ["txn.b"], ["p", "old"])
    now_ms = 3_600_005
    assert await left() == (["txn.a", "txn.b"] if leads is False else [], ["p", "old"] if leads is False else ["p"])
    ended.set_result(None)
