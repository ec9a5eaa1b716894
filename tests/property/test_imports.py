"""Imports over random maps, with others in between: as if all of their commands had been given at one moment, or none.

The reference is a map that gets the commands of an import one after the other, at the moment when the real one accepts
it. Queue ids and the order of things within a map differ between the two, and nothing else may.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.errors import Contended
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.arguments import CANONICAL
from clusterbroker.cluster.wiring.changes import ImportChanged
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.budget import examples
from tests.property.test_cluster_map import COMMANDS, LOGS, assert_invariants, through_bytes

DEFINING = c.Defining.__args__  # type: ignore[attr-defined]
VHOST = st.sampled_from(["/", "/", "v"])
NAMES = st.sampled_from(["q1", "q2"])
SOURCES = st.sampled_from(["x1", "x2", "amq.topic"])
LIKELY: st.SearchStrategy[Any] = st.one_of(
    st.builds(c.AddVhost, name=VHOST, description=st.sampled_from(["", "other"])),
    st.builds(c.PutUser, name=st.just("u1"), password_hash=st.sampled_from(["1", "2"]), hash_algorithm=st.just("")),
    st.builds(c.SetPermission, user=st.just("u1"), vhost=VHOST, configure=st.sampled_from(["", "a"]), write=st.just(""),
              read=st.just("")),
    st.builds(c.SetVhostLimits, vhost=VHOST, queues_max=st.sampled_from([1, 2, 3])),
    st.builds(c.DeclareExchange, vhost=VHOST, name=st.sampled_from(["x1", "x2"]), type=st.just("topic"),
              durable=st.just(True), auto_delete=st.booleans()),
    st.builds(c.DeclareQueue, vhost=VHOST, name=NAMES, durable=st.booleans()),
    st.builds(c.Bind, vhost=VHOST, source=SOURCES, destination=NAMES, routing_key=st.sampled_from(["", "a"])),
)  # fmt: skip
"""What is right in most maps: an import of commands drawn at random is refused for one of them."""
UNLIKELY = COMMANDS.filter(
    lambda command: isinstance(command, DEFINING) and not getattr(command, "exclusive", False)
).map(
    lambda command: (
        msgspec.structs.replace(command, connection=None) if isinstance(command, (c.DeclareQueue, c.Bind)) else command
    )
)
ORDER = [c.AddVhost, c.PutUser, c.SetPermission, c.SetVhostLimits, c.DeclareExchange, c.DeclareQueue, c.Bind]
DEFINITIONS = st.lists(LIKELY, max_size=6).map(
    lambda commands: sorted(commands, key=lambda each: ORDER.index(type(each)))
)
ANY_DEFINITIONS = st.one_of(DEFINITIONS, st.lists(UNLIKELY, max_size=6))
ENDINGS: st.SearchStrategy[Any] = st.tuples(st.just("end queue"), VHOST, NAMES)
OTHERS = st.lists(
    st.one_of(
        LIKELY,
        ENDINGS,
        st.builds(c.Unbind, vhost=VHOST, source=SOURCES, destination=NAMES, routing_key=st.sampled_from(["", "a"])),
        st.builds(c.DeleteExchange, vhost=VHOST, name=st.sampled_from(["x1", "x2"])),
        COMMANDS.filter(lambda command: not isinstance(command, (c.DeleteQueue, c.ForgetTransient))),
    ),
    max_size=3,
)
HEADS = st.one_of(LOGS, st.lists(LIKELY, max_size=12))
PARTS = st.lists(st.tuples(DEFINITIONS, OTHERS), min_size=1, max_size=2)


def do(map_: ClusterMap, command: c.AnyCommand) -> Applied:
    return map_.apply(LogIndex(map_.applied + 1), c.decode(c.encode(command)))


def content(map_: ClusterMap) -> dict[str, list[bytes]]:
    """All that is in a map, without queue ids and order."""
    taken = map_.snapshot()
    taken.queues = [msgspec.structs.replace(queue, queue_id=QueueId(0)) for queue in taken.queues]
    taken.deleted_queues = [QueueId(0) for _ in taken.deleted_queues]
    return {kind: sorted(map(CANONICAL.encode, entities)) for kind, entities in taken.sections()}


def right(map_: ClusterMap, parts: list[list[Any]]) -> list[list[Any]]:
    """Those commands that the map would not refuse one after the other."""
    trial = through_bytes(map_)
    return [[command for command in part if do(trial, command).error is None] for part in parts]


def folded(head: list[c.AnyCommand]) -> ClusterMap:
    map_ = ClusterMap()
    for command in head:
        do(map_, command)
    return map_


@given(HEADS, st.lists(ANY_DEFINITIONS, min_size=1, max_size=4), st.integers(0, 40), st.integers(1, 5), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_an_import_is_its_commands_one_after_the_other(
    head: list[c.AnyCommand], parts: list[list[Any]], at_once: int, count: int, mostly_right: bool
) -> None:
    map_, one_by_one = folded(head), folded(head)
    if mostly_right:
        parts = right(map_, parts)
    before = map_.digest()
    errors = [do(one_by_one, command).error for part in parts for command in part]
    error = next((error for error in errors if error is not None), None)
    _, refused = map_.tried([command for part in parts for command in part])
    tried = refused[0] if refused else None
    assert map_.digest() == before, "a trial changes nothing"
    outcome = None
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        outcome = do(
            map_, c.ImportDefinitions(import_id="i", number=number, commands=tuple(part), last=last, apply=at_once)
        )
        if outcome.error is not None:
            break
    assert outcome is not None
    assert (outcome.error is None) is (error is None) is (tried is None)
    if error is not None:
        assert outcome.error is not None
        assert type(outcome.error) in (type(error), type(tried))
        assert map_.digest() == before, "refused whole"
        return
    finish(map_, count)
    assert content(map_) == content(one_by_one)
    assert_invariants(map_)


def finish(map_: ClusterMap, count: int) -> None:
    while (held := map_.importing) is not None:
        outcome = do(map_, c.ApplyImport(import_id=held.import_id, start=held.done, count=count))
        assert outcome.result is True
        assert any(isinstance(change, ImportChanged) for change in outcome.changes)


class Pair:
    """The real map, its twin that comes from a snapshot after every command, and the reference."""

    def __init__(self, head: list[c.AnyCommand]) -> None:
        self.real, self.reference = folded(head), folded(head)
        self.digest = self.real.digest()

    def both(self, command: c.AnyCommand) -> Applied:
        """On the real map: a restored twin does the same, and what changed is told."""
        twin = through_bytes(self.real)
        outcome, again = do(self.real, command), do(twin, command)
        assert outcome == again
        digest = self.real.digest()
        assert digest == twin.digest()
        assert outcome.changes or digest == self.digest
        several = isinstance(command, (c.ImportDefinitions, c.ApplyImport))  # may change a thing and change it back
        resumes = (
            isinstance(command, c.PauseQueue) and not command.paused
        )  # told also to an owner that has set it aside
        assert several or resumes or not outcome.changes or digest != self.digest
        self.digest = digest
        return outcome

    def other(self, what: Any) -> None:
        """A command of somebody else: refused for the moment, or the same to both."""
        if isinstance(what, tuple):
            _, vhost, name = what
            queue, twin = self.real.queue(vhost, name), self.reference.queue(vhost, name)
            if queue is None:  # not there yet: who deletes it finds nothing, and has nothing to order
                return
            assert twin is not None
            self.both(c.DeleteQueue(vhost=vhost, name=name, queue_id=queue.queue_id))
            do(self.reference, c.DeleteQueue(vhost=vhost, name=name, queue_id=twin.queue_id))
            return
        outcome = self.both(what)
        if isinstance(outcome.error, Contended):
            return
        expected = do(self.reference, what)
        assert outcome.error == expected.error


@pytest.mark.long
@given(
    HEADS,
    PARTS,
    st.lists(OTHERS, min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([True, True, True, False]),
)
@settings(max_examples=examples(400), deadline=None)
def test_others_see_all_of_it_or_nothing(
    head: list[c.AnyCommand],
    parts: list[tuple[list[Any], list[Any]]],
    later: list[list[Any]],
    at_once: int,
    count: int,
    mostly_right: bool,
) -> None:
    pair = Pair(head)
    if mostly_right:
        corrected = right(pair.real, [part for part, _ in parts])
        parts = [(part, others) for part, (_, others) in zip(corrected, parts, strict=True)]
    outcome = None
    for number, (part, others) in enumerate(parts):
        last = number == len(parts) - 1
        outcome = pair.both(
            c.ImportDefinitions(import_id="i", number=number, commands=tuple(part), last=last, apply=at_once)
        )
        if outcome.error is not None:
            assert pair.real.importing is None
            break
        if not last:
            for other in others:
                pair.other(other)
    assert outcome is not None
    if outcome.error is not None:
        assert content(pair.real) == content(pair.reference), "nothing of it is left"
        return
    for part, _ in parts:
        for command in part:
            assert do(pair.reference, command).error is None
    for others in later:
        for other in others:
            pair.other(other)
        if (held := pair.real.importing) is not None:
            pair.both(c.ApplyImport(import_id="i", start=held.done, count=count))
    while (held := pair.real.importing) is not None:
        assert pair.both(c.ApplyImport(import_id="i", start=held.done, count=count)).result
    assert content(pair.real) == content(pair.reference)
    assert_invariants(pair.real)


@given(HEADS, DEFINITIONS)
@settings(max_examples=examples(100), deadline=None)
def test_an_abandoned_import_leaves_nothing(head: list[c.AnyCommand], part: list[Any]) -> None:
    map_ = folded(head)
    before = map_.digest()
    outcome = do(map_, c.ImportDefinitions(import_id="i", number=0, commands=tuple(part), last=False))
    assume(outcome.error is None)
    busy = do(map_, c.ImportDefinitions(import_id="j", number=0, commands=()))
    assert isinstance(busy.error, Contended)
    assert not do(map_, c.ApplyImport(import_id="i", start=0, count=10)).changes, "it is not accepted"
    assert do(map_, c.DropImport(import_id="j")).result is False
    assert do(map_, c.DropImport(import_id="i")).result is True
    assert map_.digest() == before
    late = do(map_, c.ImportDefinitions(import_id="i", number=1, commands=tuple(part)))
    assert isinstance(late.error, Contended)
    assert map_.digest() == before


def cluster() -> ClusterMap:
    map_ = ClusterMap()
    for name in ("a", "b", "c"):
        do(map_, c.AddMember(name=NodeId(name), address=f"{name}:1"))
        do(map_, c.RegisterNode(node=NodeId(name), disk_id=name, incarnation=Incarnation(1), address=f"{name}:1"))
    return map_


@given(
    st.lists(st.sampled_from(["q1", "q2", "q3", "q4", "q5"]), min_size=1, max_size=5, unique=True), st.integers(1, 3)
)
@settings(max_examples=examples(50), deadline=None)
def test_queues_of_an_import_are_placed_as_if_declared_one_by_one(names: list[str], count: int) -> None:
    map_, one_by_one = cluster(), cluster()
    commands = [c.DeclareQueue(vhost="/", name=name, durable=True) for name in names]
    for command in commands:
        do(one_by_one, command)
    do(map_, c.ImportDefinitions(import_id="i", number=0, commands=tuple(commands), apply=2))
    finish(map_, count)
    assert content(map_) == content(one_by_one)
    assert len({queue.queue_id for queue in map_.queues()}) == len(names)
    # the next ones have ids of their own as well
    do(map_, c.DeclareQueue(vhost="/", name="last", durable=True))
    assert len({queue.queue_id for queue in map_.queues()}) == len(names) + 1
