"""The node's end of its foreman: what a foreman tells is cut to size, and is about its own place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.foreman.frames import VERSION, GoneRow, Hello, PlaceRow, TemplateRow
from clusterbroker.broker.foreman.spec import Scale
from clusterbroker.broker.node.foreman_link import ForemanLink
from clusterbroker.broker.server.foreman_desk import WANTS_S, ForemanDesk, scale_of
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import NO_MORE, MoreSettings, PoolSettings
from tests.unit.broker.fronts.amqp091.harness import World


class Desk:
    """A desk of a real node, with a foreman in the test's hands."""

    def __init__(self) -> None:
        self.world = World()
        self.node = self.world.node
        self.proposed: list[Any] = []
        self.leases: list[tuple[bool, bool]] = []
        self.wants: list[dict[str, bool] | None] = []
        """Launches of other places, as they were told."""
        propose = self.node.propose

        def noted(command: Any, done: Any) -> None:
            self.proposed.append(command)
            propose(command, done)

        self.node.propose = noted  # type: ignore[method-assign]
        self.link = ForemanLink()
        foreman = SimpleNamespace(
            link=self.link,
            heard=None,
            wants=lambda *told: self.wants.append(told[2]),
            lease=lambda *lease: self.leases.append(lease),
        )
        self.looked_s: list[float] = []
        """When launches are looked at."""

        def call_at(at_s: float, what: Any) -> None:
            self.looked_s.append(at_s)
            what()

        loop = SimpleNamespace(
            call_later=lambda *_: SimpleNamespace(cancel=lambda: None), call_at=call_at, time=lambda: 0.0
        )
        shell: Any = SimpleNamespace(
            node=self.node, loop=loop, listeners=[], schedule=lambda: None,
            options=SimpleNamespace(advertised_amqp=("amqp://of-this-node.example:5672",)),
        )  # fmt: skip
        self.desk = ForemanDesk(shell, foreman)  # type: ignore[arg-type]
        self.desk.begin()

    def launched(self, place: str) -> Any:
        pool = self.world.command(c.DeclarePool(vhost="/", name="core", template="core")).result
        epoch = self.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
        known = {"pool_id": pool.pool_id, "epoch": epoch}
        self.world.command(c.RequireGroups(keys=("42",), **known))
        return self.world.command(c.LaunchWorkers(workers=(("42", place, "v1"),), **known)).result[0]


