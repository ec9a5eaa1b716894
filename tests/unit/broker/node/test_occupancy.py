"""Limits of connections hold for all members: what each of them counts is told to the others."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.messages import Occupied
from clusterbroker.broker.node.occupancy import Occupancy
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from tests.unit.broker.fronts.amqp091.harness import HEADER, Client
from tests.unit.broker.node.node_cluster import Cluster, Site


def limited(cluster: Cluster, whose: str, most: int) -> None:
    if whose == "vhost":
        cluster.order(c.SetVhostLimits(vhost="/", connections_max=most))
    else:
        limits = UserLimits(connections_max=most)
        cluster.order(c.PutUser(name="guest", password_hash="guest", hash_algorithm="scrypt", limits=limits))
    cluster.wait(100)


def comes(site: Site) -> Any:
    """What a client hears that wants to come in."""
    client = Client(site)
    client.raw(HEADER)
    client.raw_method(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    client.raw_method(0, m.ConnectionTuneOk(2047, 131072, 0))
    client.raw_method(0, m.ConnectionOpen("/"))
    site.turn()
    heard = client.hear(0)[-1]
    if not isinstance(heard, m.ConnectionOpenOk):
        client.leave()
    site.cluster.wait(100)
    return heard


@pytest.mark.parametrize("whose", ["vhost", "user"])
def test_a_limit_counts_the_connections_of_all_members(whose: str) -> None:
    cluster = Cluster("a", "b", "c")
    limited(cluster, whose, 2)
    first = cluster["a"].client()
    cluster["b"].client()
    cluster.wait(100)
    for name in "abc":
        assert comes(cluster[name]).reply_code == 530
    first.leave()
    cluster.wait(100)
    assert isinstance(comes(cluster["c"]), m.ConnectionOpenOk)
    assert comes(cluster["a"]).reply_code == 530


@pytest.mark.parametrize("whose", ["vhost", "user"])
def test_a_limit_that_is_set_later_counts_who_is_there(whose: str) -> None:
    cluster = Cluster("a", "b")
    cluster["a"].client()
    cluster["a"].client()
    cluster.wait(100)
    assert cluster["b"].node.occupancy.of_vhost("/") == 0, "nobody asks: nothing is told"
    limited(cluster, whose, 2)
    assert comes(cluster["b"]).reply_code == 530
    limited(cluster, whose, -1)
    assert isinstance(comes(cluster["b"]), m.ConnectionOpenOk)


def test_a_member_that_is_gone_does_not_count() -> None:
    """Its clients come here."""
    cluster = Cluster("a", "b", "c")
    limited(cluster, "user", 1)
    cluster["a"].client()
    cluster.wait(100)
    assert comes(cluster["b"]).reply_code == 530
    cluster.kill("a")
    assert isinstance(comes(cluster["b"]), m.ConnectionOpenOk)
    assert comes(cluster["c"]).reply_code == 530


def test_a_new_link_tells_everything() -> None:
    cluster = Cluster("a", "b")
    limited(cluster, "vhost", 1)
    one = cluster["a"].client()
    cluster.wait(100)
    cluster.unlink("a", "b")
    assert cluster["b"].node.occupancy.of_vhost("/") == 0
    cluster.relink()
    cluster.turn()
    assert comes(cluster["b"]).reply_code == 530
    cluster.unlink("a", "b")
    one.leave()
    cluster.wait(100)
    cluster.relink()
    cluster.turn()
    assert isinstance(comes(cluster["b"]), m.ConnectionOpenOk)


def test_nothing_is_kept_of_whom_nobody_is_left() -> None:
    occupancy = Occupancy()
    occupancy.entered("v", "u", "c1")
    occupancy.entered("v", "u", "c2")
    occupancy.left("v", "u", "c1")
    assert tuple(occupancy.connections_of("u")) == ("c2",)
    occupancy.channel_began("u")
    occupancy.channel_ended("u")
    occupancy.left("v", "u", "c2")
    assert occupancy.connections_of("u") == ()
    occupancy.received("b", Occupied({"v": 3}, {"u": 2}))
    assert (occupancy.of_vhost("v"), occupancy.of_user("u"), occupancy.of_user("w")) == (3, 2, 0)
    occupancy.received("b", Occupied({"v": 0}, {}))
    assert (occupancy.of_vhost("v"), occupancy.of_user("u")) == (0, 2)
    occupancy.received("b", Occupied({}, {}, whole=True))
    assert occupancy.of_user("u") == 0
    assert (dict(occupancy.vhosts), dict(occupancy.users), dict(occupancy.channels_of_user)) == ({}, {}, {})
    assert all(not counted for counted in occupancy._elsewhere["b"])
