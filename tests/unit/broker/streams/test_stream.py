"""Streams of one node, as clients meet them: published once, read by everybody from wherever they like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.queues.lease import End
from clusterbroker.broker.stats.inspection import life_of
from clusterbroker.broker.streams.stream import Asked, Stream
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.record import read_records
from clusterbroker.journal.values import Timestamp
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World


def declare(client: Client, name: str = "s", **arguments: Any) -> Any:
    return client.ask(m.QueueDeclare(queue=name, durable=True, arguments={"x-queue-type": "stream", **arguments}))


def consume(client: Client, tag: str = "c", prefetch: int = 100, **arguments: Any) -> list[Any]:
    """What is heard after the consume-ok."""
    named = {f"x-stream-{name}": value for name, value in arguments.items()}
    heard = client.say(
        m.BasicQos(prefetch_count=prefetch), m.BasicConsume(queue="s", consumer_tag=tag, arguments=named)
    )
    assert [type(answer) for answer in heard[:2]] == [m.BasicQosOk, m.BasicConsumeOk], heard
    return heard[2:]


def offsets(heard: list[Any]) -> list[int]:
    return [content.properties.headers["x-stream-offset"] for content in heard if isinstance(content, Content)]


def filled(count: int = 10, journaled: bool = True) -> tuple[World, Client]:
    world = World(journaled=journaled)
    client = world.client()
    declare(client)
    client.raw(b"".join(client.content("", "s", b"%d" % n) for n in range(count)))
    world.turn()
    return world, client


def test_the_same_stream_at_another_broker_has_another_life() -> None:
    """Each of them counts its queues from 1, and a checkpoint must not be taken to the wrong one."""
    lives = set()
    for later_ms in (0, 1):
        world = World()
        world.now_ms += later_ms
        client = world.client()
        declare(client)
        lives.add(life_of(world.queue("s").entity))
        declare(client)
        assert life_of(world.queue("s").entity) in lives, "it is there already"
    assert len(lives) == 2


@pytest.mark.parametrize("journaled", [True, False])
def test_what_is_published_is_read_by_everybody_in_order(journaled: bool) -> None:
    world, client = filled(10, journaled)
    for tag in "ab":
        heard = consume(client, tag, offset="first")
        assert [content.body for content in heard] == [b"%d" % n for n in range(10)]
        assert offsets(heard) == list(range(10))
        assert not any(content.method.redelivered for content in heard)
    client.publish("", "s", b"10")
    assert world.queue("s").ready == 11


@pytest.mark.parametrize(
    "where, first",
    [
        ("first", 0), ("next", 10), (0, 0), (7, 7), (10, 10), (12, 12), ("last", 0), (Timestamp(0), 0),
        (Timestamp(2**40), 10),
    ],
)  # fmt: skip
def test_where_a_reader_begins(where: Any, first: int) -> None:
    world, client = filled(10)
    heard = consume(client, offset=where)
    client.raw(b"".join(client.content("", "s", b"%d" % n) for n in range(10, 15)))
    world.turn()
    assert offsets(heard + client.hear(1)) == list(range(first, 15))


def test_without_an_offset_it_begins_at_the_next() -> None:
    _, client = filled(3)
    assert consume(client) == []
    assert offsets(client.publish("", "s", b"new")) == [3]


def test_acknowledgements_give_room_and_remove_nothing() -> None:
    world, client = filled(10)
    first = consume(client, prefetch=4, offset="first")
    assert offsets(first) == [0, 1, 2, 3]
    assert offsets(client.say(m.BasicAck(2, True))) == [4, 5]
    assert offsets(client.say(m.BasicReject(3, True), m.BasicNack(4, False, False))) == [6, 7]
    assert offsets(client.say(m.BasicAck(0, True))) == [8, 9]
    assert world.queue("s").ready == 10


def test_a_channel_that_ends_gives_nothing_back() -> None:
    world, client = filled(5)
    consume(client, prefetch=3, offset="first")
    client.say(m.ChannelClose(0, "", 0, 0))
    other = world.client()
    heard = consume(other, offset="first")
    assert offsets(heard) == [0, 1, 2, 3, 4]
    assert not any(content.method.redelivered for content in heard)
    assert len(world.queue("s").subscriptions) == 1


def test_what_a_transaction_acknowledges_gives_room() -> None:
    _, client = filled(6)
    client.say(m.TxSelect())
    assert offsets(consume(client, prefetch=2, offset="first")) == [0, 1]
    assert client.say(m.BasicAck(2, True)) == []
    heard = client.say(m.TxCommit())
    assert (m.TxCommitOk() in heard, offsets(heard)) == (True, [2, 3])
    client.say(m.BasicAck(4, True))
    assert client.say(m.TxRollback()) == [m.TxRollbackOk()]
    client.say(m.BasicAck(0, True))
    assert offsets(client.say(m.TxCommit())) == [4, 5]


def test_an_end_cancels_the_reader_when_all_before_it_is_delivered() -> None:
    _, client = filled(10)
    heard = consume(client, offset=2, end=5)
    assert (offsets(heard), heard[-1]) == ([2, 3, 4], m.BasicCancel("c", True))
    assert consume(client, "d", offset=5, end=5) == [m.BasicCancel("d", True)]
    assert offsets(consume(client, "e", offset=8, end=12)) == [8, 9]
    heard = client.publish("", "s", b"10") + client.publish("", "s", b"11") + client.publish("", "s", b"12")
    assert (offsets(heard), heard[-1]) == ([10, 11], m.BasicCancel("e", True))


def test_chunks_hold_records_as_they_are_stored() -> None:
    _, client = filled(10)
    heard = consume(client, prefetch=1, offset=3, chunks=True)
    (chunk,) = heard
    assert chunk.properties.headers == {"x-stream-offset": 3, "x-stream-count": 7}
    records = read_records(chunk.body)
    assert [(seq, message.body) for seq, message, _, _ in records] == [(n + 1, b"%d" % n) for n in range(3, 10)]
    assert client.publish("", "s", b"10") == [], "a prefetch counts chunks"
    (chunk,) = client.say(m.BasicAck(1))
    assert chunk.properties.headers == {"x-stream-offset": 10, "x-stream-count": 1}


def test_a_chunk_has_4096_messages_at_most() -> None:
    _, client = filled(5000)
    first, second = consume(client, prefetch=9, offset="first", chunks=True)
    assert [one.properties.headers["x-stream-count"] for one in (first, second)] == [4096, 904]


def test_the_newest_4096() -> None:
    _, client = filled(5000)
    (chunk,) = consume(client, prefetch=9, offset="last", chunks=True)
    assert chunk.properties.headers == {"x-stream-offset": 904, "x-stream-count": 4096}


@pytest.mark.parametrize(
    "prefetch, no_ack, exclusive, arguments, code, text",
    [
        (0, False, False, {}, 406, "consumer prefetch count is not set for stream 's' in vhost '/'"),
        (9, True, False, {}, 540, "automatic acknowledgement not supported by stream 's' in vhost '/'"),
        (9, False, True, {}, 403, "exclusive consumers are not supported by stream 's' in vhost '/'"),
        (9, False, False, {"x-stream-offset": "middle"}, 406, "expected first, last, next, an offset or a timestamp"),
        (9, False, False, {"x-stream-offset": -1}, 406, "expected first, last, next, an offset or a timestamp"),
        (9, False, False, {"x-stream-offset": True}, 406, "expected first, last, next, an offset or a timestamp"),
        (9, False, False, {"x-stream-offset": 1.5}, 406, "expected first, last, next, an offset or a timestamp"),
        (9, False, False, {"x-stream-end": "1"}, 406, "arg 'x-stream-end' for consumer 'c': expected an offset"),
        (9, False, False, {"x-stream-chunks": 1}, 406, "arg 'x-stream-chunks' for consumer 'c': expected a boolean"),
        (9, False, False, {"x-stream-exact": "yes"}, 406, "arg 'x-stream-exact' for consumer 'c': expected a boolean"),
    ],
)  # fmt: skip
def test_readers_that_are_refused(
    prefetch: int, no_ack: bool, exclusive: bool, arguments: Any, code: int, text: str
) -> None:
    _, client = filled(1)
    client.say(m.BasicQos(prefetch_count=prefetch))
    consume_ = m.BasicConsume(queue="s", consumer_tag="c", no_ack=no_ack, exclusive=exclusive, arguments=arguments)
    heard = client.say(consume_) + client.hear(0)
    close = heard[-1]
    assert (close.reply_code, text in close.reply_text) == (code, True), close


@pytest.mark.parametrize("method", [m.BasicGet(queue="s"), m.QueuePurge(queue="s")])
def test_get_and_purge_end_the_connection(method: Any) -> None:
    _, client = filled(1)
    client.say(method)
    (close,) = client.hear(0)
    assert (close.reply_code, "not supported by stream 's' in vhost '/'" in close.reply_text) == (540, True)


@pytest.mark.parametrize("transient", [True, False])
def test_everything_is_durable(transient: bool) -> None:
    world = World()
    client = world.client()
    declare(client)
    client.say(m.ConfirmSelect())
    client.publish("", "s", b"kept", transient=transient)
    world.crash()
    client = world.client()
    assert offsets(consume(client, offset="first")) == [0]


def test_only_what_is_durable_is_delivered() -> None:
    world, client = filled(1)
    assert offsets(consume(client, offset="first")) == [0]
    world.disk_waits = True
    assert client.publish("", "s", b"1") == []
    world.commit()
    assert offsets(client.hear(1)) == [1]


def test_a_blind_copy_stays_blind() -> None:
    world = World()
    client = world.client()
    declare(client)
    client.publish("", "nobody", b"x", headers={"BCC": ["s"], "kept": 1})
    (got,) = consume(client, offset="first")
    assert got.properties.headers == {"x-stream-offset": 0, "kept": 1}


def test_an_expiration_means_nothing() -> None:
    world, client = filled(0)
    client.publish("", "s", b"x", expiration="1")
    world.wait(5000)
    assert offsets(consume(client, offset="first")) == [0]


def test_readers_of_a_deleted_stream_are_cancelled() -> None:
    world, client = filled(3)
    consume(client, prefetch=2, offset="first")
    other = world.client()
    in_use = other.ask(m.QueueDelete(queue="s", if_unused=True))
    assert (in_use.reply_code, "in use" in in_use.reply_text) == (406, True)
    world.client().say(m.QueueDelete(queue="s"))
    assert client.hear(1) == [m.BasicCancel("c", True)]
    assert client.say(m.BasicAck(2, True)) == []


def test_counts_of_a_stream() -> None:
    world, client = filled(7)
    consume(client)
    told = world.client().ask(m.QueueDeclare(queue="s", passive=True))
    assert (told.message_count, told.consumer_count) == (7, 1)
    client.say(m.BasicCancel("c"))
    told = world.client().ask(m.QueueDeclare(queue="s", passive=True))
    assert (told.message_count, told.consumer_count) == (7, 0)


def test_a_reader_whose_permission_goes_is_cancelled() -> None:
    world, _ = filled(3)
    eve = world.client("eve")
    assert offsets(consume(eve, offset="first")) == [0, 1, 2]
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write=".*", read="^$"))
    assert eve.hear(1) == [m.BasicCancel("c", True)]
    (close,) = world.client("eve").say(m.BasicQos(prefetch_count=1), m.BasicConsume(queue="s"))[1:]
    assert close.reply_code == 403


def test_a_paused_stream_is_not_read() -> None:
    world, client = filled(3)
    world.command(c.PauseQueue(vhost="/", name="s", paused=True))
    assert consume(client, offset="first") == []
    world.command(c.PauseQueue(vhost="/", name="s", paused=False))
    assert offsets(client.say()) == [0, 1, 2]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The reader of each question that is looked at, again and again."""
    seen: list[int] = []
    answer_one = Stream._answer_one

    def counted(stream: Stream, asked: Asked) -> None:
        seen.append(asked.ask.reader)
        answer_one(stream, asked)

    monkeypatch.setattr(Stream, "_answer_one", counted)
    return seen


