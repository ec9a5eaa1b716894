"""Keys of a worker pool, its rates and its workers by state, as operators see them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.management import metrics, pool_groups, pools
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.paging import answer, wish
from clusterbroker.broker.pools.places import MEMORY
from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.pools import PlaceRow, PoolRow, TemplateRow
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, PoolSettings
from clusterbroker.cluster.wiring.pool_rules import promised_bytes
from tests.unit.broker.management.set_up import NODE, NOW_MS, Place, everything, queue, user
from tests.unit.broker.management.test_metrics import parsed

MIB = 1 << 20


class Keys:
    """Pool core at one member, its controller."""

    def __init__(self, several: int = 1, **settings: Any) -> None:
        self.place = Place()
        self.place.must(user("guest", "administrator"), everything("guest"))
        node = NodeId(NODE)
        self.place.must(
            c.AddMember(name=node, address="x:1"),
            c.RegisterNode(node=node, disk_id=NODE, incarnation=Incarnation(1), address="x:1", level=LEVEL),
            c.RaiseLevel(level=LEVEL, members=((node, Incarnation(1)),)),
        )
        template = settings.pop("template", "core")
        declare = c.DeclarePool(
            vhost="/", name="core", template=template, settings=PoolSettings(**settings), keys_per_worker=several
        )
        (applied,) = self.place.apply(declare)
        self.pool = applied.result
        self.pool_id: LogIndex = self.pool.pool_id

    @property
    def guard(self) -> dict[str, Any]:
        queue = self.place.replica.map.queue_by_id(self.pool.orphans)
        assert queue is not None
        return {"pool_id": self.pool_id, "epoch": queue.epoch}

    def has(self, *keys: str) -> None:
        self.place.must(c.RequireGroups(keys=keys, **self.guard))
        self.place.must(c.SettleGroups(keys=keys, **self.guard))

    def launched(self, key: str) -> str:
        before = {one.launch_id for one in self.place.replica.map.pools.launches(self.pool_id)}
        self.place.must(c.LaunchWorkers(workers=((key, NODE, "v1"),), **self.guard))
        (found,) = {one.launch_id for one in self.place.replica.map.pools.launches(self.pool_id)} - before
        return found

    def holds(self, key: str, ready: int = 0, held: int = 0, consumers: int = 0) -> None:
        """The queue of a key."""
        found = self.place.replica.map.pools.group(self.pool_id, key)
        assert found is not None
        queue = self.place.replica.map.queue_by_id(found.queue_id)
        assert queue is not None
        row = rows.QueueRow(
            queue_id=queue.queue_id, epoch=queue.epoch, owned=True, ready=ready, unacknowledged=held,
            consumers=consumers,
        )  # fmt: skip
        self.place.tell(row)

    def unbound(self, key: str) -> None:
        found = self.place.replica.map.pools.group(self.pool_id, key)
        assert found is not None
        queue = self.place.replica.map.queue_by_id(found.queue_id)
        assert queue is not None
        self.place.must(
            c.UnbindGroup(
                pool_id=self.pool_id, key=key, queue_id=queue.queue_id, epoch=queue.epoch, generation=found.generation
            )
        )

    def tell(self, at_ms: int = NOW_MS, **told: Any) -> None:
        place = PlaceRow({"core": TemplateRow("v1", "subprocess", 0, 100 * MIB)})
        row = PoolRow(self.pool_id, version="v1", **told)
        self.place.tell(rows.NodeRow(name=NODE, place=place, pools=(row,)), at_ms=at_ms)

    def state(self, key: str = "k") -> str:
        return str(pool_groups.group(self.place.reading(), "/", "core", key)["state"])


def test_a_key_goes_through_its_states() -> None:
    keys = Keys()
    keys.has("k")
    assert keys.state() == "unscheduled"  # no request asks for a worker
    keys.holds("k", ready=1)
    assert keys.state() == "waiting"
    worker = keys.launched("k")
    assert keys.state() == "starting"
    keys.holds("k", ready=1, consumers=1)
    assert keys.state() == "ready"
    keys.holds("k", held=1, consumers=1)
    assert keys.state() == "busy"
    keys.holds("k", consumers=1)
    keys.unbound("k")
    assert keys.state() == "idle"
    keys.place.must(c.RetireWorkers(launches=(worker,), why="idle", **keys.guard))
    assert keys.state() == "draining"


def test_a_key_with_one_worker_left_does_not_drain() -> None:
    keys = Keys()
    keys.has("k")
    worker, _ = keys.launched("k"), keys.launched("k")
    keys.unbound("k")
    keys.place.must(c.RetireWorkers(launches=(worker,), why="one too many", **keys.guard))
    assert keys.state() == "idle"


def test_workers_of_several_keys_drain_by_their_keys() -> None:
    keys = Keys(several=2)
    keys.has("k", "l")
    worker = keys.launched(NO_KEY)
    keys.place.must(c.AssignWorkers(workers=((worker, "k"), (worker, "l")), **keys.guard))
    assert keys.place.replica.map.pools.workers_of(keys.pool_id, "k") == {worker: False}
    keys.unbound("k")
    assert (keys.state("k"), keys.state("l")) == ("idle", "starting")
    keys.place.must(c.RetireKeys(keys=((worker, "k"),), why="idle", **keys.guard))
    assert (keys.state("k"), keys.state("l")) == ("draining", "starting")


def test_a_paused_pool_schedules_nothing_for_a_key_that_waits() -> None:
    keys = Keys()
    keys.has("k", "runs")
    keys.holds("k", ready=3)
    keys.launched("runs")
    keys.place.must(c.PausePool(vhost="/", name="core", paused=True))
    assert (keys.state("k"), keys.state("runs")) == ("unscheduled", "starting")
    keys.place.must(c.PausePool(vhost="/", name="core", paused=False))
    assert keys.state("k") == "waiting"


def test_without_a_controller_nothing_is_scheduled() -> None:
    keys = Keys()
    keys.has("k")
    keys.holds("k", ready=1)
    keys.place.must(c.FailNode(node=NodeId(NODE), incarnation=Incarnation(1)))
    assert pools.named(keys.place.reading(), "/", "core")["controller"] is None
    assert keys.state("k") == "unscheduled"


@pytest.mark.parametrize("asks", [{"min": 1}, {"template": "noop"}])
def test_a_key_without_requests_may_wait_for_a_worker(asks: dict[str, Any]) -> None:
    keys = Keys(**asks)
    keys.has("k")
    assert keys.state() == "waiting"


def test_a_pinned_key_waits_for_its_worker() -> None:
    keys = Keys()
    keys.place.must(c.DirectGroup(vhost="/", name="core", key="k", word="pin"))
    assert keys.state() == "waiting"


def test_a_failed_key_is_neither() -> None:
    keys = Keys()
    keys.has("k", "other")
    keys.tell(failed={"k": (1500, "exit status 3")})
    found = pool_groups.group(keys.place.reading(), "/", "core", "k")
    assert (found["state"], found["failed_for_s"], found["failed_why"]) == ("failed", 2, "exit status 3")
    assert keys.state("other") == "unscheduled"


def test_memory_of_a_key_is_learnt_or_its_templates() -> None:
    keys = Keys()
    keys.has("heavy", "k")
    reading = keys.place.reading()
    assert pool_groups.group(reading, "/", "core", "k")["memory_bytes"] == MEMORY  # nobody has told the template
    keys.tell()
    worker = keys.launched("heavy")
    ended = (Ended(worker, 0, 700 * MIB),)
    keys.place.must(c.WorkersGone(node=NodeId(NODE), incarnation=Incarnation(1), ended=ended))
    found = {key: pool_groups.group(keys.place.reading(), "/", "core", key) for key in ("heavy", "k")}
    assert {key: one["memory_bytes"] for key, one in found.items()} == {
        "heavy": promised_bytes(700 * MIB), "k": 100 * MIB,
    }  # fmt: skip
    listed = answer(pool_groups.groups(keys.place.reading(), "/", "core"), wish({"sort": "memory_bytes"}))
    assert [one["key"] for one in listed] == ["k", "heavy"]  # type: ignore[index,union-attr]


def test_the_largest_keys_are_told_and_the_rest_in_sum() -> None:
    keys = Keys()
    keys.has(*(f"k{number}" for number in range(5)))
    keys.tell()
    keys.holds("k3", ready=7)
    keys.holds("k4", ready=2)
    keys.holds("k0", held=1, consumers=1)
    found = pool_groups.glance(keys.place.reading(limit="2"), "/", "core")
    assert [(one["key"], one["waiting"], one["state"]) for one in found["keys"]] == [
        ("k3", 7, "waiting"), ("k4", 2, "waiting"),
    ]  # fmt: skip
    assert found["rest"] == {
        "keys": 3, "memory_bytes": 300 * MIB, "waiting": 0, "by_state": {"busy": 1, "unscheduled": 2},
    }  # fmt: skip
    assert found["by_state"] == {"waiting": 2, "busy": 1, "unscheduled": 2}
    whole = pool_groups.glance(keys.place.reading(), "/", "core")
    assert (len(whole["keys"]), whole["rest"]["keys"], whole["rest"]["memory_bytes"]) == (5, 0, 0)
    with pytest.raises(Refused):
        pool_groups.glance(keys.place.reading(limit="501"), "/", "core")


def test_keys_that_the_user_may_not_read_are_not_in_sums() -> None:
    keys = Keys()
    keys.has("k", "secret")
    keys.place.must(
        user("eye", "monitoring"),
        c.SetPermission(user="eye", vhost="/", configure="", write="", read="core-req-k"),
    )
    found = pool_groups.glance(keys.place.reading("eye"), "/", "core")
    assert ([one["key"] for one in found["keys"]], found["by_state"]) == (["k"], {"unscheduled": 1})


def test_rates_are_of_the_last_sample_and_curves_of_the_time_before() -> None:
    keys = Keys()
    keys.tell(NOW_MS - 10_000, requests=100, workers={"busy": 1})
    keys.tell(NOW_MS - 5000, requests=110, dead={"expired": 5}, workers={"busy": 1, "starting": 1})
    keys.tell(NOW_MS, requests=160, dead={"expired": 5, "maxlen": 10}, workers={"busy": 2})
    found = pools.named(keys.place.reading(), "/", "core")
    stats, states = found["message_stats"], found["workers_by_state"]
    assert (stats["requests"], stats["requests_details"]) == (160, {"rate": 10.0})
    assert (stats["dead"], stats["dead_details"]) == (15, {"rate": 2.0})
    assert (states["busy"], states["starting"], states["wanted"]) == (2, 0, 0)
    past = {f"{family}_{what}": value for family in ("msg_rates", "lengths") for what, value in
            (("age", "10"), ("incr", "5"))}  # fmt: skip
    found = pools.named(keys.place.reading(**past), "/", "core")
    assert [one["sample"] for one in found["message_stats"]["requests_details"]["samples"]] == [160, 110, 100]
    assert [one["sample"] for one in found["workers_by_state"]["starting_details"]["samples"]] == [0, 1, 0]


def test_a_member_that_has_gone_has_no_rate() -> None:
    keys = Keys()
    keys.tell(NOW_MS - 5000, requests=100)
    keys.tell(NOW_MS, requests=200)
    late = keys.place.reading(now_ms=NOW_MS + 60_000)
    assert pools.named(late, "/", "core")["message_stats"]["requests_details"]["rate"] == 0.0


def test_detailed_metrics_name_pool_and_key_of_a_queue_and_others_do_not() -> None:
    keys = Keys()
    keys.has("a/b")
    keys.place.must(queue("plain"))
    keys.holds("a/b", ready=3)
    keys.place.tell(
        rows.QueueRow(queue_id=keys.pool.orphans, epoch=1, owned=True, ready=2),
        rows.QueueRow(queue_id=keys.place.queue_id("plain"), epoch=1, owned=True, ready=1),
    )
    name = "queue_messages_ready"
    found = parsed(metrics.detailed(keys.place.replica, {"queue_coarse_metrics", "queue_consumer_count"}))
    samples = {one.labels["queue"]: (one.labels, one.value) for one in found[f"rabbitmq_detailed_{name}"].samples}
    assert samples == {
        "core-req-a%2Fb": ({"vhost": "/", "queue": "core-req-a%2Fb", "pool": "core", "key": "a/b"}, 3),
        "core-orphan": ({"vhost": "/", "queue": "core-orphan", "pool": "core"}, 2),
        "plain": ({"vhost": "/", "queue": "plain"}, 1),
    }
    assert {one.labels.get("key") for one in found["rabbitmq_detailed_queue_consumers"].samples} == {"a/b", None}
    per_object = parsed(metrics.per_object(keys.place.replica, NOW_MS))[f"rabbitmq_{name}"]
    assert {tuple(one.labels) for one in per_object.samples} == {("vhost", "queue")}


@pytest.mark.parametrize(
    ("why", "seen"),
    [
        ("room for 'k'", "room for 'k'"), ("room for 'secret'", "room for another key"),
        ("it did not consume 'secret' for 30 s", "it did not consume another key for 30 s"),
        (f"room for {chr(39) * 2 + chr(34)!r}", "room for another key"), ("room for 'secr", "room for another key"),
        ("idle", "idle"),
    ],
)  # fmt: skip
def test_a_reason_names_no_key_that_the_user_may_not_read(why: str, seen: str) -> None:
    keys = Keys()
    keys.has("k", "secret")
    worker = keys.launched("k")
    keys.place.must(
        user("eye", "monitoring"),
        c.SetPermission(user="eye", vhost="/", configure="", write="", read="core-req-k"),
        c.RetireWorkers(launches=(worker,), why=why, **keys.guard),
    )
    assert pools.worker(keys.place.reading("eye"), "/", "core", worker)["retired"] == seen
    assert pools.worker(keys.place.reading(), "/", "core", worker)["retired"] == (seen if why.endswith("secr") else why)


def test_a_pool_is_not_deleted_before_it_is_known_what_waits_there() -> None:
    keys = Keys()
    place, reading = keys.place, keys.place.reading

    def refused() -> tuple[int, str]:
        with pytest.raises(Refused) as error:
            pools.deletion(reading(), "/", "core")
        return error.value.status, error.value.reason

    assert refused() == (503, "how many orphans pool 'core' has is not known yet: try again")
    assert pools.deletion(reading(force="true"), "/", "core").force
    place.tell(rows.NodeRow(name=NODE))  # its owner tells, and has told nothing of queues that are new
    assert not pools.deletion(reading(), "/", "core").force
    queue = place.replica.map.queue_by_id(keys.pool.delayed)
    assert queue is not None
    place.tell(rows.QueueRow(queue_id=queue.queue_id, epoch=queue.epoch, owned=True, ready=1000))
    assert refused()[0] == 400
    assert "has 1,000 delayed requests:" in refused()[1]
