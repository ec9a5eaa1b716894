"""Who may enter, and how those are told who may not."""

from __future__ import annotations

from typing import Any

import pytest

from broker.amqp import methods as m
from broker.amqp.domains import push_longstr
from broker.amqp.fields import push_table
from cluster import commands as c
from cluster.entities import UserLimits
from tests.unit.broker.session.harness import CAPABILITIES, HEADER, Client, World


def login(
    world: World, mechanism: str, response: bytes, *, able: bool = True, loopback: bool = True, identity: Any = None
) -> tuple[Client, list[Any]]:
    client = Client(world, loopback=loopback, identity=identity)
    client.raw(HEADER)
    world.turn()
    client.hear(0)
    capabilities = {"capabilities": CAPABILITIES} if able else {}
    client.raw_method(0, m.ConnectionStartOk(capabilities, mechanism, response))
    world.turn()
    return client, client.hear(0)


def amqplain(**fields: Any) -> bytes:
    table = push_table(fields)
    assert push_longstr(table[4:]) == table
    return bytes(table[4:])


def test_start_says_who_we_are() -> None:
    client = Client(World())
    client.raw(HEADER)
    client.world.turn()
    (start,) = client.hear(0)
    assert (start.version_major, start.version_minor, start.mechanisms) == (0, 9, b"PLAIN AMQPLAIN")
    assert start.server_properties["capabilities"]["publisher_confirms"] is True
    client = Client(World())
    client.world.node.offers_external = True
    client.raw(HEADER)
    client.world.turn()
    assert client.hear(0)[0].mechanisms == b"PLAIN AMQPLAIN EXTERNAL"


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0guest"),
        ("PLAIN", b"ignored\0guest\0guest"),
        ("AMQPLAIN", amqplain(LOGIN="guest", PASSWORD="guest")),
        ("AMQPLAIN", amqplain(LOGIN="guest", PASSWORD=b"guest", MORE=1)),
    ],
)
def test_ways_in(mechanism: str, response: bytes) -> None:
    client, heard = login(World(), mechanism, response)
    assert heard == [m.ConnectionTune(2047, 131072, 60)]
    assert client.connection.user == "guest"


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("PLAIN", b"guest", 502),
        ("PLAIN", b"\0guest\0guest\0", 502),
        ("AMQPLAIN", amqplain(LOGIN="guest"), 502),
        ("AMQPLAIN", b"\x05LOGINS\0\0", 502),
        ("EXTERNAL", b"", 503),
        ("CRAM-MD5", b"", 503),
        ("PLAIN", b"\0guest\0wrong", 403),
        ("PLAIN", b"\0nobody\0guest", 403),
        ("PLAIN", b"\0\xff\xfe\0guest", 403),
    ],
)
def test_ways_that_lead_nowhere(mechanism: str, response: bytes, code: int) -> None:
    client, heard = login(World(), mechanism, response)
    assert heard[-1].reply_code == code
    if code == 403:
        assert heard[-1].reply_text == (
            f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
            "For details see the broker logfile."
        ), "the answer hides the reason"
        assert client.world.story.refusals[-1][1:] == (mechanism, "invalid credentials")


def test_a_client_that_cannot_be_told_is_cut() -> None:
    client, heard = login(World(), "PLAIN", b"\0guest\0wrong", able=False)
    assert heard == []
    assert client.ended == "flush"


def test_a_user_without_a_hash_is_checked_like_any_other() -> None:
    world = World()
    world.passwords_wait = True
    login(world, "PLAIN", b"\0nobody\0guest")
    assert [(user, password) for user, password, _ in world.checks] == [(None, b"guest")]


def test_guest_comes_from_this_machine_only() -> None:
    _, heard = login(World(), "PLAIN", b"\0guest\0guest", loopback=False)
    assert heard[-1].reply_code == 403
    _, heard = login(World(), "PLAIN", b"\0eve\0eve", loopback=False)
    assert isinstance(heard[-1], m.ConnectionTune)


def test_external() -> None:
    client, heard = login(World(), "EXTERNAL", b"", identity="eve")
    assert isinstance(heard[-1], m.ConnectionTune)
    assert client.connection.user == "eve"
    _, heard = login(World(), "EXTERNAL", b"", identity="nobody")
    assert heard[-1].reply_code == 403


def test_a_user_that_is_deleted_while_its_password_is_verified() -> None:
    world = World()
    world.passwords_wait = True
    client, _ = login(world, "PLAIN", b"\0eve\0eve")
    world.command(c.DeleteUser(name="eve"))
    world.checks[0].then(True)
    world.turn()
    assert client.hear(0)[-1].reply_code == 403


@pytest.mark.parametrize("whose", ["vhost", "user"])
def test_limits_of_connections(whose: str) -> None:
    world = World()
    if whose == "vhost":
        world.command(c.SetVhostLimits(vhost="/", connections_max=1))
    else:
        limits = UserLimits(connections_max=1)
        world.command(c.PutUser(name="eve", password_hash="eve", hash_algorithm="scrypt", limits=limits))
    first = world.client("eve")
    late, _ = login(world, "PLAIN", b"\0eve\0eve")
    late.raw_method(0, m.ConnectionTuneOk(2047, 131072, 0))
    late.raw_method(0, m.ConnectionOpen("/"))
    world.turn()
    assert late.hear(0)[-1].reply_code == 530
    first.leave()
    late.leave()
    world.client("eve")
