"""Sequences of events that once broke a promise of the cluster, each as short as it could be made."""

from __future__ import annotations

import pytest

from broker.node.hub import ROUNDS_MAX, Hub
from broker.proxy.messages import Answer, Ask


def test_a_node_may_say_very_much_to_itself_in_one_turn() -> None:
    """Many consumers of one client, or a failover of many queues: a frame each, and an answer to each."""
    hub = Hub("a", lambda: 1)
    heard: list[int] = []
    hub.handlers[Ask] = lambda _peer, ask, _: hub.send("a", Answer(1, 1, ask.request)) and None
    hub.handlers[Answer] = lambda _peer, answer, _: heard.append(answer.request)
    for request in range(ROUNDS_MAX + 1):
        hub.send("a", Ask(1, 1, 1, request, 0, False, False))
    assert hub.turn()
    assert heard == list(range(ROUNDS_MAX + 1))


def test_a_node_that_answers_itself_for_ever_is_stopped() -> None:
    hub = Hub("a", lambda: 1)
    hub.handlers[Ask] = lambda _peer, ask, _: hub.send("a", ask) and None
    hub.send("a", Ask(1, 1, 1, 1, 0, False, False))
    with pytest.raises(AssertionError, match="comes to an end"):
        hub.turn()
