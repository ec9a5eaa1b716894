"""A deletion of a queue that has to be empty, and whose last messages are unacknowledged."""

from __future__ import annotations

import pytest

from tests.unit.broker.node.link_clients import Client
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import WHERE, others, owner, place, publish


@WHERE
@pytest.mark.parametrize("arrives", [False, True])
def test_what_was_handed_out_counts_if_it_has_to_be_settled(where: str, arrives: bool) -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    receiver, asking = Client(cluster, others(cluster)[0]), Client(cluster, place(cluster, where))
    receiver.consume()
    answers: list[tuple[str, int]] = []
    if arrives:
        publish(cluster, b"1")
        assert receiver.bodies() == [b"1"]
    else:
        cluster.unlink(owner(cluster).name, receiver.site.name)
        publish(cluster, b"1")
    now_ms = asking.site.now_ms
    asking.handle.begin_delete(False, True, now_ms, lambda *said: answers.append(said), if_settled=True)
    cluster.turn()
    cluster.relink()
    cluster.wait(500)
    assert answers == [("not empty", answers[0][1])]
    if not arrives:
        assert receiver.bodies() == [b"1"]
    receiver.ack(b"1")
    asking.handle.begin_delete(False, True, now_ms, lambda *said: answers.append(said), if_settled=True)
    cluster.turn()
    assert answers[1:] == [("", 0)]
