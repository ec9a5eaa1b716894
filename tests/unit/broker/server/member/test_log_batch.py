"""Lines about many queues do not hold the loop, come in their order, and are summed up when nobody would read them."""

from __future__ import annotations

import asyncio

from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.member.log_batch import LINES_A_TURN, LINES_EACH, LogBatch
from tests.unit.broker.server.server_support import Lines


async def test_a_few_lines_a_turn() -> None:
    lines = Lines()
    batch = LogBatch(asyncio.get_running_loop(), NodeLog(lines, "debug"))
    for number in range(10 * LINES_A_TURN):
        batch.add("owner.began", {"queue_id": number})
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
    batch.add("replica.damaged", {"queue_id": 0})
    assert lines.lines[-1] == ("error", "replica.damaged", {"queue_id": 0})


async def test_the_end_leaves_none() -> None:
    lines = Lines()
    batch = LogBatch(asyncio.get_running_loop(), NodeLog(lines, "debug"))
    for number in range(10 * LINES_A_TURN):
        batch.add("owner.began", {"queue_id": number})
    batch.rest()
    assert len(lines.lines) == 10 * LINES_A_TURN + 1
    assert lines.events()[-1] == "log.summed_up"
    await asyncio.sleep(0)
    batch.add("owner.ended", {"queue_id": 1})
    await asyncio.sleep(0)
    assert lines.events()[-1] == "owner.ended"


async def test_thousands_are_summed_up() -> None:
    """One kill of a member with 7,800 queues made 27,000 lines."""
    lines = Lines()
    batch = LogBatch(asyncio.get_running_loop(), NodeLog(lines, "info"))
    for number in range(1000):
        batch.add("owner.began", {"queue_id": number})
        batch.add("owner.hand_over_failed", {"queue_id": number})
        batch.add("replica.damaged", {"queue_id": number})
    batch.add("owner.ended", {"queue_id": 1})
    batch.rest()
    events = lines.events()
    assert [events.count(event) for event in ("owner.began", "owner.hand_over_failed")] == [LINES_EACH, LINES_EACH]
    assert events.count("replica.damaged") == 1000, "an error is told, however many there are"
    assert events.count("owner.ended") == 1
    sums = [(level, facts["of"], facts["count"]) for level, event, facts in lines.lines if event == "log.summed_up"]
    rest = 1000 - LINES_EACH
    assert sums == [("info", "owner.began", rest), ("warning", "owner.hand_over_failed", rest)]
    await asyncio.sleep(0)  # the next turn, and the next window
    batch.add("owner.began", {"queue_id": 5})
    assert lines.lines[-1] == ("info", "owner.began", {"queue_id": 5})
    batch.rest()
