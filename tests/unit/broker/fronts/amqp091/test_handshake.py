"""Who may enter, and how those are told who may not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.access.sign_in import address_of
from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.clients import Accepted
from clusterbroker.broker.node.effects import GOOD
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.domains import push_longstr
from clusterbroker.broker.wire.amqp091.fields import push_table
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Client, World


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


def test_external_is_offered_to_who_has_shown_a_certificate() -> None:
    """py-amqp and AMQPStorm choose it wherever it is offered."""
    client = Client(World(), identity="eve")
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
    assert [(check.user, check.secret, check.address) for check in world.checks] == [(None, b"guest", "192.0.2.1")]


def test_guest_comes_from_this_machine_only() -> None:
    _, heard = login(World(), "PLAIN", b"\0guest\0guest", loopback=False)
    assert heard[-1].reply_code == 403
    _, heard = login(World(), "PLAIN", b"\0eve\0eve", loopback=False)
    assert isinstance(heard[-1], m.ConnectionTune)


def test_the_password_of_a_user_of_this_machine_is_not_looked_at_from_elsewhere() -> None:
    """A right one is remembered, and answered at once the second time: so a stranger would learn that it is right."""
    world = World()
    world.passwords_wait = True
    client, _ = login(world, "PLAIN", b"\0guest\0guest", loopback=False)
    assert [(check.name, check.user) for check in world.checks] == [("guest", None)], "as of nobody"
    world.answer_passwords()
    world.turn()
    assert client.hear(0)[-1].reply_code == 403
    assert world.story.refusals == [("guest", "PLAIN", "this user may only connect from a loopback address")]


def test_what_a_client_says_of_itself_is_bounded() -> None:
    """It is kept from before the login on: 8 KiB of empty tables would take 200."""
    world = World()
    client = Client(world)
    client.raw(HEADER)
    world.turn()
    client.hear(0)
    said: dict[str, Any] = {"product": "x", "all": [{} for _ in range(300)]}
    client.raw_method(0, m.ConnectionStartOk(said, "PLAIN", b"\0guest\0guest"))
    world.turn()
    (close,) = client.hear(0)
    assert (close.reply_code, close.reply_text) == (502, "SYNTAX_ERROR - more than 256 client properties")
    assert not client.connection.client_properties


def test_external() -> None:
    client, heard = login(World(), "EXTERNAL", b"", identity="eve")
    assert isinstance(heard[-1], m.ConnectionTune)
    assert client.connection.user == "eve"
    _, heard = login(World(), "EXTERNAL", b"", identity="nobody")
    assert heard[-1].reply_code == 403


def test_a_certificate_does_not_bring_a_user_of_this_machine_from_elsewhere() -> None:
    """As any other mechanism: whoever gives out certificates chooses their names."""
    world = World()
    client, _ = login(world, "EXTERNAL", b"", identity="guest", loopback=False)
    assert world.story.refusals == [("guest", "EXTERNAL", "this user may only connect from a loopback address")]
    assert client.ended is not None or client.connection.user == ""
    client, _ = login(World(), "EXTERNAL", b"", identity="guest")
    assert client.connection.user == "guest"
    client, _ = login(World(), "EXTERNAL", b"", identity="eve", loopback=False)
    assert client.connection.user == "eve"


def test_a_user_that_is_deleted_while_its_password_is_verified() -> None:
    world = World()
    world.passwords_wait = True
    client, _ = login(world, "PLAIN", b"\0eve\0eve")
    world.command(c.DeleteUser(name="eve"))
    world.checks[0].then(GOOD)
    world.turn()
    assert client.hear(0)[-1].reply_code == 403


def test_a_user_that_is_deleted_takes_its_connections_with_it() -> None:
    world = World()
    eve, other = world.client("eve"), world.client()
    world.command(c.DeleteUser(name="eve"))
    world.command(c.PutUser(name="eve", password_hash="another", hash_algorithm="scrypt"))
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write=".*", read=".*"))
    closed = eve.hear(0)[-1]
    assert (closed.reply_code, closed.reply_text) == (320, "CONNECTION_FORCED - user 'eve' is deleted")
    assert isinstance(other.ask(m.QueueDeclare(queue="q")), m.QueueDeclareOk), "others stay"


def _limited(name: str, **limits: int) -> c.PutUser:
    return c.PutUser(name=name, password_hash=name, hash_algorithm="scrypt", limits=UserLimits(**limits))


def test_a_users_channels_are_counted_over_all_its_connections() -> None:
    world = World()
    world.command(_limited("eve", channels_max=3))
    first, second, other = world.client("eve", channels=2), world.client("eve", channels=1), world.client(channels=9)
    assert isinstance(second.ask(m.ChannelClose(200, "", 0, 0)), m.ChannelCloseOk)
    assert second.ask(m.ChannelOpen(), 2) == m.ChannelOpenOk(), "what was closed counts no more"
    second.say(m.ChannelOpen(), channel=3)
    assert second.hear(0)[-1].reply_text == (
        "NOT_ALLOWED - number of channels opened for user 'eve' has reached the maximum allowed user limit of (3)"
    )
    assert first.ask(m.ChannelOpen(), 3) == m.ChannelOpenOk(), "those of a connection that ended neither"
    assert other.ask(m.ChannelOpen(), 10) == m.ChannelOpenOk()
    first.leave()
    world.client("eve", channels=3)


def test_a_limit_that_is_taken_off_holds_nobody_up() -> None:
    world = World()
    world.command(_limited("eve", channels_max=0))
    client = world.client("eve", channels=0)
    world.command(_limited("eve", channels_max=-1))
    assert client.ask(m.ChannelOpen()) == m.ChannelOpenOk()


def test_the_channels_of_a_node_have_a_limit() -> None:
    world = World(channels_max=3, name="here")
    world.client(channels=2)
    client = world.client("eve", channels=1)
    client.say(m.ChannelOpen(), channel=2)
    assert client.hear(0)[-1].reply_text == (
        "NOT_ALLOWED - number of channels opened on node 'here' has reached the maximum allowed limit of (3)"
    )
    world.client(channels=1)


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


@pytest.mark.parametrize(
    ("peer", "address"),
    [("192.0.2.1:5", "192.0.2.1"), ("[2001:db8::1]:5", "2001:db8::1"), ("unknown", "unknown")],
)
def test_guesses_are_counted_by_address(peer: str, address: str) -> None:
    world = World()
    assert address_of(Connection(world.node, Accepted(peer, False, 0))) == address
