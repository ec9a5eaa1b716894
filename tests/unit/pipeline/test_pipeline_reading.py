"""Reading a stream at a real node: any part of it, over lines that are cut at any byte, and what is lost is told."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterbroker.broker.embedded import Broker
from clusterbroker.pipeline import reading
from clusterbroker.pipeline.asking import Line as Questions
from clusterbroker.pipeline.connection import ConnectionLost, Refused
from clusterbroker.pipeline.offsets import DataLost, Position, Span
from clusterbroker.pipeline.options import BadOption, Options, parse
from clusterbroker.pipeline.reading import ReadTimeout, SpanReader, Teller
from tests.unit.pipeline.publisher_line import Line

ROWS = 5_000
WANTED = ("value", "offset")
_names = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def declared(broker: Broker, rows: int = 0) -> str:
    """A stream of numbers."""
    name = f"stream-{next(_names)}"
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        for number in range(rows):
            channel.basic_publish("", name, b"%d" % number * 10, pika.BasicProperties(delivery_mode=2))
        channel.confirm_delivery()  # what comes after it is confirmed, and so is what came before
        channel.basic_publish("", name, b"last", pika.BasicProperties(delivery_mode=2))
    return name


@pytest.fixture(scope="module")
def stream(broker: Broker) -> str:
    return declared(broker, ROWS - 1)


@pytest.fixture
def line(broker: Broker) -> Iterator[Line]:
    between = Line(broker.port)
    yield between
    between.close()


def options(port: int, stream: str, **more: str) -> Options:
    return parse({"endpoints": f"127.0.0.1:{port}", "stream": stream, **more}, reads=True)


@pytest.fixture
def life(broker: Broker, stream: str) -> str:
    return asked(broker, stream, lambda line: reading.bounds(line, stream).life)


def asked(broker: Broker, stream: str, what: Callable[[Questions], str]) -> str:
    questions = Questions(options(broker.port, stream), "test")
    try:
        return what(questions)
    finally:
        questions.close()


def read(given_options: Options, span: Span) -> list[int]:
    """Offsets, in the order in which they came; each with its own body."""
    reader = SpanReader(given_options, span, WANTED)
    found: list[int] = []
    try:
        for records in reader:
            offsets = list(array("q", records.columns["offset"].data))
            value = records.columns["value"]
            assert value.offsets is not None
            ends = array("i", value.offsets)
            for place, offset in enumerate(offsets):
                body = value.data[ends[place] : ends[place + 1]]
                assert body == (b"last" if offset == ROWS - 1 else b"%d" % offset * 10)
            found += offsets
    finally:
        reader.close()
    return found


@pytest.mark.parametrize("start, end", [(0, ROWS), (0, 1), (ROWS - 1, ROWS), (1234, 4321), (7, 7)])
def test_any_part_of_a_stream(broker: Broker, stream: str, life: str, start: int, end: int) -> None:
    assert read(options(broker.port, stream), Span(stream, life, start, end)) == list(range(start, end))


def test_where_a_stream_begins_and_ends(broker: Broker, stream: str, life: str) -> None:
    questions = Questions(options(broker.port, stream), "test")
    assert reading.bounds(questions, stream)[:3] == (life, 0, ROWS)
    assert reading.at_moment(questions, stream, 0)[1] == 0
    assert reading.at_moment(questions, stream, int(time.time() * 1000) + 60_000)[1] == ROWS
    with pytest.raises(Refused, match="404"):
        reading.bounds(questions, "nowhere")
    assert reading.bounds(questions, stream)[:3] == (life, 0, ROWS), "a refusal does no harm to the line"
    questions.close()


@pytest.mark.long
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(300, 300_000), min_size=1, max_size=4))
def test_a_line_that_is_cut_at_any_byte(broker: Broker, stream: str, life: str, cuts: list[int]) -> None:
    between = Line(broker.port)
    wanted = iter(cuts)
    between.cut_after_heard = next(wanted)
    reader = SpanReader(options(between.port, stream), Span(stream, life, 0, ROWS), WANTED)
    found: list[int] = []
    try:
        for records in reader:
            found += array("q", records.columns["offset"].data)
            if between.cut_after_heard is None:
                between.cut_after_heard = next(wanted, None)
    finally:
        reader.close()
        between.close()
    assert found == list(range(ROWS)), "each once, in order"


def test_nobody_there_any_more(line: Line, stream: str, life: str) -> None:
    reader = SpanReader(options(line.port, stream, reconnectAttempts="1"), Span(stream, life, 0, ROWS), WANTED)
    line.cut_after_heard = 2_000
    line._listening.close()
    with pytest.raises(ConnectionLost):
        list(reader)
    reader.close()


def test_a_broker_that_sends_nothing(line: Line, broker: Broker) -> None:
    """What was promised to be there is not: the end lies beyond what the stream has."""
    stream = declared(broker)
    life = asked(broker, stream, lambda questions: reading.bounds(questions, stream).life)
    reader = SpanReader(options(line.port, stream, readTimeoutMs="300"), Span(stream, life, 0, 5), WANTED)
    with pytest.raises(ReadTimeout, match=r"sent nothing of stream 'stream-\d+' from offset 1 on for 0.3 s"):
        list(reader)
    reader.close()


@pytest.mark.long
def test_a_query_does_not_wait_for_what_it_only_tells(
    broker: Broker, line: Line, stream: str, life: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when too few copies are in sync: a stream can be read, and nothing be kept in it."""
    asked = options(line.port, stream, consumerName="query")
    questions = Questions(asked, "test")
    teller = Teller(questions, asked)
    assert reading.bounds(questions, stream).next == ROWS
    line.swallow_answers()
    begun_s = time.monotonic()
    for offset in (5, 6, 7):
        teller.tell({stream: Position(life, offset)})
    assert time.monotonic() - begun_s < 2 * reading.TELL_WITHIN_S
    assert caplog.text.count("does not keep the offset of 'query'") == 1
    questions.close()


