"""Messages that a link passes over: filters (rules E), and what it never wants again (D102, D103)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Modified,
    Properties,
    Released,
    TransactionalState,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol
from clusterbroker.broker.wire.numbers import UInt64

from ..marks import rule
from ..wire import Channel, eventually
from .conftest import Connect10
from .test_links import fill
from .test_transactions import Coordinating
from .wire import Receiver, Session

JMS, SQL = "apache.org:selector-filter:string", "amqp:sql-filter"
PROPERTIES, APPLICATION = "amqp:properties-filter", "amqp:application-properties-filter"
CODES = {JMS: 0x468C00000004, SQL: 0x120, PROPERTIES: 0x173, APPLICATION: 0x174}


def filters(*told: tuple[str, Any], by_code: bool = False) -> dict[Any, Any]:
    return {
        Symbol(f"f{place}"): Described(UInt64(CODES[name]) if by_code else Symbol(name), value)
        for place, (name, value) in enumerate(told)
    }


def numbered(session: Session, queue: str, count: int) -> None:
    """Messages with application property `n`, `color` red for even ones, and subject."""
    sender = session.sender(f"/queues/{queue}")
    numbers = [
        sender.post(
            b"%d" % n,
            properties=Properties(subject=f"order.{n}", message_id=f"m{n}"),
            application={"n": n, "color": "blue" if n % 2 else "red"},
        )
        for n in range(count)
    ]
    assert all(sender.outcome(number) == Accepted() for number in numbers)
    sender.detach()


def selecting(session: Session, queue: str, *told: tuple[str, Any], credit: int = 100, **fields: Any) -> Receiver:
    return session.receiver(f"/queues/{queue}", credit=credit, filter=filters(*told), **fields)


def in_force(receiver: Receiver) -> dict[Any, Any]:
    source = receiver.attach.source
    return dict(getattr(source, "filter", None) or {})


@rule("E143")
def test_a_selecting_link_has_messages_by_priority(session: Session, channel: Channel) -> None:
    queue = channel.queue_declare("", arguments={"x-max-priority": 9}).queue
    for n in (12, 55, 14, 97, 56, 98, 16):
        channel.basic_publish("", queue, b"%d" % n, priority=n // 10, headers={"n": n})
    eventually(lambda: channel.message_count(queue) == 7)
    receiver = selecting(session, queue, (JMS, "n <> 97 AND n <> 14"), credit=3)
    assert receiver.bodies(3) == [b"98", b"55", b"56"]
    channel.basic_publish("", queue, b"70", priority=7, headers={"n": 70})
    eventually(lambda: channel.message_count(queue) == 5)
    receiver.grant(5)
    assert receiver.bodies(3) == [b"70", b"12", b"16"]
    assert receiver.waiting() == 0
    channel.queue_delete(queue)


# -- modified


@rule("D102")
def test_undeliverable_here_never_again_to_that_link(session: Session, queue: str, connect10: Connect10) -> None:
    fill(session, queue, 3)
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    first = receiver.delivery()
    receiver.dispose(first.id, state=Modified(undeliverable_here=True))
    receiver.grant(10)
    assert receiver.bodies(2) == [b"1", b"2"]
    assert receiver.waiting() == 0
    other = connect10().session().receiver(f"/queues/{queue}", credit=1)
    again = other.delivery()
    assert (again.message.body, again.message.header.delivery_count) == (b"0", 0)
    other.dispose(again.id, state=Modified(delivery_failed=True))
    assert receiver.waiting() == 0
    other.grant(1)
    again = other.delivery()
    assert (again.message.body, again.message.header.delivery_count) == (b"0", 1)


@rule("D102")
def test_the_link_that_comes_again_is_the_same_one(session: Session, queue: str, connect10: Connect10) -> None:
    fill(session, queue, 2)
    receiver = session.receiver(f"/queues/{queue}", credit=2, name="fussy")
    first, second = receiver.deliveries(2)
    receiver.dispose(first.id, state=Modified(undeliverable_here=True))
    receiver.accept(second)
    receiver.detach()
    again = connect10(container=session.peer.container).session().receiver(f"/queues/{queue}", credit=2, name="fussy")
    assert again.waiting() == 0
    stranger = connect10().session().receiver(f"/queues/{queue}", credit=2, name="fussy")
    assert stranger.bodies(1) == [b"0"]


@rule("D103")
def test_annotations_of_modified_are_seen_by_the_next(session: Session, queue: str, connect10: Connect10) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=1)
    said = {Symbol("x-opt-why"): "bad", Symbol("x-opt-n"): 5, Symbol("why"): "no x-", Symbol("x-exchange"): "forged"}
    receiver.dispose(receiver.delivery().id, state=Modified(delivery_failed=True, message_annotations=said))
    other = connect10().session().receiver(f"/queues/{queue}")
    receiver.detach()
    other.grant(1)
    found = other.delivery().message
    assert (found.annotations["x-opt-why"], found.annotations["x-opt-n"]) == ("bad", 5)
    assert found.annotations["x-exchange"] == ""
    assert "why" not in found.annotations
    assert (found.body, found.header.delivery_count) == (b"0", 1)


@rule("D103")
def test_annotations_add_up_and_are_seen_by_the_other_protocol(session: Session, queue: str, channel: Channel) -> None:
    fill(session, queue, 1)
    receiver = session.receiver(f"/queues/{queue}", credit=2)
    receiver.dispose(receiver.delivery().id, state=Modified(message_annotations={Symbol("x-opt-a"): "1"}))
    receiver.dispose(
        receiver.delivery().id, state=Modified(message_annotations={Symbol("x-opt-a"): "2", Symbol("x-opt-b"): "3"})
    )
    receiver.detach()
    eventually(lambda: channel.message_count(queue) == 1)
    got = channel.basic_get(queue, no_ack=True)
    assert got is not None
    headers = got.properties["headers"]
    assert (headers["x-opt-a"], headers["x-opt-b"]) == ("2", "3")


# -- selectors


@rule("E141")
@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ("n > 3 AND n <= 5 OR n = 0", [0, 4, 5]),
        ("n IN (1, 3) AND color NOT IN ('red')", [1, 3]),
        ("JMSType LIKE 'order._' AND JMSMessageID LIKE '%2'", [2]),
        ("JMSType LIKE 'order!.3' ESCAPE '!'", None),
        ("n BETWEEN 2 AND 3 OR n NOT BETWEEN 0 AND 4", [2, 3, 5]),
        ("missing IS NULL AND n IS NOT NULL AND n < 1", [0]),
        ("(n + 1) * 2 = 4 OR n / 2 = 2", [1, 4, 5]),
        ("missing = 1 OR n = 2", [2]),
        ("NOT (missing = 1) OR n = 2", [2]),
        ("JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT' AND n = 1", [1]),
    ],
)
def test_a_selector_takes(session: Session, queue: str, selector: str, taken: Sequence[int] | None) -> None:
    if taken is None:
        link = session.receiver(f"/queues/{queue}", filter=filters((JMS, selector)))
        link.detached("amqp:invalid-field", "in a pattern")
        return
    numbered(session, queue, 6)
    receiver = selecting(session, queue, (JMS, selector))
    assert receiver.bodies(len(taken)) == [b"%d" % n for n in taken]
    assert receiver.waiting() == 0


@rule("E141")
def test_an_sql_filter_takes(session: Session, queue: str) -> None:
    numbered(session, queue, 6)
    expression = "properties.subject LIKE 'order.%' AND a.n >= 2 AND application_properties.color = 'red'"
    receiver = selecting(session, queue, (SQL, expression + " AND header.priority = 4"))
    assert receiver.bodies(2) == [b"2", b"4"]
    assert receiver.waiting() == 0


@rule("E142")
@pytest.mark.parametrize(
    ("descriptor", "wanted"),
    [
        (JMS, "n ="),
        (JMS, "n = 'x"),
        (SQL, "properties.nope = 1"),
        (JMS, "n = 1 OR " * 600 + "n = 1"),
        (SQL, 5),
        (PROPERTIES, {Symbol("nope"): "x"}),
        (APPLICATION, {"n": "&x"}),
    ],
)
def test_a_bad_filter_is_refused(session: Session, queue: str, descriptor: str, wanted: object) -> None:
    link = session.receiver(f"/queues/{queue}", filter=filters((descriptor, wanted)))
    assert link.attach.source is None
    link.detached("amqp:invalid-field")
    assert session.receiver(f"/queues/{queue}").attach.source is not None, "the session lives"


@rule("E143")
def test_a_selector_passes_over_and_the_order_is_kept(session: Session, queue: str, connect10: Connect10) -> None:
    numbered(session, queue, 10)
    red = selecting(session, queue, (JMS, "color = 'red'"), credit=2)
    assert red.bodies(2) == [b"0", b"2"]
    rest = connect10().session().receiver(f"/queues/{queue}", credit=6)
    assert rest.bodies(6) == [b"1", b"3", b"4", b"5", b"6", b"7"], "others get what is passed over, in order"
    red.grant(10)
    assert red.bodies(1) == [b"8"]
    assert red.waiting() == 0
    rest.grant(10)
    assert rest.bodies(1) == [b"9"]


@rule("E143")
def test_what_is_released_below_comes_again(session: Session, queue: str) -> None:
    numbered(session, queue, 6)
    red = selecting(session, queue, (JMS, "color = 'red'"), credit=2)
    first, second = red.deliveries(2)
    red.dispose(first.id, state=Released())
    red.accept(second)
    red.grant(10)
    assert red.bodies(2) == [b"0", b"4"]
    numbered(session, queue, 3)
    assert red.bodies(2) == [b"0", b"2"], "new messages are looked at as they come"


@rule("E143")
def test_drain_of_a_link_that_passes_over(session: Session, queue: str) -> None:
    numbered(session, queue, 5)
    red = selecting(session, queue, (JMS, "color = 'red'"), credit=0)
    red.grant(10, drain=True)
    assert red.bodies(3) == [b"0", b"2", b"4"]
    flow = red.flow()
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)


@rule("E145")
@pytest.mark.parametrize("by_code", [False, True])
def test_properties_filters(session: Session, queue: str, by_code: bool) -> None:
    numbered(session, queue, 6)

    def takes(*told: tuple[str, Any], count: int) -> list[bytes]:
        link = session.receiver(f"/queues/{queue}", credit=10, filter=filters(*told, by_code=by_code))
        found = link.deliveries(count)
        assert link.waiting() == 0
        link.detach()
        for each in found:
            assert each.message.properties is not None
        return [each.message.body for each in found]

    assert takes((PROPERTIES, {Symbol("subject"): "&p:order.", Symbol("message-id"): "m3"}), count=1) == [b"3"]
    assert takes((PROPERTIES, {Symbol("subject"): "&s:.4"}), count=1) == [b"4"]
    assert takes((PROPERTIES, {Symbol("subject"): "&s:.4", Symbol("message-id"): "m3"}), count=0) == []
    assert takes((APPLICATION, {"color": "red", "n": 2}), count=1) == [b"2"]
    assert takes((APPLICATION, {"color": "red"}), (PROPERTIES, {Symbol("subject"): "order.5"}), count=0) == []


@rule("E147")
def test_filters_in_force_are_told(session: Session, queue: str) -> None:
    told = filters((JMS, "n = 1"), (APPLICATION, {"n": 1})) | {
        Symbol("else"): Described(Symbol("nobody:knows"), "x"),
        Symbol("bare"): "n = 1",
        Symbol("local"): Described(Symbol("apache.org:no-local-filter:list"), []),
    }
    receiver = session.receiver(f"/queues/{queue}", filter=told)
    assert list(in_force(receiver)) == ["f0", "f1"]
    assert in_force(receiver)["f0"].value == "n = 1"


@rule("E141", "E143")
def test_a_selector_over_a_deep_queue(session: Session, queue: str, connect10: Connect10) -> None:
    """More than is looked at in one turn."""
    sender = session.sender(f"/queues/{queue}")
    granted = sender.granted.link_credit
    assert granted is not None
    last = [sender.post(b"%d" % n, application={"n": n}) for n in range(900)][-1]
    assert sender.outcome(last) == Accepted()
    late = [sender.post(b"%d" % n, application={"n": n}) for n in range(900, 1400)][-1]
    assert sender.outcome(late) == Accepted()
    receiver = selecting(connect10().session(), queue, (JMS, "n = 1399 OR n = 700"))
    assert receiver.bodies(2) == [b"700", b"1399"]


def test_single_active_consumer_and_a_filter(session: Session, channel: Channel, name: Any) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    numbered(session, queue, 4)
    one = selecting(session, queue, (JMS, "color = 'red'"))
    two = session.receiver(f"/queues/{queue}", credit=10)
    found = one.deliveries(2)
    assert [each.message.body for each in found] == [b"0", b"2"]
    assert two.waiting() == 0
    one.accept(*found)
    one.detach()
    assert two.bodies(2) == [b"1", b"3"]


# -- browsing


def browsing(session: Session, queue: str, *told: tuple[str, Any], credit: int = 100, **fields: Any) -> Receiver:
    return session.receiver(
        f"/queues/{queue}", credit=credit, distribution_mode="copy", filter=filters(*told) or None, **fields
    )


@rule("E144")
@pytest.mark.parametrize("settle", [0, 1])
def test_copy_removes_nothing_and_sees_each_once(
    session: Session, queue: str, channel: Channel, settle: int, connect10: Connect10
) -> None:
    numbered(session, queue, 5)
    browser = browsing(session, queue, settle=settle)
    assert getattr(browser.attach.source, "distribution_mode", None) == "copy"
    found = browser.deliveries(5)
    assert [each.message.body for each in found] == [b"%d" % n for n in range(5)]
    assert all(each.message.header.first_acquirer for each in found)
    if not settle:
        browser.accept(*found[:2])
        browser.dispose(found[2].id, state=Released())
        browser.dispose(found[3].id, state=Modified(delivery_failed=True, undeliverable_here=True))
    numbered(session, queue, 1)
    assert browser.bodies(1) == [b"0"], "what comes later is shown"
    assert browser.waiting() == 0
    assert channel.message_count(queue) == 6, "nothing is unacknowledged for it, nothing is gone"
    consumer = connect10().session().receiver(f"/queues/{queue}", credit=10)
    first = consumer.delivery().message
    assert (first.body, first.header.first_acquirer, first.header.delivery_count) == (b"0", True, 0)
    assert consumer.bodies(5) == [b"1", b"2", b"3", b"4", b"0"]


@rule("E144")
def test_a_browser_has_credit_of_its_own_and_a_filter(session: Session, queue: str, connect10: Connect10) -> None:
    numbered(session, queue, 6)
    browser = browsing(session, queue, (JMS, "color = 'red'"), credit=1)
    assert browser.bodies(1) == [b"0"]
    assert browser.waiting() == 0
    consumer = connect10().session().receiver(f"/queues/{queue}", credit=3)
    assert consumer.bodies(3) == [b"0", b"1", b"2"], "it takes no credit of others"
    browser.grant(10)
    assert browser.bodies(1) == [b"4"], "what others hold is not shown"
    assert browser.waiting() == 0


@rule("E144")
def test_drain_tells_a_browser_that_it_has_seen_all(session: Session, queue: str) -> None:
    numbered(session, queue, 3)
    browser = browsing(session, queue, credit=0)
    browser.grant(10, drain=True)
    assert browser.bodies(3) == [b"0", b"1", b"2"]
    flow = browser.flow()
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 10)
    browser.count = 10
    browser.grant(1, drain=True)
    assert browser.flow().delivery_count == 11


def test_a_deleted_queue_ends_its_browsers(session: Session, queue: str, channel: Channel) -> None:
    browser = browsing(session, queue)
    channel.queue_delete(queue)
    browser.detached("amqp:resource-deleted")


# -- streams


@rule("E141", "E145")
@pytest.mark.parametrize(
    "told",
    [
        (SQL, "a.color = 'red' AND properties.subject LIKE 'order.%'"),
        (JMS, "color = 'red'"),
        (APPLICATION, {"color": "red"}),
    ],
)
def test_filters_on_a_stream_keep_the_offsets(
    session: Session, channel: Channel, name: Any, told: tuple[str, Any]
) -> None:
    stream = name("stream")
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    numbered(session, stream, 300)
    spec = {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
    reader = session.receiver(f"/queues/{stream}", credit=3, filter=spec | filters(told))
    assert set(in_force(reader)) == {"rabbitmq:stream-offset-spec", "f0"}
    assert [each.message.annotations["x-stream-offset"] for each in reader.deliveries(3)] == [0, 2, 4]
    assert reader.waiting() == 0
    reader.grant(200)
    found = reader.deliveries(147)
    assert [each.message.annotations["x-stream-offset"] for each in found] == list(range(6, 300, 2))
    numbered(session, stream, 3)
    assert [each.message.annotations["x-stream-offset"] for each in reader.deliveries(2)] == [300, 302]


@rule("D101", "D102", "D103")
def test_modified_in_a_transaction(session: Session, queue: str, connect10: Connect10) -> None:
    """With its commit, and not before."""
    fill(session, queue, 2)
    coordinator = Coordinating(session)
    receiver = session.receiver(f"/queues/{queue}", credit=2)
    first, second = receiver.deliveries(2)
    txn_id = coordinator.declare()
    outcome = Modified(
        delivery_failed=True, undeliverable_here=True, message_annotations={Symbol("x-opt-why"): "transacted"}
    )
    state = TransactionalState(txn_id=txn_id, outcome=outcome)
    receiver.dispose(first.id, second.id, state)
    other = connect10().session().receiver(f"/queues/{queue}", credit=2)
    session.settle_down()
    assert other.waiting() == 0
    assert coordinator.discharge(txn_id) == Accepted()
    receiver.grant(2)
    found = other.deliveries(2)
    assert [each.message.body for each in found] == [b"0", b"1"]
    for each in found:
        assert (each.message.annotations["x-opt-why"], each.message.header.delivery_count) == ("transacted", 1)
    assert receiver.waiting() == 0
