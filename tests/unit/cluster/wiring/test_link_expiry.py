"""When suspended links end."""

from __future__ import annotations

from typing import Any

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import RecoverableLink
from clusterbroker.cluster.wiring.link_expiry import AGAIN_MS, LinkExpiry
from tests.unit.cluster.cluster_world import ClusterWorld


def suspended(world: ClusterWorld, name: str = "l", timeout_ms: int | None = 1000, **fields: Any) -> RecoverableLink:
    command = c.AttachLink(
        node=NodeId("a"), incarnation=world.member("a").incarnation, vhost="/", container="c", name=name, role="sender",
        terminus="", user="u", timeout_ms=timeout_ms, is_administrator=True, **fields,
    )  # fmt: skip
    link = world.do(command)
    assert isinstance(link, RecoverableLink)
    world.do(c.SuspendLink(link=link.link, attach=link.attach))
    return link


def test_a_link_ends_when_it_was_seen_suspended_for_its_timeout() -> None:
    world, expiry = ClusterWorld(), LinkExpiry()
    link, later = suspended(world), suspended(world, "later", 5000)
    assert expiry.look(True, world.map, 100) == ([], 1100)
    assert expiry.look(True, world.map, 1099) == ([], 1100)
    ends = [c.ExpireLink(link=link.link, attach=1)]
    assert expiry.look(True, world.map, 1100) == (ends, 5100)
    world.do(ends[0])
    assert expiry.look(True, world.map, 5100)[0] == [c.ExpireLink(link=later.link, attach=1)]


def test_what_came_to_nothing_is_proposed_again() -> None:
    world, expiry = ClusterWorld(), LinkExpiry()
    suspended(world)
    expiry.look(True, world.map, 0)
    over, next_ms = expiry.look(True, world.map, 1000)
    assert (len(over), next_ms) == (1, 1000 + AGAIN_MS)
    assert expiry.look(True, world.map, 1000 + AGAIN_MS)[0] == over


def test_an_attach_in_between_begins_anew() -> None:
    world, expiry = ClusterWorld(), LinkExpiry()
    suspended(world)
    expiry.look(True, world.map, 0)
    suspended(world)
    assert expiry.look(True, world.map, 1000) == ([], 2000)


def test_a_new_leader_begins_anew() -> None:
    world, expiry = ClusterWorld(), LinkExpiry()
    suspended(world)
    expiry.look(True, world.map, 0)
    assert expiry.look(False, world.map, 500) == ([], None)
    assert expiry.look(True, world.map, 1000) == ([], 2000)


def test_links_for_ever_and_attached_ones_do_not_end() -> None:
    world, expiry = ClusterWorld(), LinkExpiry()
    link = suspended(world, timeout_ms=None)
    assert expiry.look(True, world.map, 10**12) == ([], None)
    assert expiry.look(True, world.map, 2 * 10**12) == ([], None)
    assert expiry.seen == {link.link: (1, 10**12)}, "operators are told since when it is suspended"