@pytest.mark.long
def test_a_node_that_is_silent_is_not_the_only_one_that_is_asked(broker: Broker, line: Line, stream: str) -> None:
    """As one that is frozen: its connections stand, and it says nothing."""
    both = f"127.0.0.1:{line.port},127.0.0.1:{broker.port}"
    questions = Questions(options(broker.port, stream, endpoints=both, readTimeoutMs="4000"), "test")
    assert reading.bounds(questions, stream).next == ROWS
    line.swallow_answers()
    assert reading.bounds(questions, stream).next == ROWS
    questions.close()


@pytest.mark.parametrize(
    "span_of, said",
    [
        (lambda stream, life: Span(stream, "0.0", 0, 5), "is not the one that the checkpoint is of"),
        (lambda stream, life: Span(stream, life, ROWS + 1, ROWS + 5), "ends before offset"),
    ],
)
def test_what_is_not_there_is_told(
    broker: Broker, stream: str, life: str, span_of: Callable[[str, str], Span], said: str
) -> None:
    span = span_of(stream, life)
    with pytest.raises(DataLost, match=said):
        read(options(broker.port, stream), span)
    assert read(options(broker.port, stream, failOnDataLoss="false"), span) == []


def test_a_batch_that_ends_before_it_begins(broker: Broker, stream: str) -> None:
    pytest.importorskip("pyspark")
    from clusterbroker.pipeline.source import BatchReader

    reversed_ones = {"startingOffsets": f'{{"{stream}": 10}}', "endingOffsets": f'{{"{stream}": 5}}'}
    reader = BatchReader(options(broker.port, stream, **reversed_ones), WANTED, None, frozenset())
    with pytest.raises(BadOption, match=r"from offset 10 to 5: let endingOffsets .* be behind startingOffsets"):
        reader.partitions()


def test_what_is_gone_when_it_is_asked_for_is_looked_at_again(
    broker: Broker, stream: str, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when retention takes it between the question and the consumer: what was lost is told, not what was said."""
    consume, refusals = SpanReader._consume, [Refused(406, "offset 5 of stream 's' is gone, the first is 1200")]

    def refused_once(*args: object) -> None:
        while refusals:
            raise refusals.pop()
        consume(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(SpanReader, "_consume", refused_once)
    reader = SpanReader(options(broker.port, stream), Span(stream, life, 5, 9), WANTED)
    assert sum(records.rows for records in reader) == 4
    reader.close()


@pytest.mark.long
def test_a_stream_that_is_deleted_under_its_reader(broker: Broker) -> None:
    stream = declared(broker, 20_000)
    life = asked(broker, stream, lambda questions: reading.bounds(questions, stream).life)
    reader = SpanReader(options(broker.port, stream, reconnectAttempts="0"), Span(stream, life, 0, 30_000), WANTED)
    rows = iter(reader)
    assert next(rows).rows
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_delete(stream)
    with pytest.raises((ConnectionLost, Refused)):
        list(rows)
    reader.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_that_is_declared_anew_while_it_is_read(broker: Broker, fails: bool) -> None:
    name = f"stream-{next(_names)}"
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, **stream)
        for _ in range(12):
            channel.basic_publish("", name, bytes(1 << 20))
        was = asked(broker, name, lambda line: reading.bounds(line, name).life)
        more = {} if fails else {"failOnDataLoss": "false"}
        reader = SpanReader(options(broker.port, name, **more), Span(name, was, 0, 12), WANTED)
        found = iter(reader)
        assert next(found).rows
        channel.queue_delete(name)
        channel.queue_declare(name, **stream)
        try:
            if fails:
                with pytest.raises(DataLost, match="declared anew"):
                    list(found)
            else:
                assert len(list(found)) < 11
        finally:
            reader.close()


def test_a_query_tells_how_far_it_is(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    name = declared(broker, 9)
    now = asked(broker, name, lambda line: reading.bounds(line, name).life)

    def readers() -> list[dict[str, Any]]:
        questions = Questions(options(broker.port, name), "test")
        try:
            answer = questions.ask("amq.stream", "stored", {"queue": name}, "it")
        finally:
            questions.close()
        found: list[dict[str, Any]] = answer["readers"]
        return found

    given_options = options(broker.port, name, consumerName="nightly")
    questions = Questions(given_options, "test")
    teller = Teller(questions, given_options)
    teller.tell({name: Position(now, 4)})
    assert readers() == [{"name": "nightly", "offset": 4, "lag": 6}]
    teller.tell({name: Position(now, 10)})
    assert readers() == [{"name": "nightly", "offset": 10, "lag": 0}]
    assert caplog.messages == []
    teller.tell({name: Position("1.2", 3)})
    teller.tell({name: Position(now, 3)})
    assert readers() == [{"name": "nightly", "offset": 10, "lag": 0}], "who was refused tells no more"
    [warning] = caplog.messages
    assert warning.startswith(f"stream '{name}' does not keep the offset of 'nightly': the broker refused: 410")
    for more in ({}, {"consumerName": "other", "storeBrokerOffsets": "false"}):
        Teller(questions, options(broker.port, name, **more)).tell({name: Position(now, 4)})
    assert len(readers()) == 1
    questions.close()