class Member:
    """The node as a member of a cluster, as far as the desk asks."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.role = SimpleNamespace(leased=True, registered=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def test_a_launch_of_another_place_is_not_reported() -> None:
    desk = Desk()
    other = desk.launched("elsewhere")
    desk.desk.heard(GoneRow(worker_id=other.launch_id, exit=0))
    assert not [one for one in desk.proposed if isinstance(one, c.WorkersGone)]


@pytest.mark.parametrize(
    ("said", "kept"), [((137, 5), (137, 5)), ((-1, -5), (None, 0)), ((1 << 40, 1 << 70), (None, 1 << 62))]
)
def test_numbers_of_a_foreman_are_cut_to_size(said: tuple[int, int], kept: tuple[int | None, int]) -> None:
    desk = Desk()
    own = desk.launched(desk.node.options.name)
    desk.desk.heard(GoneRow(worker_id=own.launch_id, exit=said[0], peak_bytes=said[1]))
    (gone,) = (one for one in desk.proposed if isinstance(one, c.WorkersGone))
    assert (gone.ended[0].exit_status, gone.ended[0].peak_bytes) == kept
    desk.link.templates = {"core": TemplateRow(version="v1", driver="noop", max_workers=-1, memory_bytes=1 << 70)}
    desk.link.place = PlaceRow(running=0, starting=0, memory_bytes=-1)
    desk.desk.heard(desk.link.place)
    told = desk.node.pool_desk.places[desk.node.options.name].told
    assert (told.memory_bytes, told.templates["core"].max_workers) == (0, 0)
    assert told.templates["core"].memory_bytes == 1 << 62


@pytest.mark.parametrize("why", ["out of memory", "", "it vanished: somebody else removed it"])
def test_a_worker_that_the_kernel_ended_for_its_memory_is_reported_as_such(why: str) -> None:
    desk = Desk()
    own = desk.launched(desk.node.options.name)
    desk.desk.heard(GoneRow(worker_id=own.launch_id, exit=137, why=why))
    (gone,) = (one for one in desk.proposed if isinstance(one, c.WorkersGone))
    assert gone.ended[0].out_of_memory is (why == "out of memory")


def test_the_lease_is_told_at_each_look() -> None:
    desk = Desk()
    for _ in range(3):
        desk.desk._look()
    assert desk.leases == [(True, True)] * 4


def test_launches_of_other_places_are_told_to_a_foreman_of_a_shared_one() -> None:
    desk = Desk()
    own, other = desk.launched(desk.node.options.name), desk.launched("elsewhere")
    assert set(desk.wants) == {None}, "nobody has asked"
    hello = Hello(version=VERSION, templates={}, shared=True)
    desk.link.shared = hello.shared
    desk.desk.heard(hello)
    assert desk.wants[-1] is None, "a node alone ends nothing that bears a label which a copy of it bears as well"
    desk.desk._shell.node = Member(desk.node)  # type: ignore[assignment]
    desk.desk.heard(hello)
    assert desk.wants[-1] == {other.launch_id: False}
    pool = desk.node.map.pools.get(other.pool_id)
    assert pool is not None
    epoch = desk.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
    launches = (own.launch_id, other.launch_id)
    desk.world.command(c.RevokeWorkers(pool_id=pool.pool_id, epoch=epoch, launches=launches, why="a test"))
    assert desk.wants[-1] == {other.launch_id: True}


def test_workers_elsewhere_find_the_node_by_what_clients_are_told() -> None:
    """A Pod has no use for 127.0.0.1, where a listener of all addresses is reached on this machine."""
    desk = Desk()
    own = desk.node.options.name
    for number, name in enumerate(("other", own)):  # the oldest member first
        desk.world.command(c.AddMember(name=NodeId(name), address=f"{name}:1"))
        told = (f"amqp://{name}.example:5672", "amqp://0.0.0.0:5672")
        desk.world.command(
            c.RegisterNode(
                node=NodeId(name), disk_id=name, incarnation=Incarnation(number + 1), address=f"{name}:1", amqp=told
            )
        )
    desk.desk._shell.listeners.append(
        SimpleNamespace(protocol="amqp", addresses=["0.0.0.0:5672"])  # type: ignore[arg-type]
    )
    assert desk.desk._addresses() == [
        ("amqp", "127.0.0.1:5672"),
        ("amqp", f"{own}.example:5672"),
        ("amqp", "other.example:5672"),
    ]


def test_what_scales_a_launch_has_the_bounds_of_its_pool() -> None:
    assert scale_of(PoolSettings(), NO_MORE) is None
    assert scale_of(PoolSettings(scaling="fixed", min=2), NO_MORE) is None
    assert scale_of(PoolSettings(scaling="hpa"), NO_MORE) == Scale(by="hpa", least=1, most=8, backlog=5)
    assert scale_of(PoolSettings(scaling="keda", min=2, max=3), NO_MORE) == Scale(by="keda", least=2, most=3, backlog=5)
    assert scale_of(PoolSettings(scaling="hpa", max=0), NO_MORE) == Scale(by="hpa", least=1, most=1, backlog=5)


def test_a_foreman_hears_of_new_bounds_while_a_launch_lives() -> None:
    desk = Desk()
    own = desk.launched(desk.node.options.name)
    pools = desk.node.map.pools

    def told() -> Scale | None:
        (row,) = desk.desk._rows()
        assert row.spec.worker_id == own.launch_id
        return row.spec.scale

    assert told() is None
    before = len(desk.wants)
    settings = PoolSettings(scaling="hpa", max=3)
    desk.world.command(c.SetPool(vhost="/", name="core", settings=settings, only=("scaling", "max")))
    assert len(desk.wants) > before, "it is told at once"
    assert told() == Scale(by="hpa", least=1, most=3, backlog=5)
    more = MoreSettings(target_wait_ms=20_000)
    desk.world.command(c.SetPool(vhost="/", name="core", settings=settings, only=("target_wait_ms",), more=more))
    assert told() == Scale(by="hpa", least=1, most=3, backlog=20)
    assert pools.launch(own.launch_id) is not None


@pytest.mark.parametrize("launches", [0, 5_000])
def test_launches_are_looked_at_the_less_often_the_more_there_are(launches: int) -> None:
    desk = Desk()
    own = desk.node.options.name
    desk.desk._specs = dict.fromkeys(map(str, range(launches)), None)  # type: ignore[arg-type]
    desk.desk._launches(own)
    desk.looked_s.clear()
    desk.desk._launches(own)
    assert desk.looked_s == pytest.approx([launches * WANTS_S])
