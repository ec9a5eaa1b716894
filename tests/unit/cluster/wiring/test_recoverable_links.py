"""Recoverable links in the map: who attaches, what ends them, what a snapshot and a level say of them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import AccessRefused, LimitReached, NotFound, PreconditionFailed
from clusterbroker.cluster.ids import LOCAL_NODE, Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import links
from clusterbroker.cluster.wiring.entities import RecoverableLink
from clusterbroker.cluster.wiring.levels import LINK_RECOVERY, check_ordered
from clusterbroker.cluster.wiring.links import NAME_BYTES_MAX, TIMEOUT_MS_MAX
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.cluster_world import ClusterWorld


@pytest.fixture
def world() -> ClusterWorld:
    return ClusterWorld()


def attach(world: ClusterWorld, at: str = "a", **fields: Any) -> RecoverableLink:
    member = world.member(at)
    link = world.do(
        c.AttachLink(
            node=NodeId(at),
            incarnation=fields.pop("incarnation", member.incarnation if member else Incarnation(1)),
            **{
                "vhost": "/", "container": "c", "name": "l", "role": "sender", "terminus": "/queues/q", "user": "u",
                "timeout_ms": 1000, **fields,
            },
        )
    )  # fmt: skip
    assert isinstance(link, RecoverableLink)
    return link


def link_of(world: ClusterWorld, link: RecoverableLink) -> RecoverableLink:
    found = world.map.link(link.link)
    assert found is not None
    return found


def test_a_link_keeps_its_number_and_counts_its_attaches(world: ClusterWorld) -> None:
    first = attach(world)
    assert (first.link, first.attach, first.suspended) == (world.map.applied, 1, False)
    second = attach(world, "b", resumes=True)
    assert (second.link, second.attach, second.node) == (first.link, 2, "b")
    assert world.map.link_since(first.link, 2) == 1
    assert world.map.link_since(first.link, 1) == 0
    assert attach(world).since == 3, "it was not resumed"
    assert attach(world, resumes=True).since == 3


def test_identities_differ_by_vhost_container_name_and_role(world: ClusterWorld) -> None:
    world.do(c.AddVhost(name="v"))
    found = [
        attach(world), attach(world, vhost="v"), attach(world, container="d"), attach(world, name="m"),
        attach(world, role="receiver"),
    ]  # fmt: skip
    assert len({link.link for link in found}) == 5
    assert world.map.links() == tuple(found)
    assert world.map.links("v") == (found[1],)


def test_a_resumed_link_must_be_known(world: ClusterWorld) -> None:
    with pytest.raises(NotFound, match="link 'l' of container 'c' in vhost '/' is not known"):
        attach(world, resumes=True)


def test_another_user_is_refused(world: ClusterWorld) -> None:
    attach(world)
    with pytest.raises(AccessRefused, match="belongs to user 'u'"):
        attach(world, user="stranger", is_administrator=True)


def test_another_terminus_is_another_link_unless_it_is_resumed(world: ClusterWorld) -> None:
    first = attach(world)
    with pytest.raises(PreconditionFailed, match="has terminus '/queues/q', not '/queues/r'"):
        attach(world, terminus="/queues/r", resumes=True)
    other = attach(world, terminus="/queues/r")
    assert (other.attach, other.link != first.link) == (1, True)
    assert world.map.link(first.link) is None


def test_only_the_last_attach_suspends_expires_and_forgets(world: ClusterWorld) -> None:
    link = attach(world)
    attach(world)
    for kind in (c.SuspendLink, c.ExpireLink, c.ForgetLink):
        assert world.do(kind(link=link.link, attach=1)) is False
    assert world.do(c.ExpireLink(link=link.link, attach=2)) is False, "an attached link does not expire"
    assert world.do(c.SuspendLink(link=link.link, attach=2)) is True
    assert world.do(c.SuspendLink(link=link.link, attach=2)) is False
    assert link_of(world, link).suspended
    assert world.do(c.ExpireLink(link=link.link, attach=2)) is True
    assert world.map.link(link.link) is None
    assert world.do(c.ForgetLink(link=link.link, attach=2)) is False


def test_a_suspended_link_is_attached_again(world: ClusterWorld) -> None:
    link = attach(world)
    world.do(c.SuspendLink(link=link.link, attach=1))
    again = attach(world, "c", resumes=True)
    assert (again.attach, again.suspended, again.node) == (2, False, "c")
    assert world.do(c.ExpireLink(link=link.link, attach=1)) is False


def test_a_link_that_is_forgotten_and_attached_again_has_another_number(world: ClusterWorld) -> None:
    link = attach(world)
    world.do(c.ForgetLink(link=link.link, attach=1))
    assert attach(world).link > link.link


@pytest.mark.parametrize("end", ["fail", "register", "forget"])
def test_a_node_whose_process_is_over_has_its_links_suspended(world: ClusterWorld, end: str) -> None:
    at_a, at_b = attach(world, name="at a"), attach(world, "b")
    if end == "register":
        world.register("b")
    elif end == "fail":
        world.fail("b")
    else:
        world.drain("b", leaving=True)
        world.leave("b")
    assert link_of(world, at_b).suspended
    assert not link_of(world, at_a).suspended


def test_a_node_that_has_begun_anew_attaches_nothing_of_its_former_life(world: ClusterWorld) -> None:
    stale = world.member("b").incarnation
    world.register("b")
    with pytest.raises(PreconditionFailed, match="node 'b' has failed since, or begun anew"):
        attach(world, "b", incarnation=stale)


def test_the_start_of_a_node_that_is_alone_suspends() -> None:
    world = ClusterWorld(members="")
    link = attach(world, LOCAL_NODE)
    world.do(c.ForgetTransient(node=LOCAL_NODE))
    assert link_of(world, link).suspended


def test_the_first_member_suspends_what_the_single_node_had() -> None:
    world = ClusterWorld(members="")
    link = attach(world, LOCAL_NODE)
    world.add("a")
    assert link_of(world, link).suspended


def test_the_end_of_vhost_or_user_ends_links(world: ClusterWorld) -> None:
    world.do(c.AddVhost(name="v"))
    world.do(c.PutUser(name="w"))
    in_vhost, of_user, other = attach(world, vhost="v"), attach(world, container="d", user="w"), attach(world)
    world.do(c.DeleteVhost(name="v"))
    world.do(c.DeleteUser(name="w"))
    assert [world.map.link(link.link) is None for link in (in_vhost, of_user, other)] == [True, True, False]


def test_bounds_of_names_and_times(world: ClusterWorld) -> None:
    attach(world, name="n" * NAME_BYTES_MAX)
    for field in ("container", "name"):
        for text in ("", "é" * (NAME_BYTES_MAX // 2 + 1)):
            with pytest.raises(PreconditionFailed, match="has 1 to 256 bytes"):
                attach(world, **{field: text})
    with pytest.raises(PreconditionFailed, match="at most 1024 bytes"):
        attach(world, terminus="t" * 1025)
    with pytest.raises(PreconditionFailed, match="is negative"):
        attach(world, timeout_ms=-1)
    assert attach(world, timeout_ms=None).timeout_ms == TIMEOUT_MS_MAX
    assert attach(world, timeout_ms=2 * TIMEOUT_MS_MAX).timeout_ms == TIMEOUT_MS_MAX
    assert attach(world, timeout_ms=None, is_administrator=True).timeout_ms is None


def test_a_vhost_has_so_many_links_and_a_user_half_of_what_others_leave(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LINKS_MAX", 6)
    for number in range(3):
        attach(world, name=str(number))
    with pytest.raises(LimitReached, match="user 'u' has 3 recoverable links in vhost '/', half of what others leave"):
        attach(world, name="3")
    attach(world, name="0")  # an old one is none more
    attach(world, name="4", user="other")
    for number in (5, 6):
        attach(world, name=str(number), is_administrator=True)
    with pytest.raises(LimitReached, match="vhost '/' has 6 recoverable links"):
        attach(world, name="7", is_administrator=True)


def test_snapshots_have_links_and_go_on_with_them(world: ClusterWorld) -> None:
    link = attach(world, "b")
    suspended = attach(world, "c", name="m")
    world.do(c.SuspendLink(link=suspended.link, attach=1))
    restored = world.restored()
    assert restored.digest() == world.map.digest()
    for map_ in (restored, world.map):
        command = c.FailNode(node=NodeId("b"), incarnation=world.member("b").incarnation)
        applied = map_.apply(LogIndex(map_.applied + 1), command)
        assert applied.changes
        found = map_.link(link.link)
        assert found is not None
        assert found.suspended
    assert restored.digest() == world.map.digest()


def test_a_map_without_links_is_an_older_releases() -> None:
    assert "link" not in dict(ClusterMap().snapshot().sections())


def test_below_its_level_no_link_is_ordered() -> None:
    command = c.ForgetLink(link=LogIndex(1), attach=1)
    check_ordered(command, LINK_RECOVERY)
    with pytest.raises(PreconditionFailed, match=f"this needs feature level {LINK_RECOVERY}"):
        check_ordered(command, LINK_RECOVERY - 1)
