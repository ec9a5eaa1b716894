"""Founding among releases: the cluster begins at the level that all founders know, and all begin with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.founding import Founding
from clusterbroker.cluster.raft.identity import Founder, Identity, founders_map
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL

FOUNDERS = tuple(Founder(NodeId(name), f"{name}:1") for name in "abc")


def founder(name: str) -> Identity:
    return Identity(NodeId(name), f"disk-{name}", 1, FOUNDERS, ())


def said(identity: Identity, level: int) -> m.Introduce:
    return m.Introduce(identity.name, identity.disk_id, identity.creed, identity.voters, 0, 0, level)


@pytest.mark.parametrize("known", [(LEVEL, LEVEL), (LEVEL + 1, LEVEL), (LEVEL, FIRST), (FIRST, FIRST)])
def test_a_cluster_begins_at_the_level_that_all_founders_know(known: tuple[int, int]) -> None:
    founding = Founding(founder("a"))
    for name, level in zip("bc", known, strict=True):
        assert founding.over is None
        founding.introduced(said(founder(name), level))
    assert founding.over is not None
    assert founding.over.level == min(known)


def test_a_founder_that_comes_late_begins_with_the_map_of_the_others() -> None:
    """An older release was among them, and may have been replaced meanwhile: what it knows now is too late."""
    first = Founding(founder("a"))
    for name in "bc":
        first.introduced(said(founder(name), FIRST))
    assert first.over is not None
    late = Founding(founder("b"))
    late.introduced(said(first.over, first.over.level))
    assert late.over == replace(first.over, name=NodeId("b"), disk_id="disk-b")


def test_an_introduction_of_an_older_release_says_the_first_level() -> None:
    older = m.encode(said(founder("b"), LEVEL))
    fields = older[:1].replace(b"\x98", b"\x97") + older[1:-1]
    assert m.decode(fields) == said(founder("b"), FIRST)


def test_the_first_map_is_an_older_releases_where_one_founds_too() -> None:
    first, present = founders_map(FOUNDERS, FIRST), founders_map(FOUNDERS, LEVEL)
    assert (first.level, present.level) == (FIRST, LEVEL)
    assert first.applied == len(FOUNDERS)
    assert "level" not in dict(first.snapshot().sections())
