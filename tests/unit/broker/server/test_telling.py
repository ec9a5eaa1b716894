"""Lines about many queues do not hold the loop, come in their order, and all of them."""

from __future__ import annotations

import asyncio

from broker.server.log import NodeLog
from broker.server.telling import LINES_A_TURN, Telling
from tests.unit.broker.server.server_support import Lines


async def test_a_few_lines_a_turn() -> None:
    lines = Lines()
    telling = Telling(asyncio.get_running_loop(), NodeLog(lines, "info"))
    for number in range(10 * LINES_A_TURN):
        telling.tell("owner.began", {"queue_id": number})
    turns, written = 0, len(lines.lines)
    assert written == LINES_A_TURN, "few are told before anything else happens"
    while len(lines.lines) < 10 * LINES_A_TURN:
        await asyncio.sleep(0)
        turns += 1
        assert len(lines.lines) - written <= LINES_A_TURN
        written = len(lines.lines)
    assert turns >= 9
    assert [facts["queue_id"] for _, _, facts in lines.lines] == list(range(10 * LINES_A_TURN))
    await asyncio.sleep(0)
    telling.tell("replica.damaged", {"queue_id": 0})
    assert lines.lines[-1] == ("error", "replica.damaged", {"queue_id": 0})


async def test_the_end_leaves_none() -> None:
    lines = Lines()
    telling = Telling(asyncio.get_running_loop(), NodeLog(lines, "info"))
    for number in range(10 * LINES_A_TURN):
        telling.tell("owner.began", {"queue_id": number})
    telling.rest()
    assert len(lines.lines) == 10 * LINES_A_TURN
    await asyncio.sleep(0)
    telling.tell("owner.ended", {"queue_id": 1})
    await asyncio.sleep(0)
    assert lines.events()[-1] == "owner.ended"
