"""Imports: what others may do meanwhile, what is refused whole, and what a restored node goes on with."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import AccessRefused, Contended, LimitReached, PreconditionFailed
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.changes import ImportChanged
from clusterbroker.cluster.wiring.importing import SLICE_WEIGHT
from clusterbroker.cluster.wiring.imports import PART_COMMANDS_MAX, parted
from clusterbroker.cluster.wiring.map import Applied, ClusterMap


class World:
    """A map, which comes from a snapshot again before each command, beside one that never does: they are the same."""

    def __init__(self) -> None:
        self.map = ClusterMap()
        self._lasting = ClusterMap()

    def do(self, command: c.AnyCommand) -> Applied:
        taken = self.map.snapshot()
        self.map = ClusterMap.restored(snapshot.decode(taken.index, list(snapshot.encode(taken))))
        index = LogIndex(self.map.applied + 1)
        outcome, beside = self.map.apply(index, command), self._lasting.apply(index, command)
        assert str(outcome.error) == str(beside.error), command
        assert outcome.changes == beside.changes, command
        assert self.map.digest() == self._lasting.digest(), command
        return outcome

    def must(self, *commands: c.AnyCommand) -> None:
        for command in commands:
            assert self.do(command).error is None

    def part(self, *commands: Any, number: int = 0, last: bool = True, apply: int = 0) -> Applied:
        return self.do(c.ImportDefinitions(import_id="i", number=number, commands=commands, last=last, apply=apply))

    def go_on(self, count: int = 1) -> Applied:
        held = self.map.importing
        assert held is not None
        return self.do(c.ApplyImport(import_id="i", start=held.done, count=count))

    def refused(self, command: c.AnyCommand) -> None:
        digest = self.map.digest()
        assert isinstance(self.do(command).error, Contended), command
        assert self.map.digest() == digest


@pytest.fixture
def world() -> World:
    return World()


def queue(name: str, vhost: str = "/", **fields: Any) -> c.DeclareQueue:
    return c.DeclareQueue(vhost=vhost, name=name, **{"durable": True, **fields})


def bind(source: str, name: str, key: str = "") -> c.Bind:
    return c.Bind(vhost="/", source=source, destination=name, routing_key=key)


def test_in_slices(world: World) -> None:
    assert world.part(queue("a"), number=0, last=False).result is False
    assert world.part(queue("b"), queue("c"), number=1).result is False
    assert world.map.queues() == ()
    late = c.ApplyImport(import_id="i", start=1, count=1)
    assert not world.do(late).changes, "it is not its turn"
    assert world.go_on(2).result is True
    assert [q.name for q in world.map.queues()] == ["a", "b"]
    assert not world.do(c.ApplyImport(import_id="i", start=0, count=1)).changes, "its turn was before"
    last = world.go_on(2)
    assert [type(change).__name__ for change in last.changes] == ["QueueDeclared", "ImportChanged"]
    assert world.map.importing is None
    assert len({q.queue_id for q in world.map.queues()}) == 3


def test_what_others_do_before_the_last_part_makes_it_void(world: World) -> None:
    world.must(queue("there"))
    there = world.map.queue("/", "there")
    assert there is not None
    for other in (
        queue("a"),
        c.SetVhostLimits(vhost="/", queues_max=5),
        c.DeleteQueue(vhost="/", name="there", queue_id=there.queue_id),
    ):
        assert world.part(queue("a"), bind("amq.topic", "there"), last=False).error is None
        outcome = world.do(other)
        assert outcome.error is None
        assert any(isinstance(change, ImportChanged) for change in outcome.changes)
        assert world.map.importing is None
        again = world.part(queue("z"), number=1)
        assert isinstance(again.error, Contended)
        left = world.map.queue("/", "a")
        if left is not None:
            world.must(c.DeleteQueue(vhost="/", name="a", queue_id=left.queue_id))


def test_what_is_decided_is_not_to_be_met(world: World) -> None:
    world.must(c.PutUser(name="u", password_hash="1", hash_algorithm=""), queue("there"))
    world.part(
        c.AddVhost(name="v"),
        c.PutUser(name="u", password_hash="2", hash_algorithm=""),
        c.SetPermission(user="u", vhost="v", configure="", write="", read=""),
        c.PutPolicy(vhost="/", name="p", pattern="", definition={"max-length": 1}),
        c.PutParameter(vhost="/", component="c", name="n", value=1),
        c.DeclareExchange(vhost="/", name="x", type="topic", durable=True),
        queue("a"),
        bind("x", "a"),
    )
    for other in (
        c.AddVhost(name="v"), c.DeleteVhost(name="v"), c.DeleteVhost(name="/"), queue("q", "v"),
        c.PutUser(name="u", password_hash="3", hash_algorithm=""), c.DeleteUser(name="u"),
        c.ClearPermission(user="u", vhost="v"), c.DeletePolicy(vhost="/", name="p"),
        c.DeleteParameter(vhost="/", component="c", name="n"), c.SetVhostLimits(vhost="/", queues_max=0),
        c.DeclareExchange(vhost="/", name="x", type="fanout"), c.DeleteExchange(vhost="/", name="x"),
        queue("a", durable=False), bind("x", "there"), bind("amq.topic", "a"),
        c.Unbind(vhost="/", source="x", destination="a"),
    ):  # fmt: skip
        world.refused(other)
    busy = world.do(c.ImportDefinitions(import_id="j", number=0, commands=()))
    assert isinstance(busy.error, Contended)
    world.must(queue("other"), bind("amq.topic", "there"), c.AddVhost(name="w"), c.RemoveConnection(connection="c"))
    while world.map.importing is not None:
        assert world.go_on(1).result
    user = world.map.user("u")
    assert user is not None
    assert user.password_hash == "2"


def test_what_is_decided_is_not_dropped(world: World) -> None:
    drop = c.DropImport(import_id="i")
    world.part(queue("a"), last=False)
    assert world.do(c.DropImport(import_id="another")).result is False
    assert world.do(drop).result is True
    assert world.map.importing is None
    world.part(queue("a"), queue("b"))
    for _ in range(2):
        outcome = world.do(drop)
        assert outcome.result is False
        assert not outcome.changes
        assert world.go_on(1).result
    assert [q.name for q in world.map.queues()] == ["a", "b"]


def test_a_declaration_that_changes_nothing_is_let_through(world: World) -> None:
    world.part(queue("a"), queue("b"))
    world.go_on(1)
    assert world.do(queue("a")).error is None, "it is there already"
    assert isinstance(world.do(queue("a", durable=False)).error, PreconditionFailed)
    world.refused(queue("b"))


def test_what_ends_meanwhile_has_been_there(world: World) -> None:
    world.must(queue("mine"), c.DeclareExchange(vhost="/", name="auto", type="topic", auto_delete=True))
    world.must(bind("auto", "mine", "before"))
    world.part(queue("a"), bind("auto", "mine", "after"), bind("auto", "a"))
    mine = world.map.queue("/", "mine")
    assert mine is not None
    world.must(c.DeleteQueue(vhost="/", name="mine", queue_id=mine.queue_id))
    assert world.map.exchange("/", "auto") is not None, "bindings from it are decided"
    while world.map.importing is not None:
        assert world.go_on(1).result
    assert [binding.destination for binding in world.map.bindings("/")] == ["a"]


def test_an_exchange_whose_last_binding_was_missed_goes(world: World) -> None:
    world.must(queue("mine"), c.DeclareExchange(vhost="/", name="auto", type="topic", auto_delete=True))
    world.part(queue("a"), bind("auto", "mine"))
    mine = world.map.queue("/", "mine")
    assert mine is not None
    world.must(c.DeleteQueue(vhost="/", name="mine", queue_id=mine.queue_id))
    world.go_on(5)
    assert world.map.importing is None
    assert world.map.exchange("/", "auto") is None


def test_limits_count_what_is_still_to_come(world: World) -> None:
    world.must(c.SetVhostLimits(vhost="/", queues_max=3))
    world.part(queue("a"), queue("b"))
    world.must(queue("other"))
    assert isinstance(world.do(queue("one more")).error, LimitReached)
    world.go_on(1)
    assert isinstance(world.do(queue("one more")).error, LimitReached)
    world.go_on(1)
    assert len(world.map.queues()) == 3
    assert isinstance(world.part(queue("too many")).error, LimitReached)


def test_a_limit_that_is_still_to_come_is_waited_for(world: World) -> None:
    world.must(queue("there"))
    world.part(c.SetVhostLimits(vhost="/", queues_max=1))
    world.refused(queue("new"))
    assert world.do(queue("there")).error is None
    world.go_on()
    assert isinstance(world.do(queue("new")).error, LimitReached)


def test_an_import_is_judged_by_the_limit_that_it_sets(world: World) -> None:
    limits = [c.SetVhostLimits(vhost="/", queues_max=most) for most in (1, 2)]
    world.part(limits[0], queue("a"), limits[1], queue("b"))
    for _ in range(4):
        world.go_on()
    assert [q.name for q in world.map.queues()] == ["a", "b"]


@pytest.mark.parametrize(
    "command",
    [
        c.Unbind(vhost="v", source="", destination="q", destination_kind="queue"),
        c.DeleteExchange(vhost="v", name="amq.topic"),
        c.PauseQueue(vhost="v", name="q", paused=True),
    ],
)
def test_nothing_happens_in_a_vhost_that_is_still_to_come(world: World, command: c.AnyCommand) -> None:
    world.part(c.AddVhost(name="v"))
    world.refused(command)


def test_a_new_vhost_counts_what_is_still_to_come(world: World) -> None:
    world.part(c.AddVhost(name="v"), c.SetVhostLimits(vhost="v", queues_max=1), queue("a", "v"))
    world.go_on(2)
    assert isinstance(world.do(queue("other", "v")).error, LimitReached)
    world.go_on(1)
    assert [q.name for q in world.map.queues("v")] == ["a"]


def test_a_refused_part_takes_those_before_it_away(world: World) -> None:
    digest = world.map.digest()
    world.part(queue("a"), last=False)
    refused = world.part(queue("b"), queue("a", durable=False), number=1, last=False)
    assert refused.error is not None
    assert refused.error.text.startswith("inequivalent arg 'durable' for queue 'a' in vhost '/'")
    assert refused.changes
    assert world.map.digest() == digest
    bad = world.part(c.SetPermission(user="nobody", vhost="/", configure="", write="", read=""))
    assert bad.error is not None
    assert bad.error.text == "permission of user 'nobody' in vhost '/': user 'nobody' not found"
    assert isinstance(world.part(queue("mine", exclusive=True, connection="c")).error, PreconditionFailed)
    assert isinstance(world.part(*[queue(f"q{n}") for n in range(PART_COMMANDS_MAX + 1)]).error, LimitReached)
    assert world.map.digest() == digest


def test_queues_wait_for_a_member_that_can_hold_them(world: World) -> None:
    for name, witness in (("a", False), ("w", True)):
        world.must(c.AddMember(name=NodeId(name), address=f"{name}:1", witness=witness))
        world.must(c.RegisterNode(node=NodeId(name), disk_id=name, incarnation=Incarnation(1), address=f"{name}:1"))
    world.part(c.AddVhost(name="v"), queue("q", "v"), c.AddVhost(name="w"))
    world.must(c.FailNode(node=NodeId("a"), incarnation=Incarnation(1)))
    assert world.go_on(5).result is True
    assert world.map.vhost("v") is not None
    assert world.go_on(5).result is False
    assert isinstance(world.do(queue("q", "v")).error, Contended)
    world.must(c.RegisterNode(node=NodeId("a"), disk_id="a", incarnation=Incarnation(2), address="a:1"))
    assert world.go_on(5).result is True
    assert world.map.importing is None
    homeless = world.part(queue("t", durable=False))
    assert isinstance(homeless.error, PreconditionFailed)
    assert "cannot live at 'local'" in homeless.error.text


@pytest.mark.long
def test_parts_and_slices(world: World) -> None:
    commands = [queue(f"q{n}") for n in range(1200)]
    assert [len(part) for part in parted(commands, [10] * 1200, 1 << 20)] == [500, 500, 200]
    assert [len(part) for part in parted(commands[:5], [600] * 5, 1200)] == [2, 2, 1]
    assert [len(part) for part in parted(commands[:2], [5000, 1], 1200)] == [1, 1]
    assert [len(part) for part in parted([], [], 1200)] == [0]
    assert world.map.next_slice(commands, 0) == SLICE_WEIGHT
    assert world.map.next_slice(commands, 1150) == 50
    world.must(*[queue(f"there{n}") for n in range(1000)])
    policies = [c.PutPolicy(vhost="/", name=f"p{n}", pattern="", definition={"max-length": 1}) for n in range(20)]
    assert world.map.next_slice(policies, 0) == 4, "each makes nodes look at a thousand queues"


def test_a_pool_takes_no_names_of_an_import_that_is_decided(world: World) -> None:
    world.must(queue("before"))
    assert world.part(queue("core-req-7"), queue("free"), queue("core-dl-xchg-not")).error is None
    world.refused(c.DeclarePool(vhost="/", name="core"))
    assert world.do(c.DeclarePool(vhost="/", name="other")).error is None
    while world.map.importing is not None:
        world.go_on()
    assert isinstance(world.do(c.DeclarePool(vhost="/", name="core")).error, PreconditionFailed)
    assert {"before", "core-req-7", "free"} <= {one.name for one in world.map.queues()}


def test_an_import_takes_no_names_of_a_pool_that_came_while_it_was_read(world: World) -> None:
    assert world.part(queue("core-req-7"), last=False).error is None
    assert world.do(c.DeclarePool(vhost="/", name="core")).error is None
    if world.map.importing is not None:
        assert isinstance(world.part(queue("more"), number=1).error, AccessRefused)
    assert world.map.importing is None
