"""Keys whose starts fail, and a controller that is lost meanwhile."""

from __future__ import annotations

import pytest

from clusterbroker.broker.node.pool_desk import FAILURES_MAX
from clusterbroker.broker.pools.messages import PlaceTold, StartsFail, TemplateTold
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.node.node_cluster import Cluster


class Failing(Cluster):
    """Three nodes; the controller has told that starts of key 42 fail for a minute."""

    def __init__(self) -> None:
        super().__init__("a", "b", "c")
        for site in self.running:
            site.node.pool_desk.tell_place(PlaceTold({"core": TemplateTold("v1", "subprocess")}))
        self.order(c.DeclarePool(vhost="/", name="core", template="core"))
        self.wait(500)
        self.first = self.queue("core-orphan").owner
        (pool,) = self["a"].map.pools.all()
        self.pool_id = pool.pool_id
        self[self.first].node.pool_desk.tell_failure(StartsFail(self.pool_id, "42", 60_000, "exit status 70"))
        self.wait(500)

    def lose_controller(self) -> None:
        self.kill(self.first)
        self.wait(8000, step_ms=200)
        assert self.queue("core-orphan").owner not in (None, self.first)
        client = self.running[0].client()
        for key in ("42", "43"):
            client.publish("core", key)

    def launched(self) -> list[str]:
        return sorted(launch.key for launch in self.running[0].map.pools.launches(self.pool_id))


def test_the_next_controller_starts_no_key_that_fails_before_its_time() -> None:
    cluster = Failing()
    cluster.lose_controller()
    cluster.wait(40_000, step_ms=500)
    assert cluster.launched() == ["43"]
    cluster.wait(15_000, step_ms=500)
    assert cluster.launched() == ["42", "43"], "a trial start"


def test_more_failing_keys_than_are_remembered_cost_the_oldest_alone() -> None:
    desk, pool_id = World().node.pool_desk, 7
    for number in (*range(FAILURES_MAX), 0, FAILURES_MAX):
        desk.tell_failure(StartsFail(pool_id, str(number), 60_000, ""))
    keys = [key for key, _, _ in desk.failed(pool_id)]
    assert keys == [*map(str, range(2, FAILURES_MAX)), "0", str(FAILURES_MAX)]


@pytest.mark.parametrize("word", ["retry", "start", "pin", "stop"])
def test_all_nodes_know_an_operator_s_word(word: str) -> None:
    cluster = Failing()
    cluster.order(c.RequireGroups(pool_id=cluster.pool_id, epoch=cluster.queue("core-orphan").epoch, keys=("42",)))
    cluster.wait(200)
    cluster.order(c.DirectGroup(vhost="/", name="core", key="42", word=word))  # type: ignore[arg-type]
    cluster.wait(200)
    failed = [[key for key, _, _ in site.node.pool_desk.failed(cluster.pool_id)] for site in cluster.running]
    assert failed == [["42"] if word == "stop" else []] * 3
