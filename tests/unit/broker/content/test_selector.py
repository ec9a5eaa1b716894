"""Selectors and filter maps: what they take, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.content.selector.filters import BadFilter, Filter, filter_of, filter_on_wire
from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.content.selector.syntax import DEPTH_MAX, NODES_MAX, TEXT_BYTES_MAX
from clusterbroker.broker.wire.amqp091.properties import Properties as BasicProperties
from clusterbroker.broker.wire.amqp10.performatives import Header, Properties
from clusterbroker.broker.wire.amqp10.sections import make_message
from clusterbroker.broker.wire.amqp10.types import Described, Milliseconds, Symbol, Uuid, encode
from clusterbroker.broker.wire.numbers import UInt64
from clusterbroker.journal.record import Message

JMS, SQL = UInt64(0x468C00000004), Symbol("amqp:sql-filter")
PROPERTIES, APPLICATION = UInt64(0x173), Symbol("amqp:application-properties-filter")
UUID = Uuid.parse("12345678-1234-5678-1234-567812345678")


def message(application: dict[str, Any] | None = None, *, durable: bool = False, priority: int = 4,
            annotations: dict[Any, Any] | None = None, **properties: Any) -> Message:  # fmt: skip
    raw = Header(durable=durable, priority=priority).encoded()
    if annotations:
        raw += encode(Described(UInt64(0x72), annotations))
    raw += Properties(**properties).encoded()
    if application:
        raw += encode(Described(UInt64(0x74), application))
    made = make_message(b"\0\0", raw + encode(Described(UInt64(0x75), b"body")), 0)
    assert made is not None
    return made


def takes(descriptor: Any, wanted: Any, of: Message) -> bool:
    made, in_force = filter_of({Symbol("f"): Described(descriptor, wanted)})
    assert made is not None
    assert list(in_force) == ["f"]
    again = filter_on_wire(made.wire)
    assert again is not None
    assert again.takes(Subject(of)) is made.takes(Subject(of))
    return made.takes(Subject(of))


ORDER = message(
    {"color": "red", "n": 5, "price": 2.5, "yes": True, "text": "100% sure_", "none": None},
    durable=True,
    priority=7,
    message_id="m1",
    correlation_id=UUID,
    subject="order",
    creation_time=Milliseconds(1000),
    group_id="g",
    user_id=b"guest",
    annotations={Symbol("x-opt-a"): 1},
)


@pytest.mark.parametrize(
    "selector",
    [
        "color = 'red'",
        "color <> 'blue' AND n > 4 AND n < 6 AND n >= 5 AND n <= 5",
        "n = 5.0 and price * 2 = n",
        "n BETWEEN 1 AND 5 and n not between 6 and 9",
        "color IN ('blue', 'red') AND color NOT IN ('blue')",
        "color LIKE 'r_d' AND color LIKE 'r%' AND color like '%e%' AND color LIKE '%d' AND color NOT LIKE 'x%'",
        "text LIKE '100!%%!_' ESCAPE '!'",
        "missing IS NULL AND color IS NOT NULL AND none is null",
        "yes AND NOT (yes = FALSE)",
        "(n + 1) * 2 - 2 = 10 AND n / 2 = 2 AND n % 3 = 2 AND -n = -5 AND +n = 5 AND -n / 2 = -2 AND -n % 3 = -2",
        "missing = 1 OR n = 5",
        "NOT (missing = 1 AND n = 6)",
        "JMSPriority = 7 AND JMSDeliveryMode = 'PERSISTENT' AND JMSType = 'order' AND JMSTimestamp = 1000",
        "JMSMessageID = 'm1' AND JMSXGroupID = 'g' AND JMSXUserID = 'guest'",
        "JMSCorrelationID = 'ID:AMQP_UUID:12345678-1234-5678-1234-567812345678'",
        "amqp.priority = 7 AND amqp.subject = 'order'",
        "1 = 1 AND 0x10 <> 'x' OR TRUE",
    ],
)
def test_a_selector_takes(selector: str) -> None:
    assert takes(JMS, selector, ORDER)


@pytest.mark.parametrize(
    "selector",
    [
        "missing = 1",
        "missing <> 1",
        "NOT (missing = 1)",
        "missing > 1 OR n = 6",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "missing LIKE '%'",
        "NOT missing LIKE '%'",
        "missing + 1 = 1",
        "n / 0 = 1",
        "n % 0 = 1",
        "color > 'a'",
        "color = 5",
        "yes = 1",
        "yes = 'TRUE'",
        "n LIKE '5'",
        "n",
        "color",
        "missing BETWEEN 1 AND 2",
        "color LIKE 'r_'",
        "color LIKE '%x%'",
        "9223372036854775807 + n > 0",
    ],
)
def test_a_selector_does_not_take(selector: str) -> None:
    assert not takes(JMS, selector, ORDER)


@pytest.mark.parametrize(
    "expression",
    [
        "properties.subject = 'order' AND p.message_id = 'm1' AND p.group_id != 'h'",
        "header.priority > 4 AND h.durable",
        "application_properties.color = 'red' AND a.n = 5 AND n = 5",
        "m.nothing IS NULL",
        "p.subject > 'a' AND p.subject < 'p'",
        'p.subject = "order"',
        "p.creation_time >= 1000",
        "p.[message-id] = 'm1' AND m.[x-opt-a] = 1 AND [color] = 'red' AND a.[color] = 'red'",
    ],
)
def test_an_sql_expression_takes(expression: str) -> None:
    assert takes(SQL, expression, ORDER)


@pytest.mark.parametrize(
    "selector",
    [
        "", " ", "n =", "= n", "n = 5 5", "n IN ()", "n IN (1", "n LIKE 5", "n LIKE 'a' ESCAPE 'xy'", "n BETWEEN 1",
        "n IS 5", "n NOT 5", "(n = 5", "n = 5)", "'a", "n = 5 AND", "n ~ 5", "n LIKE 'a!b' ESCAPE '!'",
        "n = 1a", "NOT", "n LIKE '%" + "_" * 40 + "%'", "(" * (DEPTH_MAX + 1) + "n" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "yes", "-" * (DEPTH_MAX + 1) + "n = 1", " OR ".join(["n"] * NODES_MAX),
        "n = '" + "x" * TEXT_BYTES_MAX + "'",
    ],
)  # fmt: skip
def test_a_bad_selector_is_refused_in_words(selector: str) -> None:
    with pytest.raises(BadFilter, match="selector"):
        filter_of({Symbol("f"): Described(JMS, selector)})


@pytest.mark.parametrize("expression", ["p.nope = 1", "h.nope = 1", "footer.x = 1"])
def test_an_unknown_section_or_field_is_refused(expression: str) -> None:
    with pytest.raises(BadFilter):
        filter_of({Symbol("f"): Described(SQL, expression)})


def test_the_largest_selector_is_judged() -> None:
    assert takes(JMS, " OR ".join(["n"] * (NODES_MAX // 2 - 1) + ["yes"]), ORDER)


@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        ({Symbol("subject"): "order"}, True),
        ({Symbol("subject"): "&p:or", Symbol("message-id"): "m1"}, True),
        ({Symbol("subject"): "&s:der"}, True),
        ({Symbol("subject"): "&p:er"}, False),
        ({Symbol("subject"): "order", Symbol("group-id"): "h"}, False),
        ({Symbol("correlation-id"): UUID}, True),
        ({Symbol("correlation-id"): bytes(UUID)}, False),
        ({Symbol("creation-time"): Milliseconds(1000)}, True),
        ({Symbol("reply-to"): "x"}, False),
    ],
)
def test_a_properties_filter(entries: dict[Any, Any], taken: bool) -> None:
    assert takes(PROPERTIES, entries, ORDER) is taken


def test_an_application_properties_filter() -> None:
    assert takes(APPLICATION, {"color": "red", "n": 5, "yes": True}, ORDER)
    assert not takes(APPLICATION, {"color": "red", "n": 6}, ORDER)
    assert not takes(APPLICATION, {"yes": 1}, ORDER)
    assert not takes(APPLICATION, {"missing": "x"}, ORDER)
    amp = message({"a": "&x", "b": "&p:x"})
    assert takes(APPLICATION, {"a": "&&x", "b": "&&p:x"}, amp)
    assert not takes(APPLICATION, {"b": "&p:x"}, amp)


@pytest.mark.parametrize(
    ("descriptor", "wanted"),
    [
        (JMS, 5), (SQL, b"n = 5"), (PROPERTIES, "x"), (PROPERTIES, {}), (PROPERTIES, {Symbol("nope"): "x"}),
        (PROPERTIES, {Symbol("subject"): None}), (PROPERTIES, {Symbol("subject"): ["x"]}), (APPLICATION, {5: "x"}),
        (APPLICATION, {"x": "&q"}), (APPLICATION, {str(n): "x" for n in range(17)}),
    ],
)  # fmt: skip
def test_a_bad_filter_is_refused(descriptor: Any, wanted: Any) -> None:
    with pytest.raises(BadFilter):
        filter_of({Symbol("f"): Described(descriptor, wanted)})


def test_all_filters_hold_together_and_unknown_ones_are_left_out() -> None:
    made, in_force = filter_of(
        {
            Symbol("a"): Described(JMS, "n = 5"),
            Symbol("b"): Described(APPLICATION, {"color": "blue"}),
            Symbol("c"): Described(Symbol("nobody:knows"), "x"),
            Symbol("d"): "not described",
        }
    )
    assert made is not None
    assert list(in_force) == ["a", "b"]
    assert not made.takes(Subject(ORDER))
    assert filter_of({Symbol("c"): Described(Symbol("nobody:knows"), "x")}) == (None, {})


def test_a_message_of_the_other_protocol_is_seen_as_its_translation() -> None:
    basic = new_message(
        "", "q", BasicProperties(headers={"color": "red", "n": 5}, message_id="m1", priority=7, delivery_mode=2), b"", 0
    )
    assert takes(JMS, "color = 'red' AND n = 5 AND JMSMessageID = 'm1' AND JMSPriority = 7", basic)
    assert takes(JMS, "JMSDeliveryMode = 'PERSISTENT'", basic)


def test_a_message_that_cannot_be_read_is_not_taken() -> None:
    unknown = Message(b"\0\0", b"??", 2, 0, 0, 0, -1, 77)
    assert not takes(JMS, "missing IS NULL", unknown)


def test_what_another_release_sent_is_refused() -> None:
    assert filter_on_wire(b"") is None
    for wire in (b"\xff", encode("text"), encode({Symbol("f"): Described(Symbol("nobody:knows"), "x")})):
        with pytest.raises(BadFilter):
            filter_on_wire(wire)


@pytest.mark.parametrize(("error", "answer"), [(MemoryError(), None), (ValueError("no such section"), False)])
def test_a_want_of_memory_says_nothing_of_a_message(error: Exception, answer: bool | None) -> None:
    def holds(_: Subject) -> bool:
        raise error

    assert Filter((holds,), b"").takes(Subject(message())) is answer
