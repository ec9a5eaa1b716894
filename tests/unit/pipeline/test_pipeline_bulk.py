"""The publisher at a real node: windows, confirms, returns, refusals, alarms, and lines that are cut at any byte."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterbroker.broker.embedded import Broker
from clusterbroker.pipeline import task
from clusterbroker.pipeline.bulk import ConfirmTimeout, Nacked, Publisher, Unroutable
from clusterbroker.pipeline.connection import Connection, ConnectionLost, Refused, password_of
from clusterbroker.pipeline.encode import Encoder, Template
from clusterbroker.pipeline.option_values import Endpoint
from clusterbroker.pipeline.options import BadOption, parse
from clusterbroker.pipeline.task import BadRows, Identity
from tests.authority import Authority
from tests.budget import examples
from tests.conftest import RunningNode
from tests.unit.pipeline.publisher_line import Line

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


@pytest.fixture
def queue(channel: Any) -> Iterator[str]:
    name = channel.queue_declare("", durable=True).method.queue
    yield name
    channel.queue_delete(name)


@pytest.fixture
def line(broker: Broker) -> Iterator[Line]:
    between = Line(broker.port)
    yield between
    between.close()


@pytest.fixture(autouse=True)
def _keep_nothing() -> Iterator[None]:
    """Connections that wait for their next task are closed with the test."""
    yield
    for publishers in task._kept.values():
        for publisher in publishers:
            publisher.close()
    task._kept.clear()


def options_for(port: int, **more: str) -> Any:
    return parse({"endpoints": f"127.0.0.1:{port}", **more})


def rows(count: int, size: int = 50) -> Any:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"%06d" % n + bytes(size) for n in range(count)])})


def publish(publisher: Publisher, queue: str, count: int, chunk_rows_max: int = 100, **template: Any) -> None:
    publisher.begin()
    encoder = Encoder(Template(routing_key=queue, chunk_rows_max=chunk_rows_max, **template))
    for chunk in encoder.encode(rows(count)):
        publisher.publish(chunk)
    publisher.drain()


def numbers_in(channel: Any, queue: str) -> list[int]:
    """What is in the queue, in its order."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(int(got[2][:6]))
    return found


def test_every_row_is_confirmed_and_there_in_order(broker: Broker, channel: Any, queue: str) -> None:
    publisher = Publisher(options_for(broker.port, maxInFlight="150"))
    publish(publisher, queue, 400)
    assert publisher.confirmed == 400
    publish(publisher, queue, 10)
    assert (publisher.confirmed, publisher.resent) == (410, 0)
    publisher.close()
    assert numbers_in(channel, queue) == [*range(400), *range(10)]


