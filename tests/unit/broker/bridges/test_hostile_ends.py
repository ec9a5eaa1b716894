"""A bridge between ends that do what they should not: bounded, told in a line, and never over in silence."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clusterbroker.broker.bridges import queue_ledger, standing
from clusterbroker.broker.bridges.ledger import closed, framed, opened, window
from clusterbroker.broker.bridges.places import place
from clusterbroker.broker.bridges.shovel import bridge
from clusterbroker.broker.bridges.standing import Standing, Status
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.bridges.hostile import Hostile, content, frame, message

PATIENCE_S = 20.0


@asynccontextmanager
async def bridged(
    source: Hostile, destination: Hostile, content_max: int = 1 << 20, **more: Any
) -> AsyncIterator[tuple[Standing, Callable[[str], Any]]]:
    """A bridge that runs, and how to wait for one of its states."""
    said: dict[str, Any] = {"src-queue": "in", "dest-queue": "out", "reconnect-delay": 60, **more}
    async with source.listening(), destination.listening():
        value = {"src-uri": source.url, "dest-uri": destination.url, **said}
        states: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        def tell(state: str, status: Status) -> None:
            states.put_nowait((state, status.why))

        async def reached(state: str) -> str:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    now, why = await states.get()
                    if now == state:
                        assert "\n" not in why
                        return why
                    assert now not in ("waiting", "refused"), why

        one = Standing(bridge("/", "s", value), lambda where: where, tell, content_max)
        task = asyncio.ensure_future(one.run())
        try:
            yield one, reached
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_more_messages_than_were_asked_for_end_the_connection() -> None:
    source = Hostile(flood=message(1, b"a") + message(2, b"b"))
    async with bridged(source, Hostile(), **{"src-prefetch-count": 1}) as (_, reached):
        assert "more messages than the 1 that were asked for" in await reached("waiting")


async def test_a_message_that_is_too_large_is_refused_before_it_is_there() -> None:
    head = message(1, b"")
    body = struct.pack(">HHQH", 60, 0, 1 << 40, 0)
    source = Hostile(flood=head[: head.index(b"\xce\x02") + 1] + frame(2, body))
    async with bridged(source, Hostile()) as (_, reached):
        assert "are more than the 1048576 that are taken" in await reached("refused")


async def test_a_frame_that_is_larger_than_negotiated_is_none() -> None:
    source = Hostile(frame_max=8192, flood=frame(3, bytes(8192)))
    async with bridged(source, Hostile()) as (_, reached):
        assert "larger than was negotiated" in await reached("waiting")
    destination = Hostile(frame_max=8)
    async with bridged(Hostile(), destination) as (_, reached):
        assert "it offers frames of 8 bytes" in await reached("waiting")


async def test_answers_that_nobody_waits_for_end_the_connection() -> None:
    for answer in (m.BasicCancelOk("mover"), m.BasicQosOk()):
        source, destination = Hostile(), Hostile()
        async with bridged(source, destination) as (_, reached):
            await reached("running")
            source.say(answer, 1)
            source.say(answer, 1)  # the first may answer basic.qos
            assert "that nobody waits for" in await reached("waiting")
    destination = Hostile()
    async with bridged(Hostile(), destination) as (_, reached):
        await reached("running")
        destination.say(m.BasicAck(1 << 40), 1)
        assert "a confirm of what was not published" in await reached("waiting")


async def test_a_ledger_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ledger, "BYTES_MAX", 10_000)
    flood = b"".join(message(tag, bytes(1_000), "guest") for tag in range(1, 100))
    destination = Hostile("clusterbroker", count=1 << 31, flood=flood)
    async with bridged(Hostile(), destination) as (_, reached):
        assert "more records than a bridge writes: purge it" in await reached("refused")


async def test_what_others_write_into_a_ledger_is_read_over() -> None:
    """Without its user's name a record is nobody's; nor is the ledger of another bridge this one's."""
    others = framed(opened(b"other")) + framed(window(7, b"\0", bytes(8)))
    flood = message(1, b"rubbish") + message(2, others, "evil") + message(3, others, "guest")
    destination = Hostile("clusterbroker", count=3, flood=flood)
    async with bridged(Hostile(), destination) as (one, reached):
        await reached("running")
        assert one.status.counted
    acked = [(method.delivery_tag, method.multiple) for method in destination.heard if isinstance(method, m.BasicAck)]
    assert acked == [(1, False), (2, False), (3, True)]


async def test_a_ledger_whose_count_is_late_is_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer of a new name would move what is on its way a second time."""
    monkeypatch.setattr(queue_ledger, "AGAIN_S", 0.01)
    async with Hostile("clusterbroker").listening() as destination:
        mine = framed(opened(b"n/mine"))
        destination.flood = message(2, mine, "guest")
        got = m.BasicGetOk(delivery_tag=1, redelivered=False, exchange="", routing_key="q", message_count=0)
        destination.shows, destination.counts_later = frame(1, m.encode(got)) + content(mine, "guest"), 1
        ledger = await queue_ledger.QueueLedger.open(place(destination.url), "q", "n")
        await ledger.close()
    assert ledger.state.producer == b"n/mine"
    assert [method.delivery_tag for method in destination.heard if isinstance(method, m.BasicNack)] == [1]


async def test_an_empty_ledger_is_looked_at_twice_unless_it_was_made_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ledger, "AGAIN_S", 0.01)
    async with Hostile("clusterbroker").listening() as destination:
        for new, looks in ((False, 1), (True, 0)):
            destination.heard.clear()
            ledger = await queue_ledger.QueueLedger.open(place(destination.url), "q", "n", new=new)
            await ledger.close()
            assert ledger.state.producer.startswith(b"n/")
            assert sum(isinstance(method, m.BasicGet) for method in destination.heard) == looks


async def test_numbers_that_are_too_high_are_no_ledger() -> None:
    destination = Hostile("clusterbroker", count=1)
    source = Hostile()
    async with source.listening(), destination.listening():
        value = {"src-uri": source.url, "dest-uri": destination.url, "src-queue": "in", "dest-queue": "out"}
        one = Standing(bridge("/", "s", value), lambda where: where)
        mine = framed(opened(f"{one._ledger_name}/x".encode())) + framed(closed((1 << 64) - 1))
        destination.flood = message(1, mine, "guest")
        await asyncio.wait_for(one.run(), PATIENCE_S)
        assert (one.status.state, one.status.why) == ("refused", "its numbers are too high")


async def test_an_error_that_nobody_foresaw_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def broken(_self: Standing, _turn: int) -> None:
        nonlocal tries
        tries += 1
        raise TypeError("amqp://user:secret@host")

    monkeypatch.setattr(Standing, "_once", broken)
    monkeypatch.setattr(standing, "DELAY_S_MAX", 0.01)
    async with bridged(Hostile(), Hostile()) as (one, reached):
        why = await reached("waiting")
        assert "report it: TypeError at test_hostile_ends.py:" in why
        assert "secret" not in why
        async with asyncio.timeout(PATIENCE_S):
            while tries < 3:  # noqa: ASYNC110 - a condition with a deadline
                await asyncio.sleep(0.005)
        assert one.status.lost >= 2


async def test_a_destination_that_blocks_is_told() -> None:
    destination = Hostile()
    async with bridged(Hostile(), destination) as (_, reached):
        await reached("running")
        destination.say(m.ConnectionBlocked("low on disk"))
        why = await reached("blocked")
        assert why.endswith("takes nothing at the moment, and messages wait at the source: low on disk")
        destination.say(m.ConnectionUnblocked())
        assert await reached("running") == ""
