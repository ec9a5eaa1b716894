"""Addresses of members: written down, told to others, told to clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.broker.server.directory import WrongIdentity
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.member.addresses import dialable, own_address, remember, remembered
from clusterbroker.broker.server.member.leaving import heirs, one_copy_more
from clusterbroker.cluster.wiring.balance import waits_for
from tests.unit.cluster.cluster_world import ClusterWorld


def test_addresses_are_kept_over_a_restart(tmp_path: Path) -> None:
    assert remembered(tmp_path) == {}
    remember(tmp_path, {"b": "10.0.0.2:5673", "a": "10.0.0.1:5673"})
    assert list(remembered(tmp_path).items()) == [("a", "10.0.0.1:5673"), ("b", "10.0.0.2:5673")]
    for damaged in ("", "[]", '{"members": 3}', "{"):
        (tmp_path / "members").write_text(damaged)
        with pytest.raises(WrongIdentity, match="damaged"):
            remembered(tmp_path)


def test_others_are_told_an_address_that_they_can_dial() -> None:
    anywhere = Address("0.0.0.0", 5673)
    here = Address("10.0.0.1", 5673)
    assert own_address("a", anywhere, [("a", "10.0.0.1:5673", False)], {}) == "10.0.0.1:5673", "as --peers says"
    assert own_address("a", here, [("a", "10.0.0.1:5673", False)], {"a": "10.0.0.9:1"}) == "10.0.0.1:5673"
    assert own_address("a", anywhere, [("a", str(anywhere), False)], {"a": "10.0.0.9:1"}) == "10.0.0.9:1"
    with pytest.raises(Unstarted, match="is no address that others can dial"):
        own_address("a", anywhere, [("a", str(anywhere), False)], {})


def test_clients_are_told_no_wildcards() -> None:
    urls = ("amqp://0.0.0.0:5672", "amqps://[::]:5671", "amqp://127.0.0.1:1")
    assert dialable(urls, "10.0.0.1:5673") == ("amqp://10.0.0.1:5672", "amqps://10.0.0.1:5671", "amqp://127.0.0.1:1")


def test_heirs_are_in_sync_alive_and_stay() -> None:
    world = ClusterWorld("abc")
    queue = world.declare("q")
    owner = queue.owner
    others = [name for name in "abc" if name != owner]
    assert heirs(world.map, queue) == others
    world.drain(others[0])
    assert heirs(world.map, world.queue("q")) == others[1:]
    world.fail(others[1])
    assert heirs(world.map, world.queue("q")) == []


def test_a_queue_of_one_copy_gets_another_before_its_node_drains() -> None:
    world = ClusterWorld("ab")
    queue = world.declare("q", x={"replicas": 1})
    owner = str(queue.owner)
    other = "b" if owner == "a" else "a"
    assert one_copy_more(world.map, queue) is None, "its owner stays"
    world.drain(owner)
    move = one_copy_more(world.map, world.queue("q"))
    assert move is not None
    assert move.add == (other,)
    world.do(move)
    assert one_copy_more(world.map, world.queue("q")) is None, "one is on its way"
    world.fail(other)
    assert one_copy_more(world.map, world.queue("q")) is None, "nobody could hold it"


def test_it_is_told_who_is_waited_for() -> None:
    world = ClusterWorld("abc")
    queue = world.declare("q", x={"replicas": 1})
    assert waits_for(world.map) == {}
    world.fail(str(queue.owner))
    assert waits_for(world.map) == {queue.owner: 1}