def test_the_window_is_kept(broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    publisher = Publisher(options_for(broker.port, maxInFlight="100"))
    said = publisher._take

    def watched(heard: Any) -> None:
        seen.append(publisher._in_flight)
        said(heard)

    monkeypatch.setattr(publisher, "_take", watched)
    publish(publisher, queue, 1000, chunk_rows_max=40)
    publisher.close()
    assert 0 < max(seen) <= 100


def test_what_is_kept_to_be_sent_again_is_bounded(
    broker: Broker, queue: str, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.pipeline.bulk.IN_FLIGHT_BYTES_MAX", 50_000)
    publisher = Publisher(options_for(line.port, publisherConfirmTimeoutMs="200"))
    publish(publisher, queue, 10)
    line.swallow_answers()
    sent = 0
    with pytest.raises(ConfirmTimeout):
        for chunk in Encoder(Template(routing_key=queue, chunk_rows_max=100)).encode(rows(6400)):
            publisher.publish(chunk)
            sent += 1
    assert sent > 1
    assert publisher._unconfirmed_bytes <= 50_000 < publisher._unconfirmed_bytes + len(chunk.data)
    publisher.abandon()
    publisher = Publisher(options_for(broker.port))
    [large] = Encoder(Template(routing_key=queue)).encode(rows(1, 100_000))
    publisher.publish(large)  # alone, or it would never go
    assert publisher._unconfirmed_bytes == len(large.data)
    publisher.drain()
    assert publisher._unconfirmed_bytes == 0
    publisher.abandon()


@settings(max_examples=examples(200))
@given(st.permutations(range(1, 9)), st.lists(st.booleans(), min_size=8, max_size=8))
def test_confirms_in_any_order_count_once(tags: list[int], multiples: list[bool]) -> None:
    publisher = Publisher(options_for(1))
    publisher._published = 8
    said: set[int] = set()
    for tag, multiple in zip(tags, multiples, strict=True):
        said |= set(range(1, tag + 1)) if multiple else {tag}
        publisher._confirm(tag, multiple)
        assert publisher.confirmed == len(said)
        assert publisher._in_flight == 8 - len(said)
        assert publisher._upto == next(number for number in range(9) if number + 1 not in said)


# -- what the broker refuses ---------------------------------------------------------------------------------------


def test_a_row_that_no_queue_takes(broker: Broker) -> None:
    publisher = Publisher(options_for(broker.port))
    with pytest.raises(Unroutable, match=r"no queue takes rows for exchange '' with routing key 'nowhere' \(312"):
        publish(publisher, "nowhere", 1000)
    publisher.abandon()


def test_or_is_lost_when_it_is_not_mandatory(broker: Broker) -> None:
    publisher = Publisher(options_for(broker.port))
    publish(publisher, "nowhere", 100, mandatory=False)
    assert publisher.confirmed == 100
    publisher.close()


def test_a_full_queue(broker: Broker, channel: Any) -> None:
    arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
    name = channel.queue_declare("", arguments=arguments, exclusive=True).method.queue
    publisher = Publisher(options_for(broker.port))
    with pytest.raises(Nacked, match=r"did not take \d+ rows \(basic.nack\)"):
        publish(publisher, name, 100)
    publisher.abandon()


@pytest.mark.parametrize(
    "more, said",
    [
        ({"password": "wrong"}, "403 ACCESS_REFUSED .* logfile: look at the options username, password"),
        ({"vhost": "nowhere"}, "530 NOT_ALLOWED .* not found: look at the option vhost"),
    ],
)
def test_who_may_not_come_in(broker: Broker, more: dict[str, str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        Publisher(options_for(broker.port, **more)).begin()


def test_an_exchange_that_is_not_there(broker: Broker, queue: str) -> None:
    publisher = Publisher(options_for(broker.port))
    with pytest.raises(Refused, match="404 NOT_FOUND - no exchange 'nowhere' in vhost '/': declare it, or look"):
        publish(publisher, queue, 10, exchange="nowhere")
    publisher.abandon()


# -- lines and nodes that fail ---------------------------------------------------------------------------------------


def test_the_next_endpoint_is_tried(broker: Broker, channel: Any, queue: str, line: Line) -> None:
    line.close()
    options = parse({"endpoints": f"127.0.0.1:{line.port},127.0.0.1:{broker.port}"})
    publisher = Publisher(options)
    publish(publisher, queue, 10)
    publisher.close()
    assert numbers_in(channel, queue) == [*range(10)]


def test_nobody_answers(line: Line) -> None:
    line.close()
    with pytest.raises(ConnectionLost, match=rf"no endpoint answers: 127.0.0.1:{line.port}: .*refused"):
        Publisher(options_for(line.port, reconnectAttempts="0")).begin()


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut_after=st.integers(600, 60_000))
@pytest.mark.long
def test_a_line_that_is_cut_at_any_byte_loses_no_row(
    broker: Broker, channel: Any, queue: str, line: Line, cut_after: int
) -> None:
    line.cut_after = cut_after
    publisher = Publisher(options_for(line.port, maxInFlight="200"))
    publish(publisher, queue, 500, chunk_rows_max=50)
    publisher.close()
    counted = Counter(numbers_in(channel, queue))
    assert set(counted) == set(range(500)), "every row at least once"
    assert sum(counted.values()) - 500 <= publisher.resent, "and only what was sent again can be there twice"
    assert publisher.resent < 200 + 50, "what is in flight, and rows of its first chunk that were confirmed already"


def test_who_must_not_repeat_is_told(broker: Broker, queue: str, line: Line) -> None:
    line.cut_after = 20_000
    publisher = Publisher(options_for(line.port))
    publisher.repeats = False
    with pytest.raises(ConnectionLost):
        publish(publisher, queue, 500)
    assert line.connections == 1


def test_an_operator_closes_connections() -> None:
    """320: others are there, or it is back at once."""
    with Broker() as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("q")
        publisher = Publisher(options_for(broker.port))
        publish(publisher, "q", 10)
        closed = publisher.connection
        broker.close_connections()
        [chunk] = Encoder(Template(routing_key="q")).encode(rows(20))
        while publisher.connection is closed:  # it is told at its next word, or the one after
            publisher.publish(chunk)
            publisher.drain()
        publish(publisher, "q", 10)
        publisher.close()


def test_a_node_that_starts_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.start()
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("q", durable=True)
        publisher = Publisher(options_for(broker.port, maxInFlight="100"))
        publisher.begin()
        again = threading.Thread(target=lambda: (broker.stop(), broker.start()))
        chunks = [
            chunk
            for _ in range(20)
            for chunk in Encoder(Template(routing_key="q", chunk_rows_max=50)).encode(rows(100))
        ]
        for place, chunk in enumerate(chunks):
            if place == 10:
                again.start()
            publisher.publish(chunk)
        again.join()
        publisher.drain()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            counted = Counter(numbers_in(connection.channel(), "q"))
        assert set(counted) == set(range(100))
        assert all(count >= 20 for count in counted.values()), "confirmed rows outlive the node"
        publisher.close()
    finally:
        broker.stop()


def test_a_broker_that_confirms_nothing(queue: str, line: Line) -> None:
    publisher = Publisher(options_for(line.port, publisherConfirmTimeoutMs="300"))
    publish(publisher, queue, 10)
    line.swallow_answers()
    with pytest.raises(ConfirmTimeout, match=r"confirmed none of 10 rows for 0.3 s: .* publisherConfirmTimeoutMs"):
        publish(publisher, queue, 10)
    publisher.abandon()


def test_a_peer_that_reads_nothing(queue: str, line: Line) -> None:
    publisher = Publisher(options_for(line.port, publisherConfirmTimeoutMs="300"))
    publish(publisher, queue, 10)
    publisher.repeats = False
    line.read_nothing()
    encoder = Encoder(Template(routing_key=queue))
    with pytest.raises(ConnectionLost, match=r"took nothing for 0.3 s"):
        for chunk in encoder.encode(rows(64, 1 << 20)):
            publisher.publish(chunk)
    publisher.abandon()


@pytest.mark.long
def test_heartbeats_are_sent_while_somebody_waits(broker: Broker, line: Line) -> None:
    """The broker ends a line on which it hears nothing for two of them."""
    connection = Connection(Endpoint("127.0.0.1", line.port), options_for(line.port, **{"amqp.heartbeat": "1"}), "a")
    assert connection.heartbeat_s == 1
    assert connection.receive(3) == []
    assert connection.is_usable()
    line.swallow_answers()
    with pytest.raises(ConnectionLost, match="silent for two heartbeats of 1 s"):
        connection.receive(30)
    connection.abandon()
    quiet = Connection(Endpoint("127.0.0.1", broker.port), options_for(broker.port), "b")
    assert quiet.heartbeat_s == 0
    quiet.close()


@pytest.mark.long
def test_a_line_that_nobody_looked_after_is_replaced_before_its_next_use(
    broker: Broker, queue: str, line: Line
) -> None:
    options = options_for(line.port, routingKey=queue, **{"amqp.heartbeat": "1"})
    write(options, rows(1))
    [[publisher]] = task._kept.values()
    while publisher.connection.is_usable():
        time.sleep(0.05)
    assert write(options, rows(5)).resent == 0
    assert line.connections == 2


def test_a_blocked_publisher_waits_without_a_timeout(
    broker: Broker, channel: Any, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(options_for(broker.port, publisherConfirmTimeoutMs="200"))
    publish(publisher, queue, 10)
    connection = publisher.connection
    broker.set_alarm("memory", True)
    try:
        while connection.blocked is None:
            connection.receive(0.05)
        unblock = threading.Timer(0.6, lambda: broker.set_alarm("memory", False))
        unblock.start()
        publish(publisher, queue, 10)
    finally:
        broker.set_alarm("memory", False)
    assert publisher.connection is connection
    assert "takes no publishes now (low on memory): rows wait until it does" in caplog.text
    assert numbers_in(channel, queue) == [*range(10), *range(10)]
    publisher.close()


# -- TLS and passwords -------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node = RunningNode(tmp_path)
    certificate = str(authority["node"])
    environment = {
        "CLUSTERBROKER_AMQPS": "127.0.0.1:0",
        "CLUSTERBROKER_TLS__CERTIFICATE": certificate,
        "CLUSTERBROKER_TLS__KEY": certificate,
    }
    node.start(environment=environment)
    try:
        [port] = [int(said.rpartition(":")[2]) for said in node.said if said.startswith("amqps ")]
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_declare("q", durable=True)
        ca = str(authority["root"])
        publisher = Publisher(options_for(port, **{"tls": "true", "tls.caFile": ca}))
        publish(publisher, "q", 2000)
        assert publisher.confirmed == 2000
        publisher.close()
        with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
            Publisher(options_for(port, tls="true", reconnectAttempts="0")).begin()
        with pytest.raises(ConnectionLost):
            Publisher(options_for(port, reconnectAttempts="0")).begin()
        with pytest.raises(BadOption, match=r"option 'tls.caFile' is '/nowhere'"):
            Publisher(options_for(port, **{"tls": "true", "tls.caFile": "/nowhere"})).begin()
    finally:
        node.stop()


def test_where_the_password_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERBROKER_PASSWORD", raising=False)
    assert password_of(parse({})) == "guest"
    monkeypatch.setenv("CLUSTERBROKER_PASSWORD", "from the environment")
    assert password_of(parse({})) == "from the environment"
    assert password_of(parse({"password": "given"})) == "given"
    file = tmp_path / "password"
    file.write_text("from a file\nand more\n")
    assert password_of(parse({"passwordFile": str(file)})) == "from a file"
    with pytest.raises(BadOption, match="cannot be read"):
        password_of(parse({"passwordFile": str(tmp_path / "nowhere")}))


# -- tasks -----------------------------------------------------------------------------------------------------------


def write(options: Any, *batches: Any, attempt: int = 0) -> task.Written:
    return task.write(batches, batches[0].schema.names, options, Identity("query", 3, 1, attempt))


def test_a_task_and_the_next_one_on_the_same_connection(broker: Broker, channel: Any, queue: str, line: Line) -> None:
    options = options_for(line.port, routingKey=queue)
    assert write(options, rows(30), rows(20)) == task.Written(1, 0, rows=50, messages=50, query="query")
    assert write(options, rows(5)) == task.Written(1, 0, rows=5, messages=5, query="query")
    assert line.connections == 1
    line.cut()
    assert write(options, rows(5)).rows == 5
    assert line.connections == 2
    method, properties, body = channel.basic_get(queue)
    assert (properties.message_id, properties.delivery_mode, body[:6]) == ("query/3/1/0", 2, b"000000")
    assert len(numbers_in(channel, queue)) == 59
    assert method.routing_key == queue


def test_message_ids_number_the_rows_of_a_task(broker: Broker, channel: Any, queue: str) -> None:
    write(options_for(broker.port, routingKey=queue, maxInFlight="8"), rows(30), rows(20))
    found = [channel.basic_get(queue, auto_ack=True)[1].message_id for _ in range(50)]
    assert found == [f"query/3/1/{number}" for number in range(50)]
    write(options_for(broker.port, routingKey=queue, messageId="none"), rows(1))
    assert channel.basic_get(queue, auto_ack=True)[1].message_id is None


def with_bad_rows(queue: str) -> Any:
    values = [b"000000", None, b"000002", b"x" * 200]
    keys = pa.array([queue] * len(values))
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "routing_key": keys})


def test_bad_rows_fail_their_task(broker: Broker, queue: str) -> None:
    options = options_for(broker.port, maxMessageBytes="100")
    with pytest.raises(BadRows) as error:
        write(options, rows(5).append_column("routing_key", pa.array([queue] * 5)), with_bad_rows(queue))
    assert str(error.value) == (
        "row 6 of its partition (and 1 more of its batch) is no message: column 'value' is null. "
        "Mend it, or set onRowError to skip or deadLetter"
    )


def test_bad_rows_are_skipped(broker: Broker, channel: Any, queue: str) -> None:
    written = write(options_for(broker.port, maxMessageBytes="100", onRowError="skip"), with_bad_rows(queue))
    assert written == task.Written(1, 0, rows=2, messages=2, skipped=2, query="query")
    assert numbers_in(channel, queue) == [0, 2]


def test_bad_rows_go_to_their_exchange(broker: Broker, channel: Any, queue: str) -> None:
    channel.exchange_declare("graves", "fanout", auto_delete=True)
    graves = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(graves, "graves")
    more = {"maxMessageBytes": "100", "onRowError": "deadLetter", "deadLetterExchange": "graves"}
    written = write(options_for(broker.port, **more), with_bad_rows(queue))
    assert written == task.Written(1, 0, rows=2, messages=2, dead_lettered=2, query="query")
    found = [channel.basic_get(graves, auto_ack=True) for _ in range(2)]
    assert [(properties.headers["x-row-error"], body) for _, properties, body in found] == [
        ("column 'value' is null", b""),
        ("column 'value' has more than 100 bytes", b""),
    ]
    assert numbers_in(channel, queue) == [0, 2]


def test_a_task_that_fails_gives_no_connection_back(broker: Broker, queue: str, line: Line) -> None:
    options = options_for(line.port, routingKey=queue)
    with pytest.raises(BadRows):
        write(options, rows(5), pa.RecordBatch.from_pydict({"value": pa.array([None], pa.binary())}))
    assert not any(task._kept.values())
    write(options, rows(1))
    assert line.connections == 2


def test_connections_of_batches_that_are_over_are_used_again(line: Line, queue: str) -> None:
    for batch in range(6):  # as foreachBatch does it
        more = {"txnAppId": "a", "txnVersion": str(batch), "countsFile": f"/tmp/{batch}"}
        write(options_for(line.port, routingKey=queue, deliveryGuarantee="exactly-once", **more), rows(1))
    assert line.connections == 1


def test_connections_for_other_options_do_not_pile_up(line: Line, queue: str) -> None:
    for seconds in (*range(9, 20), 9):
        write(options_for(line.port, routingKey=queue, connectTimeoutMs=f"{seconds}000"), rows(1))
    assert sum(map(len, task._kept.values())) == task.KEPT_MAX
    assert line.connections == 12


def test_so_many_connections_wait_and_no_more(broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "KEPT_MAX", 1)
    options = options_for(broker.port)
    two = [task._lend(options, "a"), task._lend(options, "b")]
    for publisher in two:
        task._give_back(options, publisher)
    assert [len(kept) for kept in task._kept.values()] == [1]


def test_rows_of_large_types(broker: Broker, channel: Any, queue: str) -> None:
    """Spark may be told to use them."""
    batch = pa.RecordBatch.from_pydict({
        "value": pa.array(["000007"], pa.large_string()),
        "routing_key": pa.array([queue], pa.large_string()),
    })  # fmt: skip
    write(options_for(broker.port), batch)
    assert numbers_in(channel, queue) == [7]
