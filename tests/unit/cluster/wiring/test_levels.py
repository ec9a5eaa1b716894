"""Feature levels: who decides, what is refused, what an older release finds in snapshots, what a newer one wrote."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.errors import FormatTooNew, LimitReached, NewerRelease, PreconditionFailed
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.raft.fold import Envelope, Fold
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import levels, snapshot
from clusterbroker.cluster.wiring.changes import LevelRaised
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL, LEVELS, LINK_RECOVERY, MEMBERS_MAX
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.cluster_world import ClusterWorld
from tests.unit.cluster.wiring.test_recorded_fold import LATER


def everybody(world: ClusterWorld) -> tuple[tuple[NodeId, Incarnation], ...]:
    return tuple((member.name, member.incarnation) for member in world.map.members())


def raised(world: ClusterWorld, level: int = LEVEL, **changes: Any) -> Any:
    return world.do(c.RaiseLevel(level=level, **{"members": everybody(world), **changes}))


def registration(name: str, incarnation: int, level: int) -> c.RegisterNode:
    return c.RegisterNode(
        node=NodeId(name), disk_id=f"disk of {name}", incarnation=Incarnation(incarnation), address="x:1", level=level
    )


def test_levels_are_numbered_from_one_and_each_says_what_it_brings() -> None:
    assert [level.number for level in LEVELS] == list(range(FIRST, LEVEL + 1))
    assert all(level.brings for level in LEVELS)


def test_every_command_that_older_releases_do_not_know_has_a_level() -> None:
    assert LATER - {c.RaiseLevel} == {kind for level in LEVELS for kind in level.commands}
    assert not LEVELS[0].commands


def test_a_node_that_is_alone_is_at_the_level_of_its_release_and_a_cluster_where_it_began() -> None:
    assert ClusterMap().level == LEVEL
    assert ClusterWorld().map.level == FIRST


def test_the_level_is_raised_and_told() -> None:
    world = ClusterWorld()
    raised(world)
    assert world.map.level == LEVEL
    assert world.last is not None
    assert world.last.changes == (LevelRaised(LEVEL),)


@pytest.mark.parametrize("level", [0, FIRST, LEVEL])
def test_it_never_falls(level: int) -> None:
    world = ClusterWorld()
    raised(world)
    with pytest.raises(PreconditionFailed, match=f"the cluster is at feature level {LEVEL}, which never falls"):
        raised(world, level)
    assert world.map.level == LEVEL


@pytest.mark.parametrize("stale", [False, True])
def test_each_member_that_has_registered_must_be_known_in_its_present_life(stale: bool) -> None:
    world = ClusterWorld()
    known = everybody(world)
    if stale:  # it has begun anew since its release was looked at: perhaps another one
        world.register("b")
    else:
        known = known[:1] + known[2:]
    with pytest.raises(PreconditionFailed, match=f"member 'b' is not known to support feature level {LEVEL}"):
        raised(world, members=known)
    assert world.map.level == FIRST
    raised(world)


def test_a_dead_member_counts_and_one_that_never_registered_does_not() -> None:
    world = ClusterWorld()
    known = everybody(world)
    world.add("d")
    world.fail("c")
    with pytest.raises(PreconditionFailed, match="member 'c' is not known"):
        raised(world, members=known[:2])
    raised(world, members=known)
    with pytest.raises(PreconditionFailed, match="member 'd' runs a release that knows feature level 1, and the"):
        world.do(registration("d", 1, FIRST))
    world.do(registration("d", 1, LEVEL))


def test_an_older_release_is_refused_and_changes_nothing() -> None:
    world = ClusterWorld()
    world.declare("q")
    raised(world)
    before = world.map.digest()
    with pytest.raises(PreconditionFailed, match=f"the cluster is at level {LEVEL}, which never falls: install"):
        world.do(registration("a", 2, FIRST))
    assert world.map.digest() == before
    world.do(registration("a", 2, LEVEL + 1))


def test_below_it_the_fold_keeps_nothing_that_an_older_release_would_drop() -> None:
    """That release writes snapshots too, and its member is upgraded later: then all must have the same map."""
    new, old = ClusterWorld(), ClusterWorld()
    for world, level in ((new, LEVEL), (old, FIRST)):
        for name in "abc":
            world.do(registration(name, 2, level))
    assert new.map.digest() == old.map.digest()
    assert list(snapshot.encode(new.map.snapshot())) == list(snapshot.encode(old.map.snapshot()))


def test_a_snapshot_of_the_first_level_has_no_kind_that_an_older_release_refuses() -> None:
    world = ClusterWorld()
    assert "level" not in dict(world.map.snapshot().sections())
    digest = world.map.digest()
    raised(world)
    assert dict(world.map.snapshot().sections())["level"] == [LEVEL]
    assert world.map.digest() != digest
    assert world.restored().level == LEVEL
    assert world.restored().digest() == world.map.digest()


# -- what a newer release has raised


def folded(fold: Fold, number: int, command: c.AnyCommand) -> Any:
    return fold.apply(LogIndex(fold.map.applied + 1), Envelope("a/d", 1, number, c.encode(command)))


def test_a_member_that_does_not_know_the_level_stops_with_words() -> None:
    fold = Fold(ClusterWorld().map)
    known = tuple((member.name, member.incarnation) for member in fold.map.members())
    refused = folded(fold, 1, c.RaiseLevel(level=LEVEL + 1, members=known[1:]))
    assert "member 'a' is not known" in refused.error.text, "what the others refuse is refused here, too"
    with pytest.raises(FormatTooNew, match=f"at feature level {LEVEL + 1}, this release knows levels up to {LEVEL}"):
        folded(fold, 2, c.RaiseLevel(level=LEVEL + 1, members=known))


def test_a_snapshot_of_a_level_that_is_not_known_is_a_newer_releases() -> None:
    world = ClusterWorld()
    taken = world.map.snapshot()
    taken.levels = [LEVEL + 1]
    with pytest.raises(NewerRelease, match=f"this release knows levels up to {LEVEL}"):
        ClusterMap.restored(snapshot.decode(taken.index, list(snapshot.encode(taken))))
    stored = replace(Fold(world.map).dump((b"", 1, 0), (b"", 2, 0), ()), chunks=tuple(snapshot.encode(taken)))
    with pytest.raises(FormatTooNew, match="it comes from a newer release; upgrade this node"):
        Fold.restored(stored, "raft")


# -- commands of a level


def test_a_command_of_a_level_is_not_ordered_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_NEEDED", {c.Bind: 3, c.DeleteVhost: 2})
    bind = c.Bind(vhost="/", source="x", destination="q")
    contained = c.ImportDefinitions(import_id="i", number=0, commands=(c.AddVhost(name="v"), bind))
    for command in (bind, contained):
        with pytest.raises(PreconditionFailed, match="this needs feature level 3, and the cluster is at 2: when all"):
            levels.check_ordered(command, 2)
        levels.check_ordered(command, 3)
    ending = c.Loosen(ending=c.DeleteVhost(name="v"))
    with pytest.raises(PreconditionFailed, match="needs feature level 2"):
        levels.check_ordered(ending, 1)
    levels.check_ordered(ending, 2)
    levels.check_ordered(c.ImportDefinitions(import_id="i", number=0, commands=()), 1)


def grown(count: int) -> ClusterWorld:
    """A cluster of so many members, at the level before LINK_RECOVERY."""
    world = ClusterWorld()
    raised(world, LINK_RECOVERY - 1)
    for number in range(count - len(world.map.members())):
        world.do(c.AddMember(name=NodeId(f"m{number}"), address=f"x:{number + 1}"))
    return world


def test_a_message_s_holder_is_one_byte_so_members_are_bounded() -> None:
    """Of the numbers of a byte two are no member's from that level on."""
    world = grown(MEMBERS_MAX)
    raised(world, LINK_RECOVERY)
    with pytest.raises(LimitReached, match="at most 253 members"):
        world.do(c.AddMember(name=NodeId("one-more"), address="x:9999"))
    assert len(world.map.members()) == MEMBERS_MAX


def test_a_cluster_with_more_members_stays_below_it() -> None:
    world = grown(MEMBERS_MAX + 1)
    with pytest.raises(PreconditionFailed, match="this one has 254: forget some first"):
        raised(world, LINK_RECOVERY)
    assert world.map.level == LINK_RECOVERY - 1
