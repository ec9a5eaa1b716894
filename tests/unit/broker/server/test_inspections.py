"""Questions of clients about single messages: so many at once, others in turn, beyond that a refusal."""

from __future__ import annotations

from typing import Any

from server_support import until

from clusterbroker.broker.server.inspections import BUSY, CLIENTS_MAX, WAITING_MAX, Inspections
from clusterbroker.broker.stats.inspection import GONE, UNAVAILABLE, Request
from clusterbroker.broker.wire.amqp091 import methods


async def test_they_are_bounded_and_end_with_the_node(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    await peer.receive()
    request = Request(what="browse", queue_id=shell.node.map.queue("/", "q").queue_id)
    inspections, told = Inspections(shell, None), list[Any]()

    def tell(*answer: Any) -> None:
        told.append(answer)

    inspector = inspections.inspector
    async with inspector._turn:  # nobody gets on
        for _ in range(WAITING_MAX + 2):
            inspections.begin(request, tell)
        assert told == [(None, UNAVAILABLE, BUSY)] * 2
        await until(lambda: inspector._underway > 0)
        assert inspector._underway == CLIENTS_MAX
        inspections.close()
        await until(lambda: inspector._underway == 0)
    assert len(told) == 2, "who is gone hears nothing"
    inspections.begin(request, tell)
    inspections.begin(Request(what="browse", queue_id=999), tell)
    await until(lambda: len(told) == 4)
    answers = sorted(told[2:], key=lambda answer: answer[1])
    assert (answers[0][0].looked_at, answers[0][1:]) == (0, (0, ""))
    assert answers[1] == (None, GONE, "the queue is deleted")
