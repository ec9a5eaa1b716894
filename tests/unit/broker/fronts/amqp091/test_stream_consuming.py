"""Readers of a stream that ask for what is not meant, and what becomes of them."""

from __future__ import annotations

import pytest

from clusterbroker.broker.streams import stream
from clusterbroker.broker.streams.messages import READ, StreamAsk, StreamTold
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.values import Timestamp
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.streams.test_stream import consume, declare, filled, offsets
from tests.unit.broker.transactions.stager import Stager


def test_a_time_beyond_all_times_is_the_end_of_the_stream() -> None:
    _, client = filled(10)
    assert consume(client, offset=Timestamp(2**64 - 1)) == []
    assert offsets(client.publish("", "s", b"new")) == [10]


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.long
def test_a_long_stream_is_searched_for_a_time_in_many_turns(journaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE_BYTES", 100)
    world, client = filled(3000, journaled)
    arguments = {"x-stream-offset": Timestamp(2**40)}
    client.say(m.BasicQos(prefetch_count=9), m.BasicConsume(queue="s", consumer_tag="c", arguments=arguments))
    world.wait(3001)
    assert [type(answer) for answer in client.say()] == [m.BasicConsumeOk]
    assert offsets(client.publish("", "s", b"new")) == [3000]


@pytest.mark.parametrize("count, size", [(0, 0), (2**62, 2**62), (1, 0)])
def test_a_question_of_another_node_that_asks_for_nothing_or_for_all_is_answered(count: int, size: int) -> None:
    world, _ = filled(10)
    told: list[tuple[StreamTold, bytes]] = []
    ask = StreamAsk(world.queue("s").entity.queue_id, 0, 1, 1, READ, 1, 2**61, count, size)
    world.queue("s").ask("", ask, lambda answer, records: told.append((answer, records)))
    world.turn()
    ((answer, records),) = told
    assert records
    assert (answer.seq, answer.next) == (1, 11 if count > 1 else 2)


@pytest.mark.parametrize("end", [None, 20])
def test_who_reads_to_an_end_is_not_cancelled_before_it(end: int | None) -> None:
    world, client = filled(10)
    arguments = {} if end is None else {"end": end}
    assert offsets(consume(client, offset="first", **arguments)) == list(range(10))
    world.client().ask(m.QueueDelete(queue="s"))
    (said,) = client.say()
    if end is None:
        assert isinstance(said, m.BasicCancel)
    else:
        assert (type(said), said.reply_code) == (m.ChannelClose, 404)
        assert "is gone, or has lost messages, before offset 20 was reached" in said.reply_text


def test_nobody_reads_who_else_was_meant() -> None:
    world, client = filled(0)
    declare(client, "t")
    client.declare("q")
    stager = Stager(world.client(channels=2))
    for key in ("s", "q"):
        stager.declare(f"txn.{key}", target="")
        stager.stage(f"txn.{key}", b"a", b"b", key=key, headers={"BCC": ["t"], "x": 1})
    stager.commit("txn.s", "txn.q")
    world.turn()
    heard = consume(world.client(), offset="first")
    assert [content.properties.headers for content in heard] == [{"x-stream-offset": n, "x": 1} for n in range(2)]
    taken = world.client().say(m.BasicConsume(queue="q"))[1:]
    assert [content.properties.headers for content in taken] == [{"x": 1}] * 2


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("chunks", [False, True])
def test_an_end_is_told_when_retention_has_taken_all_before_it(exact: bool, chunks: bool) -> None:
    world = World(journaled=False)
    client = world.client()
    declare(client, **{"x-max-length-bytes": 1000})
    client.publish("", "s", b"0")
    heard = consume(client, prefetch=1, offset=0, end=5, exact=exact, chunks=chunks)
    assert offsets(heard) == [0]
    for _ in range(20):
        client.publish("", "s", bytes(200))
    assert world.queue("s").ready < 10
    (said,) = client.say(m.BasicAck(1))
    assert isinstance(said, m.ChannelClose if exact else m.BasicCancel)


FILTERED = [b"a", None, b"b", b"a", b"c", None]


def filtered_stream() -> tuple[World, Client]:
    world, client = filled(0)
    for value in FILTERED:
        headers = {} if value is None else {"x-stream-filter-value": value.decode()}
        client.publish("", "s", value or b"-", headers=headers)
    world.turn()
    return world, client


@pytest.mark.parametrize(
    "wanted, unfiltered, expected",
    [("a", False, [0, 3]), (["a", "b"], False, [0, 2, 3]), ("c", True, [1, 4, 5]), ("nobody", False, [])],
)
def test_a_stream_is_filtered_by_the_value_of_its_messages(
    wanted: object, unfiltered: bool, expected: list[int]
) -> None:
    _, client = filtered_stream()
    arguments = {"x-stream-offset": "first", "x-stream-filter": wanted, "x-stream-match-unfiltered": unfiltered}
    client.say(m.BasicQos(prefetch_count=100))
    assert offsets(client.say(m.BasicConsume(queue="s", consumer_tag="c", arguments=arguments))[1:]) == expected


@pytest.mark.parametrize("wanted", [1, [], ["a", 2], ["a"] * 65, True])
def test_a_filter_that_is_no_filter_is_refused(wanted: object) -> None:
    _, client = filtered_stream()
    arguments = {"x-stream-offset": "first", "x-stream-filter": wanted}
    client.say(m.BasicQos(prefetch_count=100))
    (said,) = client.say(m.BasicConsume(queue="s", consumer_tag="c", arguments=arguments))
    assert (type(said), said.reply_code) == (m.ChannelClose, 406)
    assert "invalid arg 'x-stream-filter'" in said.reply_text


def test_a_filter_beside_chunks_is_refused() -> None:
    _, client = filtered_stream()
    arguments = {"x-stream-offset": "first", "x-stream-filter": "a", "x-stream-chunks": True}
    client.say(m.BasicQos(prefetch_count=100))
    (said,) = client.say(m.BasicConsume(queue="s", consumer_tag="c", arguments=arguments))
    assert "not beside x-stream-chunks" in said.reply_text
