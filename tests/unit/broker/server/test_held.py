"""What holds the loop is told with its client or queue, and counted."""

from __future__ import annotations

from typing import Any

import pytest
from server_support import Lines, until

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.server import held
from clusterbroker.broker.server.counting import node_row
from clusterbroker.broker.server.held import Held
from clusterbroker.broker.server.log import NodeLog


def test_what_is_short_is_not_told() -> None:
    lines = Lines()
    seen = Held(NodeLog(lines, "debug"))
    seen.frame(held.HELD_MS - 1, "b")
    assert (seen.count, lines.lines) == (0, [])
    seen.frame(held.HELD_MS, "b")
    assert seen.count == 1
    assert lines.lines == [("warning", "loop.held", {"what": "frame", "took_ms": 100, "peer": "b"})]


def test_what_happens_to_the_cluster_is_measured_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    seen = Held(NodeLog(lines, "debug"))
    clock = iter((0, 99_999_999, 1_000_000_000, 1_100_000_000))
    monkeypatch.setattr(held.time, "monotonic_ns", lambda: next(clock))
    with seen.event("unlinked", peer="b"):
        pass
    assert (seen.count, lines.lines) == (0, [])
    with seen.event("wiring", command="FailNode", changes=10_000):
        pass
    monkeypatch.undo()
    assert seen.count == 1
    assert lines.lines == [
        ("warning", "loop.held", {"what": "wiring", "took_ms": 100, "command": "FailNode", "changes": 10_000})
    ]


async def test_reads_and_turns_name_who_held_the_loop(
    start: Any, connect: Any, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await start()
    peer = await connect(shell)
    await peer.open()
    peer.send(1, methods.QueueDeclare(queue="slow", durable=True))
    await peer.receive()
    monkeypatch.setattr(held, "HELD_MS", 0)
    peer.publish("slow", b"x")
    told = lambda what: [facts for _, event, facts in lines.lines if event == "loop.held" and facts["what"] == what]  # noqa: E731
    await until(lambda: any(facts.get("queue") == "slow" for facts in told("turn")))
    monkeypatch.undo()
    (facts, *_) = [facts for facts in told("turn") if "queue" in facts]
    assert facts["vhost"] == "/"
    assert facts["queue_ms"] <= facts["took_ms"] + 1
    (facts, *_) = told("read")
    assert facts["user"] == "guest"
    assert facts["peer"].startswith("127.0.0.1:")
    assert shell.held.count >= 2
    assert node_row(shell, 0, 0.0).loop_held == shell.held.count
