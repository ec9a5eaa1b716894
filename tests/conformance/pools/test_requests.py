"""The way of a request to a worker of its key (rules 8 to 21, 37 and 52)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from ..wire import Connection, eventually
from .conftest import PoolOfTest, status

Declare = Callable[..., PoolOfTest]


@rule("8", "20")
def test_the_first_request_makes_the_queue_and_comes_from_it(pool: PoolOfTest) -> None:
    pool.call("a b", b"1")
    worker = pool.worker("a b")
    got = worker.delivery()
    assert (got.body, got.routing_key, got.exchange, got.redelivered) == (b"1", "a b", pool.names.exchange, False)
    rows = pool.target.api("GET", f"exchanges/%2F/{pool.names.requests}/bindings/source").json()
    assert [(row["routing_key"], row["destination"]) for row in rows] == [("a b", pool.names.request_queue("a b"))]


@rule("9")
def test_it_arrives_unchanged(pool: PoolOfTest) -> None:
    about = {
        "content_type": "t/x", "correlation_id": "c", "reply_to": "somewhere", "expiration": "60000", "priority": 3,
        "headers": {"a": 1, "b": "x"}, "delivery_mode": 2, "message_id": "m", "type": "t", "app_id": "app",
    }  # fmt: skip
    pool.call("42", b"body \0\xff", **about)
    got = pool.worker("42").delivery()
    assert got.body == b"body \0\xff"
    assert got.properties == about


@rule("10")
def test_a_mandatory_request_is_not_returned(pool: PoolOfTest) -> None:
    pool.call("new", mandatory=True)
    pool.call("new", mandatory=True)
    pool.channel.basic_qos_probe()
    assert not pool.channel.returned
    assert len(pool.worker("new").deliveries(2)) == 2


@rule("11")
def test_the_confirm_comes_before_any_worker(pool: PoolOfTest) -> None:
    pool.act("pause")
    pool.call("42", b"1")
    assert pool.groups() == {}
    assert pool.channel.message_count(pool.names.orphans) == 1
    pool.act("resume")
    assert pool.worker("42").bodies(1) == [b"1"]


@rule("12")
def test_a_worker_gets_its_own_key_only(pool: PoolOfTest) -> None:
    workers = {key: pool.worker(key) for key in ("1", "2", "3")}
    for number in range(30):
        pool.call(str(1 + number % 3), b"%d" % (1 + number % 3))
    for key, worker in workers.items():
        assert worker.bodies(10) == [key.encode()] * 10
        worker.nothing_delivered()


@rule("13", "14")
def test_keys_of_all_forms_have_one_group_each(pool: PoolOfTest) -> None:
    keys = [
        "",
        "x" * 255,
        "%" * 255,
        "%",
        "#",
        "*",
        ".",
        "a\nb",
        "\U0001f600",
        "\U0010ffff" * 60,
        "a b",
        "a%20b",
        "a+b",
    ]
    for key in keys * 2:
        pool.call(key, key.encode())
    assert sorted(pool.groups()) == sorted(keys)
    for key in keys:
        assert pool.worker(key).bodies(2) == [key.encode()] * 2


@rule("15")
def test_what_is_no_key_is_answered(pool: PoolOfTest, connect: Connect) -> None:
    pool.call("a\0b", reply_to=pool.answering(), correlation_id="c")
    answer = pool.answer()
    assert (status(answer), answer.properties["correlation_id"]) == (b"invalid_key", "c")
    other = connect()
    with other.closes(502, "not valid UTF-8"):  # no routing key is
        other.channel().basic_publish(pool.names.exchange, b"\xff\xfe", b"x")  # type: ignore[arg-type]
    assert pool.groups() == {}


@rule("16")
def test_a_key_that_does_not_match_is_answered(declare: Declare) -> None:
    pool = declare(keys="^[0-9]+$")
    pool.call("x", reply_to=pool.answering())
    assert status(pool.answer()) == b"key_refused"
    pool.call("7", b"7")
    eventually(lambda: list(pool.groups()) == ["7"])


@rule("17")
def test_one_too_many_is_nacked_and_answered(declare: Declare) -> None:
    pool = declare(max_length=3)
    pool.call("42", b"0")
    for number in range(1, 3):
        pool.call("42", b"%d" % number)
    eventually(lambda: "42" in pool.groups())  # before its queue is there, a question about it closes the channel
    eventually(lambda: pool.channel.message_count(pool.names.request_queue("42")) == 3)
    assert pool.confirmed("42", b"late", reply_to=pool.answering(), correlation_id="late") == "nack"
    answer = pool.answer()
    assert (status(answer), answer.properties["correlation_id"]) == (b"maxlen", "late")
    assert sorted(pool.worker("42").bodies(3)) == [b"0", b"1", b"2"]


@rule("18")
def test_what_waits_too_long_is_answered(declare: Declare) -> None:
    pool = declare(request_ttl_ms=700)
    pool.call("42", reply_to=pool.answering())
    assert status(pool.answer()) == b"expired"
    pool.act("pause")
    pool.call("43", reply_to=pool.answering())
    assert status(pool.answer()) == b"expired"
    assert pool.channel.message_count(pool.names.orphans) == 0


@rule("19")
def test_expiration_counts_from_the_first_queue(pool: PoolOfTest) -> None:
    pool.act("pause")
    began = time.monotonic()
    pool.call("42", reply_to=pool.answering(), expiration="6000")
    time.sleep(4)  # a part of its time passes in the first queue
    pool.act("resume")
    assert status(pool.answer(20)) == b"expired"
    assert time.monotonic() - began < 4 + 6


@rule("21")
def test_what_comes_while_a_group_starts_comes_once(pool: PoolOfTest) -> None:
    count, callers = 200, 4

    def publish(start: int) -> None:
        channel = Connection(pool.target.address).channel()
        channel.confirm_select()
        for number in range(start, start + count):
            channel.basic_publish(pool.names.exchange, "42", b"%d" % number)
        channel.confirms(count, 60)
        channel.connection.close()

    threads = [threading.Thread(target=publish, args=(count * n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    worker = pool.worker("42")
    bodies = worker.bodies(count * callers, 60)
    for thread in threads:
        thread.join()
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(count * callers)]
    worker.nothing_delivered()


@rule("37")
def test_requests_are_consumed_with_acknowledgements(pool: PoolOfTest, channel: Channel) -> None:
    pool.call("42")
    pool.has_group("42")
    queue = pool.names.request_queue("42")
    with channel.closes(403, "consume with acknowledgements"):
        channel.consume(queue, no_ack=True)
    other = channel.connection.channel()
    with other.closes(403, "consume with acknowledgements"):
        other.basic_get(queue, no_ack=True)


@rule("52")
def test_a_consumer_of_an_absent_groups_queue_makes_the_group(declare: Declare, channel: Channel) -> None:
    pool = declare(max_groups=1)
    worker = pool.worker("early")
    eventually(lambda: list(pool.groups()) == ["early"])
    pool.call("early", b"1")
    assert worker.bodies(1) == [b"1"]
    with channel.closes(406, "one group too many"):
        channel.consume(pool.names.request_queue("more"))