READERS = 60


def many_readers(world: World) -> list[Client]:
    """They wait for the next message of "s", a channel each."""
    clients = [world.client() for _ in range(READERS)]
    for client in clients:
        assert consume(client) == []
    return clients


def test_a_new_reader_costs_no_look_at_those_that_wait(looks: list[int]) -> None:
    world, _ = filled(3)
    clients = many_readers(world)
    assert len(looks) <= 3 * READERS, "where the end is, and what comes behind it"
    looks.clear()
    world.wait(1000)
    world.turn()
    assert looks == [], "nothing changed"
    clients[0].publish("", "s", b"3")
    assert READERS <= len(looks) <= 3 * READERS
    assert all(offsets(client.say()) == [3] for client in clients[1:])


def test_questions_of_readers_that_went_are_let_go_together(looks: list[int]) -> None:
    world, _ = filled(3)
    clients = many_readers(world)
    stream = world.queue("s")
    waiting = len(stream._waiting)
    looks.clear()
    for client in clients:
        client.leave()
    world.turn()
    assert not stream.subscriptions
    assert waiting == READERS
    assert not stream._waiting
    assert not stream._due
    assert len(looks) <= 2 * READERS


@pytest.mark.parametrize("journaled", [True, False])
def test_retention_by_bytes_in_memory(journaled: bool) -> None:
    world = World(journaled=journaled)
    client = world.client()
    declare(client, **{"x-max-length-bytes": 100})
    for _ in range(50):
        client.publish("", "s", b"0123456789")
    world.wait(1000)
    if not journaled:  # with a journal whole files go, and here is none
        assert world.queue("s").ready == 10
        assert offsets(consume(client, offset=3)) == list(range(40, 50)), "it begins at the first"
        (close,) = client.say(
            m.BasicConsume(queue="s", consumer_tag="x", arguments={"x-stream-offset": 5, "x-stream-exact": True})
        )
        assert close.reply_text.endswith("offset 5 of stream 's' in vhost '/' is gone, the first is 40")


