"""Every state against every method, and how a connection begins, lives and ends."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp091.state import State
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.layout import METHODS, Method
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import CAPABILITIES, HEADER, Client, World

START_OK = m.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0guest\0guest")
TUNE_OK = m.ConnectionTuneOk(2047, 131072, 0)
LEGAL = {
    State.START: {m.ConnectionStartOk},
    State.TUNE: {m.ConnectionTuneOk},
    State.VHOST: {m.ConnectionOpen},
    State.OPEN: {m.ConnectionUpdateSecret},
}
CHANNEL_METHODS = {
    m.ChannelFlow, m.ChannelClose, m.AccessRequest, m.ExchangeDeclare, m.ExchangeDelete, m.ExchangeBind,
    m.ExchangeUnbind, m.QueueDeclare, m.QueueBind, m.QueueUnbind, m.QueuePurge, m.QueueDelete, m.BasicQos,
    m.BasicConsume, m.BasicCancel, m.BasicPublish, m.BasicGet, m.BasicAck, m.BasicReject, m.BasicNack, m.BasicRecover,
    m.BasicRecoverAsync, m.TxSelect, m.TxCommit, m.TxRollback, m.ConfirmSelect,
}  # fmt: skip


def client_in(state: State, world: World | None = None) -> Client:
    client = Client(world or World(journaled=False))
    steps = [HEADER, START_OK, TUNE_OK, m.ConnectionOpen("/")]
    for step in steps[: {State.HEADER: 0, State.START: 1, State.TUNE: 2, State.VHOST: 3, State.OPEN: 4}[state]]:
        if isinstance(step, bytes):
            client.raw(step)
        else:
            client.raw_method(0, step)
        client.world.turn()
    assert client.connection.state is state
    client.hear(0)
    return client


def say(client: Client, method: Method, channel: int) -> list[Any]:
    if isinstance(method, m.BasicPublish):
        client.raw(client.content("", "q", b"body", channel=channel))
    else:
        client.raw_method(channel, method)
    client.world.turn()
    return client.hear(0)


def code(heard: list[Any]) -> int | None:
    closes = [said for said in heard if isinstance(said, m.ConnectionClose)]
    return closes[0].reply_code if closes else None


@pytest.mark.parametrize("state", LEGAL)
@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_what_channel_0_takes(state: State, kind: type[Method]) -> None:
    client = client_in(state)
    heard = say(client, START_OK if kind is m.ConnectionStartOk else kind(), 0)
    if kind is m.ConnectionClose:
        assert heard == [m.ConnectionCloseOk()]
        assert client.ended == "flush"
    elif kind is m.BasicPublish:
        assert code(heard) == 505, "content belongs to a channel"
    elif kind is m.BasicAck:
        assert code(heard) == 504
    elif kind in LEGAL[state]:
        # the empty tune-ok is legal here, and wrong
        assert code(heard) == {m.ConnectionTuneOk: 530}.get(kind)
    else:
        assert code(heard) == 503
        close = heard[-1]
        assert (close.class_id, close.method_id) == (kind.CLASS_ID, kind.METHOD_ID), "the offender is named"


@pytest.mark.parametrize("state", LEGAL)
@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_what_a_channel_takes_that_is_not_open(state: State, kind: type[Method]) -> None:
    client = client_in(state)
    heard = say(client, kind(), 1)
    if state is State.OPEN and kind is m.ChannelOpen:
        assert heard == []
        assert client.hear(1) == [m.ChannelOpenOk()]
    elif state is not State.OPEN and kind is m.BasicPublish:
        assert code(heard) == 505, "nothing is buffered for a stranger"
    else:
        assert code(heard) == 504


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_what_an_open_channel_takes(kind: type[Method]) -> None:
    client = World(journaled=False).client()
    heard = say(client, kind(), 1)
    if kind is m.ChannelOpen:
        assert code(heard) == 504
    elif kind in CHANNEL_METHODS:
        # recover and flow in their empty forms ask for what is not offered
        assert code(heard) == {m.BasicRecover: 540, m.BasicRecoverAsync: 540, m.ChannelFlow: 540}.get(kind)
    else:
        assert code(heard) == 503


@pytest.mark.parametrize("state", [State.START, State.TUNE, State.VHOST, State.OPEN])
@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"\x01\0\0\0\0\0\x04\0\x0a\0\x63\xce", 503),  # a method that does not exist
        (b"\x01\0\0\0\0\0\x05\0\x0a\0\x0b\x00\xce", 502),  # start-ok, cut off
        (b"\x01\0\0\0\0\0\x02\0\x0a\xce", 502),
        (b"\x01\0\0\0\0\0\x04\0\x0a\0\x33\xff", 501),  # a wrong end octet
        (b"\x01\0\0\x7f\0\0\0", 501),  # too large
        (b"\x09\0\0\0\0\0\0\xce", 501),  # an unknown frame type
        (b"\x08\0\x01\0\0\0\0\xce", 505),  # a heartbeat on a channel
        (b"\x02\0\x01\0\0\0\x0e" + bytes(14) + b"\xce", 505),  # a header without its method
    ],
)
def test_frames_that_cannot_be(state: State, frame: bytes, expected: int) -> None:
    client = client_in(state)
    client.raw(frame)
    client.world.turn()
    assert code(client.hear(0)) == expected
    assert client.world.story.faults[-1][1].code == expected


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"AMQP\0\0\x09\x01", None),
        (b"AMQP\x01\x01\x00\x09", None),
        (b"AMQP\0\0\x09\x02", b"AMQP\0\0\x09\x01"),
        (b"AMQP\0\0\x0a\x00", b"AMQP\0\0\x09\x01"),
        (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\0\0"),
        (b"AMQP\x03\x01\0\0", b"AMQP\x03\x01\0\0"),
        (b"GET / HTTP/1.1\r\n", b"AMQP\x03\x01\0\0"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"AMQP\x03\x01\0\0"),
        (b"x", b"AMQP\x03\x01\0\0"),
    ],
)
def test_protocol_headers(data: bytes, answer: bytes | None) -> None:
    client = client_in(State.HEADER)
    client.raw(data)
    client.world.turn()
    heard = client.hear(0)
    if answer is None:
        assert isinstance(heard[0], m.ConnectionStart)
        assert client.ended is None
    else:
        assert heard == [answer]
        assert client.ended == "flush"


def test_a_header_in_single_bytes() -> None:
    client = client_in(State.HEADER)
    for at in range(7):
        client.raw(HEADER[at : at + 1])
        client.world.turn()
        assert client.hear(0) == []
    client.raw(HEADER[7:])
    client.world.turn()
    assert isinstance(client.hear(0)[0], m.ConnectionStart)


def test_a_whole_conversation_in_single_bytes() -> None:
    world = World(journaled=False)
    client = Client(world)
    out = client._out
    for channel, method in ((0, START_OK), (0, TUNE_OK), (0, m.ConnectionOpen("/")), (1, m.ChannelOpen())):
        out.method(channel, m.encode(method))
    for octet in HEADER + bytes(out.take()) + client.content("", "nobody", b"body", mandatory=True):
        client.raw(bytes((octet,)))
        world.turn()
    opened, returned = client.hear(1)
    assert opened == m.ChannelOpenOk()
    assert returned.method.reply_code == 312
    assert returned.body == b"body"


def test_a_handshake_in_one_breath_waits_for_the_password() -> None:
    world = World(journaled=False)
    world.passwords_wait = True
    client = Client(world)
    out = client._out
    for channel, method in (
        (0, START_OK), (0, TUNE_OK), (0, m.ConnectionOpen("/")), (1, m.ChannelOpen()), (1, m.QueueDeclare(queue="q")),
    ):  # fmt: skip
        out.method(channel, m.encode(method))
    client.raw(HEADER + bytes(out.take()))
    world.turn()
    assert [type(said) for said in client.hear(0)] == [m.ConnectionStart]
    assert not client.connection.reading
    client.raw_method(1, m.ConfirmSelect())
    world.turn()
    assert client.unsent, "nobody reads on before the password is verified"
    world.answer_passwords()
    world.turn()
    assert [type(said) for said in client.hear(0)] == [m.ConnectionTune, m.ConnectionOpenOk]
    assert client.hear(1) == [m.ChannelOpenOk(), m.QueueDeclareOk("q", 0, 0), m.ConfirmSelectOk()]


def test_a_handshake_in_one_breath_with_a_wrong_password() -> None:
    client = Client(World(journaled=False))
    client.world.passwords_wait = True
    client.raw(HEADER)
    client.raw_method(0, m.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0guest\0wrong"))
    client.world.turn()
    client.raw_method(0, TUNE_OK)
    client.world.answer_passwords()
    client.world.turn()
    assert code(client.hear(0)) == 403
    client.raw_method(0, m.ConnectionCloseOk())
    client.world.turn()
    assert client.ended == "flush"


def test_a_fault_among_held_events_comes_after_the_tune() -> None:
    world = World(journaled=False)
    world.passwords_wait = True
    client = Client(world)
    out = client._out
    out.method(0, m.encode(START_OK))
    client.raw(HEADER + bytes(out.take()) + b"\x09\0\0\0\0\0\0\xce")
    world.answer_passwords()
    world.turn()
    world.answer_passwords()
    world.turn()
    assert [type(said) for said in client.hear(0)] == [m.ConnectionStart, m.ConnectionTune, m.ConnectionClose]
    assert client.ended == "flush", "a broken byte stream brings no close-ok"


@pytest.mark.parametrize(
    ("tune_ok", "text"),
    [
        (m.ConnectionTuneOk(2048, 131072, 0), "negotiated channel_max = 2048 is higher than the maximum allowed value"),
        (m.ConnectionTuneOk(0, 131072, 0), "negotiated channel_max = 0 is lower than the minimum allowed value (1)"),
        (m.ConnectionTuneOk(1, 131073, 0), "negotiated frame_max = 131073 is higher than the maximum allowed value"),
        (m.ConnectionTuneOk(1, 4096, 0), "negotiated frame_max = 4096 is lower than the minimum allowed value (8192)"),
        (m.ConnectionTuneOk(1, 0, 0), "negotiated frame_max = 0 is lower than the minimum allowed value (8192)"),
        (m.ConnectionTuneOk(1, 8191, 0), "negotiated frame_max = 8191 is lower than"),
    ],
)
def test_tune_out_of_bounds(tune_ok: m.ConnectionTuneOk, text: str) -> None:
    client = client_in(State.TUNE)
    close = say(client, tune_ok, 0)[-1]
    assert close.reply_code == 530
    assert text in close.reply_text


def test_the_tuned_limits_count() -> None:
    client = client_in(State.TUNE)
    say(client, m.ConnectionTuneOk(2, 8192, 7), 0)
    say(client, m.ConnectionOpen("/"), 0)
    assert client.connection.heartbeat_s == 7
    assert say(client, m.ChannelOpen(), 9) == []
    assert say(client, m.ChannelOpen(), 200) == [], "open channels count, not the highest number"
    assert code(say(client, m.ChannelOpen(), 1)) == 530
    client = client_in(State.TUNE)
    say(client, m.ConnectionTuneOk(2, 8192, 0), 0)
    say(client, m.ConnectionOpen("/"), 0)
    client.raw(b"\x01\0\0" + (8192 + 1).to_bytes(4, "big"))
    client.world.turn()
    assert code(client.hear(0)) == 501


def test_vhosts_that_cannot_be_entered() -> None:
    world = World(journaled=False)
    world.command(c.AddVhost(name="secret"))
    for vhost, text in (("none", "vhost none not found"), ("secret", "access to vhost 'secret' refused for user")):
        client = client_in(State.VHOST, world)
        close = say(client, m.ConnectionOpen(vhost), 0)[-1]
        assert (close.reply_code, text in close.reply_text) == (530, True)


def test_the_client_closes() -> None:
    world = World()
    client = world.client(channels=2)
    client.say(m.QueueDeclare(queue="mine", exclusive=True))
    assert say(client, m.ConnectionClose(200, "bye"), 0) == [m.ConnectionCloseOk()]
    assert client.ended == "flush"
    assert world.node.clients == {}
    assert "mine" not in world.node.vhosts["/"].queues


def test_after_connection_close_only_close_and_close_ok_are_heard() -> None:
    client = World().client()
    client.declare("q")
    client.connection.force_close("maintenance")
    client.world.turn()
    assert code(client.hear(0)) == 320
    client.publish("", "q", b"lost")
    assert client.say(m.BasicGet(queue="q")) == []
    assert say(client, m.ConnectionOpen("/"), 0) == []
    assert say(client, m.ConnectionClose(), 0) == [m.ConnectionCloseOk()], "both sides closed at once"
    assert client.ended is None
    say(client, m.ConnectionCloseOk(), 0)
    assert client.ended == "flush"
    assert client.world.queue("q").ring.ready == 0


def test_a_close_ok_that_never_comes() -> None:
    client = World(close_timeout_s=3).client()
    client.connection.force_close("maintenance")
    client.world.wait(3000)
    assert client.ended is None
    client.world.wait(1000)
    assert client.ended == "abort"


def test_a_handshake_that_takes_too_long() -> None:
    for state in (State.HEADER, State.START, State.TUNE, State.VHOST):
        client = client_in(state, World(handshake_timeout_s=5))
        client.world.wait(5000)
        assert client.ended is None
        client.world.wait(1000)
        assert client.ended == "abort"
        assert client.world.story.cuts == ["no connection.open within 5 s"]


def test_a_password_that_takes_too_long_finds_nobody() -> None:
    world = World(handshake_timeout_s=5)
    client = client_in(State.START, world)
    world.passwords_wait = True
    say(client, START_OK, 0)
    world.wait(6000)
    assert client.ended == "abort"
    world.answer_passwords()
    world.turn()
    assert client.hear(0) == []


def test_heartbeats_are_sent_when_nothing_else_is() -> None:
    world = World()
    client = Client(world)
    client.enter(heartbeat_s=4)
    for _ in range(8):
        client.raw(b"\x08\0\0\0\0\0\0\xce")
        world.wait(1000)
    assert client.ended is None
    assert 3 <= client.heartbeats <= 5, "one in each half of the interval"
    client.heartbeats = 0
    client.say(m.ChannelOpen())
    for _ in range(8):
        client.say(m.BasicQos())
        world.wait(1000)
    assert client.heartbeats == 0, "any traffic counts"


def test_a_silent_client_is_cut_after_two_intervals() -> None:
    world = World()
    client = Client(world)
    client.enter(heartbeat_s=4)
    world.wait(8000)
    assert client.ended is None
    world.wait(1000)
    assert client.ended == "abort"
    assert world.story.cuts == ["missed heartbeats, timeout 4 s"]


def test_parts_of_a_frame_are_signs_of_life() -> None:
    world = World()
    client = Client(world)
    client.enter(heartbeat_s=1)
    client.raw(b"\x01\0\0\0\0\x0f\xa0")
    for _ in range(10):
        world.wait(1000)
        client.raw(b"x")
    assert client.ended is None


def test_nobody_is_cut_while_he_is_not_read() -> None:
    world = World()
    client = Client(world)
    client.enter(heartbeat_s=1)
    client.say(m.ChannelOpen())
    client.publish("", "q", b"x")
    world.node.set_alarm("memory", True)
    world.wait(10_000)
    assert client.ended is None
    world.node.set_alarm("memory", False)
    world.turn()
    world.wait(1500)
    assert client.ended is None, "the time begins anew"
    world.wait(1000)
    assert client.ended == "abort"


def test_a_socket_that_takes_nothing() -> None:
    client = World(stalled_write_s=20).client()
    client.connection.paused(True, client.world.now_ms)
    assert not client.connection.reading
    client.world.wait(20_000)
    assert client.connection.ending is None
    client.world.wait(1000)
    assert client.connection.ending == "abort"


def test_blocked_is_told_once_to_those_who_publish() -> None:
    world = World()
    speaker, listener, plain = world.client(), world.client(), world.client(capabilities={})
    speaker.publish("", "q", b"1")
    plain.publish("", "q", b"1")
    world.node.set_alarm("memory", True)
    world.node.set_alarm("disk", True)
    world.turn()
    assert speaker.hear(0) == [m.ConnectionBlocked("low on memory")]
    assert (listener.hear(0), plain.hear(0)) == ([], [])
    assert (speaker.connection.reading, plain.connection.reading, listener.connection.reading) == (False, False, True)
    listener.publish("", "q", b"first")
    assert listener.hear(0) == [m.ConnectionBlocked("low on memory and disk")]
    world.node.set_alarm("memory", False)
    world.turn()
    assert speaker.hear(0) == []
    world.node.set_alarm("disk", False)
    world.turn()
    assert speaker.hear(0) == listener.hear(0) == [m.ConnectionUnblocked()]
    assert speaker.connection.reading


def test_a_blocked_connection_can_be_closed() -> None:
    world = World()
    client = world.client()
    client.publish("", "q", b"1")
    world.node.set_alarm("memory", True)
    world.turn()
    client.hear(0)
    client.raw_method(0, m.ConnectionClose())
    client.connection.force_close("maintenance")
    world.turn()
    assert [type(said) for said in client.hear(0)] == [m.ConnectionClose, m.ConnectionCloseOk]


@pytest.mark.parametrize("secret", [b"guest", b"another", b""])
def test_there_is_no_secret_of_a_password_user_to_update(secret: bytes) -> None:
    world = World()
    client = world.client()
    world.passwords_wait = True
    for _ in range(2):
        assert say(client, m.ConnectionUpdateSecret(secret, "renewal"), 0) == [m.ConnectionUpdateSecretOk()]
    assert world.checks == [], "nothing is verified, so nothing is guessed"


def test_a_deleted_vhost_ends_its_connections() -> None:
    world = World()
    world.command(c.AddVhost(name="old"))
    world.command(c.SetPermission(user="guest", vhost="old", configure=".*", write=".*", read=".*"))
    client, other = Client(world), world.client()
    client.enter(vhost="old")
    client.say(m.ChannelOpen())
    client.consume(client.ask(m.QueueDeclare(queue="q")).queue)
    world.command(c.DeleteVhost(name="old"))
    assert code(client.hear(0)) == 320
    assert other.hear(0) == []
    assert other.declare("still here")


def test_events_that_wait_in_parked_channels_stop_the_reading() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    world.wiring_waits = True
    client.say(m.QueueDeclare(queue="slow"))
    client.publish("", "q", bytes(700_000))
    assert client.connection.reading
    client.publish("", "q", bytes(700_000))
    assert not client.connection.reading
    assert client.connection.parked_bytes > 1_400_000
    world.wiring_waits = False
    world.turn()
    assert client.connection.reading
    assert client.connection.parked_bytes == 0
    assert world.queue("q").ring.ready == 2


def test_a_lost_connection_gives_everything_back() -> None:
    world = World()
    world.client().declare("q")
    client = world.client(channels=3)
    client.publish("", "q", *[b"%d" % n for n in range(6)])
    client.consume("q", channel=2)
    client.say(m.TxSelect(), m.BasicAck(1), channel=2)
    assert world.queue("q").ring.unacked == 6
    client.leave()
    ring = world.queue("q").ring
    assert (ring.ready, ring.unacked) == (6, 0)
    assert len(world.queue("q").subscriptions) == 0
    assert client.connection.id not in world.node.clients
    assert client.connection not in world.node.sending
