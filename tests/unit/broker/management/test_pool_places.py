"""Places of a worker pool as operators see them, and what Prometheus is told of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.management import metrics, pool_groups, pool_places, pools
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.pools.places import MEMORY
from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.pools import UNKNOWN_BYTES, PlaceRow, PoolPlaceRow, PoolRow, TemplateRow
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from tests.unit.broker.management.set_up import NODE, NOW_MS, Place, everything, user
from tests.unit.broker.management.test_metrics import parsed, value

NAMES = (NODE, "n2", "n3")
MIB = 1 << 20
CORE = TemplateRow("v1", "subprocess", 4, 100 * MIB)


class World:
    """Three members; n1 is the controller of pool core, whose template all of them have."""

    def __init__(self) -> None:
        self.place = Place()
        self.place.must(user("guest", "administrator"), everything("guest"))
        self.joins(NODE)
        self.place.must(c.RaiseLevel(level=LEVEL, members=((NodeId(NODE), Incarnation(1)),)))
        self.pool = self.declared("core", "core")  # nobody else is there to own its queues
        self.joins("n2")
        self.joins("n3")
        self.told: dict[str, PoolPlaceRow] = {name: PoolPlaceRow(1000 * MIB) for name in NAMES}
        self.machines = {name: PlaceRow({"core": CORE}, 2000 * MIB) for name in self.told}
        self.silent: set[str] = set()

    def joins(self, name: str) -> None:
        node = NodeId(name)
        self.place.must(
            c.AddMember(name=node, address="x:1"),
            c.RegisterNode(node=node, disk_id=name, incarnation=Incarnation(1), address="x:1", level=LEVEL),
        )

    def declared(self, name: str, template: str) -> Any:
        (applied,) = self.place.apply(c.DeclarePool(vhost="/", name=name, template=template))
        return applied.result

    def tell(self, **more: Any) -> None:
        row = PoolRow(self.pool.pool_id, places=self.told, version="v1", **more)
        for name, machine in self.machines.items():
            if name not in self.silent:
                told = rows.NodeRow(name=name, place=machine, pools=(row,) if name == NODE else ())
                self.place.tell(told, node=name)

    def documents(self) -> dict[str, dict[str, Any]]:
        self.tell()
        listing = pool_places.places(self.place.reading(), "/", "core")
        return {one: listing.document(one) for one in listing.items}

    def state(self, of: str = "n2") -> tuple[str, str]:
        document = self.documents()[of]
        return document["state"], document["why"]


def test_a_place_has_room_and_says_what_is_promised() -> None:
    world = World()
    world.told["n2"] = PoolPlaceRow(1000 * MIB, 300 * MIB, 3)
    world.machines["n2"] = PlaceRow({"core": CORE}, 2000 * MIB, 170 * MIB, 2, 1)
    documents = world.documents()
    assert list(documents) == [NODE, "n2", "n3"]
    assert documents["n2"] == {
        "vhost": "/", "pool": "core", "place": "n2", "state": "ready", "why": "", "suspended_for_s": 0,
        "workers": 0, "workers_max": 4, "room_bytes": 1000 * MIB, "promised_bytes": 300 * MIB,
        "free_bytes": 700 * MIB, "over_committed": False, "alarm": False, "driver": "subprocess", "version": "v1",
        "machine": {"memory_bytes": 2000 * MIB, "used_bytes": 170 * MIB, "running": 2, "starting": 1},
    }  # fmt: skip


def test_a_machine_of_unknown_memory_has_no_figure_of_room() -> None:
    world = World()
    world.told["n2"] = PoolPlaceRow(UNKNOWN_BYTES * 2, 300 * MIB, 3)
    world.machines["n2"] = PlaceRow({"core": CORE})
    document = world.documents()["n2"]
    assert (document["room_bytes"], document["free_bytes"], document["machine"]["memory_bytes"]) == (None, None, None)
    assert (document["promised_bytes"], document["state"]) == (300 * MIB, "ready")


@pytest.mark.parametrize(
    ("told", "machine", "state", "why"),
    [
        ({"promised_bytes": 901 * MIB}, {}, "full", "its memory is promised"),
        ({"promised_bytes": 1001 * MIB, "short": True}, {}, "full", "more memory is promised than there is"),
        ({}, {"alarm": True}, "alarm", "the machine is short of memory"),
        ({"suspended_for_ms": 5500, "why": "3 keys did not start here"}, {}, "suspended", "3 keys did not start here"),
    ],
)
def test_why_nothing_is_started(told: dict[str, Any], machine: dict[str, Any], state: str, why: str) -> None:
    world = World()
    world.told["n2"] = PoolPlaceRow(1000 * MIB, **told)
    world.machines["n2"] = PlaceRow({"core": CORE}, 2000 * MIB, **machine)
    assert world.state() == (state, why)
    assert world.documents()["n2"]["suspended_for_s"] == (6 if state == "suspended" else 0)
    assert world.state("n3") == ("ready", "")


def test_what_is_promised_off_the_machine_is_none_of_its_memory() -> None:
    world = World()
    pods = TemplateRow("v1", "kubernetes", 4, 100 * MIB)
    for name in ("n2", NODE):
        world.machines[name] = PlaceRow({"core": pods}, 200 * MIB, alarm=True)
        world.told[name] = PoolPlaceRow(UNKNOWN_BYTES, 300 * MIB, 3)
    assert world.state() == ("ready", "")
    assert world.documents()["n2"]["alarm"] is False
    found = parsed(metrics.aggregated(world.place.replica, NOW_MS))
    assert value(found, "clusterbroker_pool_place_memory_bytes", kind="promised") == 0


def test_a_template_that_promises_nothing_promises_what_the_scaling_assumes() -> None:
    world = World()
    world.machines["n2"] = PlaceRow({"core": TemplateRow("v1", "subprocess")}, 2000 * MIB)
    world.told["n2"] = PoolPlaceRow(1000 * MIB, 1000 * MIB - MEMORY)
    assert world.state() == ("ready", "")
    world.told["n2"] = PoolPlaceRow(1000 * MIB, 1000 * MIB - MEMORY + 1)
    assert world.state() == ("full", "its memory is promised")


def test_services_versions_and_nodes_that_are_missing() -> None:
    world = World()
    gone = TemplateRow("v1", "docker", 0, 0, "docker: its socket is gone: start its service")
    world.machines["n2"] = PlaceRow({"core": gone})
    assert world.state() == ("suspended", "docker: its socket is gone: start its service")
    world.machines["n2"] = PlaceRow({"core": TemplateRow("v2", "subprocess")})
    assert world.state() == ("other_version", "its [pools.core] is not what is started now")
    world.machines["n2"] = PlaceRow({"other": CORE})
    assert set(world.documents()) == {NODE, "n3"}, "it is no place of this pool"
    world.place.must(c.FailNode(node=NodeId("n3"), incarnation=Incarnation(1)))
    assert world.state("n3")[0] == "away"


def test_workers_are_counted_where_they_were_ordered_whether_the_place_is_one_or_not() -> None:
    world = World()
    world.machines["n2"] = PlaceRow({})
    epoch = world.place.replica.map.queue_by_id(world.pool.orphans).epoch  # type: ignore[union-attr]
    known = {"pool_id": world.pool.pool_id, "epoch": epoch}
    world.place.must(c.RequireGroups(keys=("1", "2"), **known))
    world.place.must(c.LaunchWorkers(workers=(("1", "n2", "v1"), ("2", "n2", "v1"), ("2", "n3", "v1")), **known))
    found = world.documents()
    assert {name: document["workers"] for name, document in found.items()} == {NODE: 0, "n2": 2, "n3": 1}
    assert found["n2"]["state"] == "other_version"
    world.machines["n3"] = PlaceRow({"core": TemplateRow("v1", "subprocess", 1)})
    assert world.state("n3") == ("full", "it has max_workers = 1 workers")


def test_a_member_that_has_not_told_of_itself_is_a_place_of_which_nothing_is_known() -> None:
    """Of an earlier release, or without a foreman: its config file may well have the template."""
    world = World()
    world.silent.add("n2")
    world.tell()
    world.place.tell(rows.NodeRow(name="n2"), node="n2")
    why = "it has not told of its templates: an earlier release, or its foreman does not run"
    assert world.state() == ("unknown", why)
    document = world.documents()["n2"]
    assert (document["room_bytes"], document["machine"]["memory_bytes"]) == (1000 * MIB, None)
    del world.told["n2"]
    assert set(world.documents()) == {NODE, "n3"}, "its controller has no place there"


def test_without_a_word_of_its_controller_nothing_is_known() -> None:
    world = World()
    for name, machine in world.machines.items():
        world.place.tell(rows.NodeRow(name=name, place=machine), node=name)
    listing = pool_places.places(world.place.reading(), "/", "core")
    document = listing.document("n2")
    assert (document["state"], document["room_bytes"], document["promised_bytes"]) == ("unknown", None, None)


def test_a_pool_whose_workers_come_by_themselves_has_no_places() -> None:
    world = World()
    world.declared("own", "noop")
    world.tell()
    assert pool_places.places(world.place.reading(), "/", "own").items == []
    with pytest.raises(Refused):
        pool_places.places(world.place.reading(), "/", "none")


def test_what_prometheus_is_told() -> None:
    world = World()
    other = world.declared("other", "core")
    world.told[NODE] = PoolPlaceRow(1000 * MIB, 300 * MIB)
    world.machines[NODE] = PlaceRow({"core": CORE}, 2000 * MIB, 170 * MIB)
    workers = {"wanted": 1, "busy": 2, "ready": 3}
    world.tell(requests=7, evictions=2, start_failures=1, workers=workers)
    elsewhere = world.place.replica.map.queue_by_id(other.orphans).owner  # type: ignore[union-attr]
    assert elsewhere not in (None, NODE), "another node promises memory of this one as well"
    more = PoolRow(other.pool_id, places={NODE: PoolPlaceRow(700 * MIB, 50 * MIB)}, version="v1")
    world.place.tell(rows.NodeRow(name=str(elsewhere), pools=(more,)), node=elsewhere)
    found = parsed(metrics.aggregated(world.place.replica, NOW_MS))

    def told(name: str, **labels: str) -> float:
        return value(found, f"clusterbroker_pool_{name}", **labels)

    core = {"vhost": "/", "pool": "core"}
    assert told("requests_total", **core) == 7
    assert told("evictions_total", **core) == 2
    assert told("start_failures_total", **core) == 1
    assert {
        sample.labels["state"]: sample.value
        for sample in found["clusterbroker_pool_workers"].samples
        if sample.labels["pool"] == "core"
    } == {**dict.fromkeys(("starting", "retiring", "stopping", "spare"), 0), **workers}
    memory = {kind: told("place_memory_bytes", kind=kind) for kind in ("machine", "promised", "used")}
    assert memory == {"machine": 2000 * MIB, "promised": 350 * MIB, "used": 170 * MIB}, "of all pools"


def test_the_oldest_request_is_that_of_the_longest_waiting_head() -> None:
    world = World()
    epoch = world.place.replica.map.queue_by_id(world.pool.orphans).epoch  # type: ignore[union-attr]
    world.place.must(c.RequireGroups(pool_id=world.pool.pool_id, epoch=epoch, keys=("1", "2")))
    first, second = (group.queue_id for group in world.place.replica.map.pools.groups(world.pool.pool_id))
    world.tell()

    def tell(head_1: int | None, head_2: int | None) -> None:
        for queue_id, head in ((first, head_1), (second, head_2)):
            ready = 0 if head is None else 1
            world.place.tell(rows.QueueRow(queue_id=queue_id, epoch=epoch, ready=ready, head_ms=head), node=NODE)

    def oldest() -> tuple[Any, float]:
        found = parsed(metrics.aggregated(world.place.replica, NOW_MS))
        told = value(found, "clusterbroker_pool_oldest_seconds", vhost="/", pool="core")
        return pools.named(world.place.reading(), "/", "core")["oldest_s"], told

    tell(NOW_MS - 4000, NOW_MS - 9500)
    assert oldest() == (9, 9.5)
    assert pool_groups.group(world.place.reading(), "/", "core", "1")["oldest_s"] == 4
    tell(NOW_MS - 4000, None)
    assert oldest() == (4, 4.0)
    tell(None, None)
    assert oldest() == (None, 0.0)


def test_a_node_that_is_alone_is_the_controller_by_its_name() -> None:
    place = Place()
    place.must(user("guest", "administrator"), everything("guest"))
    (applied,) = place.apply(c.DeclarePool(vhost="/", name="core", template="core"))
    row = PoolRow(applied.result.pool_id, places={NODE: PoolPlaceRow(MIB)}, version="v1", workers={"ready": 1})
    place.tell(rows.NodeRow(name=NODE, place=PlaceRow({"core": CORE}), pools=(row,)))
    assert pools.named(place.reading(), "/", "core")["controller"] == NODE
    listing = pool_places.places(place.reading(), "/", "core")
    assert [listing.document(one)["room_bytes"] for one in listing.items] == [MIB]
    found = parsed(metrics.aggregated(place.replica, NOW_MS))
    assert value(found, "clusterbroker_pool_workers", pool="core", state="ready") == 1