def test_retention_by_age_in_memory() -> None:
    world = World(journaled=False)
    client = world.client()
    declare(client, **{"x-max-age": "10s"})
    client.publish("", "s", b"old", b"old")
    world.wait(8000)
    client.publish("", "s", b"new")
    world.wait(4000)
    assert offsets(consume(client, offset="first")) == [2]


def test_an_idle_stream_lets_go_what_is_too_old() -> None:
    """Nobody publishes or reads: the stream asks for the turn in which its oldest message is too old."""
    world = World(journaled=False)
    client = world.client()
    declare(client, **{"x-max-age": "10s"})
    client.publish("", "s", b"old", b"new")
    assert world.queue("s").ready == 2
    world.wait(12_000)
    assert world.queue("s").ready == 1, "the newest stays"


def ask(client: Client, **body: Any) -> Any:
    client.say(m.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    raw = json.dumps(body).encode()
    (answer,) = client.publish("amq.stream", "offsets", raw, reply_to="amq.rabbitmq.reply-to")
    return json.loads(answer.body)


def test_where_a_stream_begins_and_ends_is_told() -> None:
    world, client = filled(5)
    first_ms = world.now_ms
    world.wait(10_000)
    client.publish("", "s", b"late")
    told = ask(client, queue="s", timestamp_ms=first_ms + 1)
    life = life_of(world.queue("s").entity)
    assert told == {
        "outcome": "offsets", "life": life, "first": 0, "next": 6, "first_timestamp_ms": first_ms,
        "bytes": told["bytes"], "at": 5,
    }  # fmt: skip
    assert ask(world.client(), queue="s")["at"] is None
    assert ask(world.client(), queue="s", timestamp_ms=2**50)["at"] == 6


def test_a_stream_that_keeps_everything_and_begins_late_is_told_of_once() -> None:
    world, client = filled(1, journaled=False)
    ask(client, queue="s")
    assert world.story.late_streams == []
    policy = {"vhost": "/", "name": "short", "pattern": "s"}
    world.command(c.PutPolicy(**policy, definition={"max-length-bytes": 10}))
    client.publish("", "s", b"x" * 9, b"y" * 9)
    assert ask(world.client(), queue="s")["first"] == 2
    assert world.story.late_streams == [], "its retention has taken them"
    world.command(c.DeletePolicy(vhost="/", name="short"))
    for _ in range(2):
        assert ask(world.client(), queue="s")["first"] == 2
    assert world.story.late_streams == [("s", 2)]


def test_offsets_of_an_empty_stream() -> None:
    _, client = filled(0)
    told = ask(client, queue="s", timestamp_ms=5)
    assert (told["first"], told["next"], told["first_timestamp_ms"], told["at"]) == (0, 0, None, 0)


def test_offsets_of_what_is_no_stream() -> None:
    world, client = filled(1)
    client.declare("q")
    assert ask(client, queue="q") == {
        "outcome": "refused", "code": 406, "reason": "queue 'q' in vhost '/' is no stream",
    }  # fmt: skip
    assert ask(world.client(), queue="none")["code"] == 404
    world.command(c.SetPermission(user="eve", vhost="/", configure=".*", write=".*", read="^amq"))
    eve = world.client("eve")
    (close,) = eve.publish("amq.stream", "offsets", b'{"queue": "s"}')
    assert close.reply_code == 403


def test_nobody_takes_from_a_stream() -> None:
    """Sessions refuse that by themselves; the owner answers a member that asks all the same."""
    world, _ = filled()
    stream = world.queue("s")
    said: list[Any] = []
    stream.get(world.now_ms, said.append)
    stream.lease(End(""), lambda answer, _: said.append(answer.code), world.now_ms)
    assert said == ["is a stream, which is read by offsets", 406]
    assert (stream.ready, stream.ring.unacked) == (10, 0)
