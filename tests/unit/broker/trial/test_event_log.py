"""Nodes' logs read back, in both formats, as the node's own log writes them."""

from __future__ import annotations

import pytest

from clusterbroker.broker.server.log import NodeLog, structured
from clusterbroker.broker.trial.event_log import OWNER_BEGAN, read


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_a_node_writes_is_read(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = NodeLog(structured(form))
    log.emit("info", "node.ready", name="a")
    log.emit("info", OWNER_BEGAN, queue="my queue", vhost="/", queue_id=12, epoch=3, node="a", incarnation=2)
    log.emit("info", "owner.ended", queue="q", vhost="/", queue_id=12, epoch=3, node="a", incarnation=2)
    lines = list(read(capsys.readouterr().err.splitlines()))
    assert [line.event for line in lines] == ["owner.began", "owner.ended"]
    facts = lines[0]
    assert (facts.number("queue_id"), facts.number("epoch"), facts.number("incarnation")) == (12, 3, 2)
    assert (facts.facts["queue"], facts.facts["vhost"], facts.facts["node"]) == ("my queue", "/", "a")
    assert facts.number("missing") == -1
    assert lines[0].at_s <= lines[1].at_s


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "owner.began", "timestamp": "2026-11-21T13:0',
        '{"event": "owner.began"}',
        "[owner.began]",
        "2026-11-21T13:00:00Z [info     ] something owner.began",
        "not a time [info     ] owner.began epoch=1",
        "",
    ],
)
def test_anything_else_is_passed_over(text: str) -> None:
    assert list(read([text])) == []
