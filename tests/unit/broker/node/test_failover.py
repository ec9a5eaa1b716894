"""Where clients may go, and what they are told of members."""

from __future__ import annotations

import json

from clusterbroker.broker.node.failover import DRAINED, TEXT_BYTES_MAX, addresses, body, events, hosts, moving_text
from tests.unit.cluster.cluster_world import ClusterWorld


def test_clients_may_go_where_queues_can_live() -> None:
    world = ClusterWorld("cab", witnesses="w")
    assert addresses(world.map) == ("amqp://a:5672", "amqp://b:5672", "amqp://c:5672")
    world.fail("b")
    world.drain("c")
    assert [member.name for member in hosts(world.map)] == ["a"]
    assert addresses(world.map, "a") == ()


def test_a_text_names_whole_addresses_only() -> None:
    world = ClusterWorld("abc")
    assert moving_text(DRAINED, world.map, "b") == "node is drained, connect to amqp://a:5672 or amqp://c:5672"
    world.fail("a")
    world.fail("c")
    assert moving_text(DRAINED, world.map, "b") == "node is drained"
    many = ClusterWorld("abcdefghijklmnopqrstuvwxyz")
    text = moving_text("why", many.map, "a")
    assert len(text.encode()) <= TEXT_BYTES_MAX
    assert text.endswith(":5672")


def test_events_tell_what_became_of_each_member() -> None:
    one, other = (1, ("amqp://a",)), (2, ("amqp://a",))
    assert events({}, {"a": one}, frozenset()) == [("member_joined", "a")]
    assert events({"a": one}, {"a": one}, frozenset()) == []
    assert events({"a": one, "b": one}, {"b": one}, frozenset()) == [("member_left", "a")]
    assert events({"a": one}, {}, frozenset({"a"})) == [("member_drains", "a")]
    assert events({"a": one}, {"a": other}, frozenset()) == [("member_joined", "a")], "it was back before it was missed"
    assert events({"b": one}, {"a": one}, frozenset()) == [("member_joined", "a"), ("member_left", "b")]


def test_a_body_lists_the_members_to_go_to() -> None:
    world = ClusterWorld("ab")
    told = json.loads(body("member_left", "c", hosts(world.map)))
    assert told == {
        "event": "member_left",
        "member": "c",
        "members": [{"name": "a", "amqp": ["amqp://a:5672"]}, {"name": "b", "amqp": ["amqp://b:5672"]}],
    }
