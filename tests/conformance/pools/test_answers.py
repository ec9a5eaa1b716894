"""What callers hear of requests that died (rules 23 to 31 and 36)."""

from __future__ import annotations

from collections.abc import Callable

from ..channel import Channel
from ..conftest import Connect
from ..marks import rule
from ..wire import eventually
from .conftest import PoolOfTest, status

Declare = Callable[..., PoolOfTest]
PSEUDO = "amq.rabbitmq.reply-to"


@rule("23")
def test_direct_replies_of_workers_and_of_the_broker(pool: PoolOfTest, connect: Connect) -> None:
    for number in range(3):
        caller = connect().channel()
        caller.consume(PSEUDO, no_ack=True)
        caller.basic_publish(pool.names.exchange, "42", b"ask", reply_to=PSEUDO, correlation_id=str(number))
        worker = pool.worker("42")
        got = worker.delivery()
        worker.basic_publish("", got.properties["reply_to"], b"said", correlation_id=got.properties["correlation_id"])
        worker.basic_ack(got.delivery_tag)
        reply = caller.delivery()
        assert (reply.body, reply.properties["correlation_id"]) == (b"said", str(number))
        caller.basic_publish(pool.names.exchange, "a\0", b"ask", reply_to=PSEUDO, correlation_id="none")
        answer = caller.delivery()
        assert (status(answer), answer.properties["correlation_id"]) == (b"invalid_key", "none")
        worker.connection.close()


@rule("24")
def test_an_answer_has_the_correlation_id_a_status_and_no_body(pool: PoolOfTest) -> None:
    pool.call("a\0", b"body", reply_to=pool.answering(), correlation_id="c", headers={"own": 1})
    answer = pool.answer()
    assert answer.body == b""
    assert answer.properties["correlation_id"] == "c"
    assert answer.properties["type"] == "error"
    assert type(status(answer)) is bytes
    assert answer.headers["x-pool"] == pool.name
    assert "own" not in answer.headers


@rule("25")
def test_the_status_may_be_text(declare: Declare) -> None:
    pool = declare(status_type="text")
    pool.call("a\0", reply_to=pool.answering())
    assert status(pool.answer()) == "invalid_key"


@rule("27")
def test_an_address_that_is_gone_stops_nothing(pool: PoolOfTest) -> None:
    pool.call("a\0", reply_to="nobody")
    pool.call("a\0", reply_to=f"{PSEUDO}.gone")
    pool.call("a\0", reply_to="x" * 255)
    pool.call("a\0", reply_to=pool.answering(), correlation_id="c")
    assert pool.answer().properties["correlation_id"] == "c"
    eventually(lambda: pool.channel.message_count(pool.names.dead) == 0)


@rule("28")
def test_a_dead_answer_is_not_answered(
    pool: PoolOfTest, channel: Channel, queue: str, name: Callable[[str], str]
) -> None:
    replies = name("replies")
    channel.queue_declare(
        replies, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": pool.names.dead}
    )
    pool.call("a\0", reply_to=replies)
    eventually(lambda: channel.message_count(replies) == 1)
    got = channel.basic_get(replies)
    channel.basic_reject(got.delivery_tag, requeue=False)
    eventually(lambda: channel.message_count(replies) + channel.message_count(pool.names.dead) == 0)
    assert channel.message_count(queue) == 0


@rule("29")
def test_a_rejected_request_is_answered(pool: PoolOfTest) -> None:
    pool.call("42", reply_to=pool.answering(), correlation_id="c")
    worker = pool.worker("42")
    worker.basic_reject(worker.delivery().delivery_tag, requeue=False)
    answer = pool.answer()
    assert (status(answer), answer.properties["correlation_id"], answer.headers["x-key"]) == (b"rejected", "c", "42")


@rule("30")
def test_reject_with_requeue_gives_it_to_another_and_counts(pool: PoolOfTest) -> None:
    first = pool.worker("42", prefetch=1)
    pool.call("42", b"x")
    got = first.delivery()
    second = pool.worker("42", prefetch=1)
    first.basic_qos(prefetch_count=1)
    first.basic_cancel(got.consumer_tag)
    first.basic_reject(got.delivery_tag, requeue=True)
    again = second.delivery()
    assert (again.body, again.redelivered, again.headers["x-delivery-count"]) == (b"x", True, 1)


@rule("31")
def test_the_delivery_after_the_limit_does_not_happen(declare: Declare) -> None:
    pool = declare(delivery_limit=2)
    pool.call("42", reply_to=pool.answering())
    worker = pool.worker("42", prefetch=1)
    for _ in range(3):
        worker.basic_reject(worker.delivery().delivery_tag, requeue=True)
    assert status(pool.answer()) == b"delivery_limit"
    worker.nothing_delivered()


@rule("36")
def test_who_holds_for_too_long_loses_channel_and_request(declare: Declare) -> None:
    pool = declare(process_timeout_ms=1000)
    pool.call("42", b"x")
    worker = pool.worker("42", capabilities={})
    worker.delivery()
    with worker.closes(406, method=None):
        worker.wait(lambda: False, "the end of the channel", 20)
    told = pool.worker("42")
    assert told.delivery().redelivered
    assert told.cancel_notice(timeout_s=20)
    assert pool.worker("42").delivery().body == b"x"


@rule("69")
def test_a_cancelled_request_is_answered_and_never_delivered(pool: PoolOfTest) -> None:
    def cancel(queue: str, which: str) -> None:
        path = f"queues/%2F/{queue.replace('%', '%25')}/messages/delete"
        answer = pool.target.api("POST", path, {"filter": f"correlation_id={which}"}).raise_for_status()
        assert answer.json()["deleted"] == 1

    for number in range(2):
        pool.call("42", b"%d" % number, reply_to=pool.answering(), correlation_id=f"c{number}")
    eventually(lambda: "42" in pool.groups())  # before its queue is there, a question about it closes the channel
    eventually(lambda: pool.channel.message_count(pool.names.request_queue("42")) == 2)
    cancel(pool.names.request_queue("42"), "c0")
    answer = pool.answer()
    assert (status(answer), answer.properties["correlation_id"]) == (b"cancelled", "c0")
    pool.act("pause")
    pool.call("new", b"x", reply_to=pool.answering(), correlation_id="orphan")
    cancel(pool.names.orphans, "orphan")
    answer = pool.answer()
    assert (status(answer), answer.properties["correlation_id"]) == (b"cancelled", "orphan")
    pool.act("resume")
    worker = pool.worker("42")
    assert worker.bodies(1) == [b"1"]
    worker.nothing_delivered()
    assert "new" not in pool.groups()
