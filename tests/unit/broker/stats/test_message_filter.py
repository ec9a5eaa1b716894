"""What a filter means, and that no text makes it slow or lets it fail."""

from __future__ import annotations

import fnmatch
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.queues.states import DEAD, READY, UNACKED
from clusterbroker.broker.stats import message_filter
from clusterbroker.broker.stats.message_filter import STEP_BYTES, BadFilter, Filter, Glob, Subject, finished, parse
from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message

NOW_MS = 1_000_000


def subject(
    body: bytes = b"hello world",
    key: bytes = b"orders.new",
    headers: dict[str, Any] | None = None,
    state: int = READY,
    **properties: Any,
) -> Subject:
    header = codec.encode(Properties(headers=headers, **properties))
    address = b"\x02ex" + bytes((len(key),)) + key
    message = Message(address, header + body, len(header), 0, 0, NOW_MS - 90_000)
    return Subject(7, state, True, 2, message, NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "routing_key=orders.new", "routing_key=orders.*", "routing_key=*.new", "routing_key=o?ders*w",
        "routing_key!=orders", "exchange=ex", 'exchange="ex"', "header.a=1", "header.b=text", 'header."with blank"=x',
        "header.none!=1", "header.none!~1", "header.flag=true", "header.list=two", "header.list~w",
        "message_id=m-1", "message_id~-", "priority=3", "priority>2", "priority<=3", "delivery_mode=2",
        'payload~"lo wo"', "payload~hello", "payload!~nothing", "payload=hello*", "size=11", "size<1k", "size>10",
        "age>1m", "age<2m", "age>=90s", "age=90s", "age>80000ms", "seq=7", "seq>=7", "redelivered=true",
        "delivery_count>1", "state=ready", "routing_key=orders.* AND header.a=1 and size<1M", "correlation_id!=x",
        'header.quoted="say \\"x\\""', "routing_key = orders.new",
    ],
)  # fmt: skip
def test_what_holds(text: str) -> None:
    headers = {"a": 1, "b": "text", "with blank": "x", "flag": True, "list": ["one", "two"], "quoted": 'say "x"'}
    filter_ = parse(text)
    assert filter_.matches(subject(headers=headers, message_id="m-1", priority=3, delivery_mode=2))


@pytest.mark.parametrize(
    "text",
    [
        "routing_key=orders", 'routing_key="orders.*"', "routing_key=*.old", "routing_key=?", "header.a=1",
        "header.a~1", "payload~Hello", "size>11", "size<11", "age>2m", "age<1m", "state=dead",
        "redelivered=false", "priority>0",
        "routing_key=orders.new AND seq=8", "message_id=x", "header.a=*",
    ],
)  # fmt: skip
def test_what_does_not(text: str) -> None:
    assert not parse(text).matches(subject())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "is no condition"), ("colour=red", "no field 'colour'"), ("size=big", "is no size"),
        ("size~1", "is a number"), ("routing_key<5", "is no number"), ("age>5x", "is no age"),
        ("seq=1 AND ", "behind the last AND"), ("seq=1 seq=2", "is no condition"), ('payload~"open', "is no condition"),
        ("x" * 5000, "characters at most"), (" AND ".join(["seq=1"] * 33), "conditions at most"),
        (" AND ".join(["payload~a"] * 5), "conditions at most"), ("payload=*" + "a?" * 40, "between two '*'"),
        ("payload=*a?b*", "too slow on a payload"), (" AND ".join(["type=*a?b*"] * 5), "between two '*'"),
    ],
)  # fmt: skip
def test_what_is_none(text: str, why: str) -> None:
    with pytest.raises(BadFilter, match=why.replace("*", r"\*")):
        parse(text)


def test_a_place_needs_no_content() -> None:
    assert not parse("seq>5 AND state=ready AND redelivered=true AND delivery_count=0").needs_content
    assert not parse("").needs_content
    assert parse("seq>5 AND age>1s").needs_content
    assert [parse("state=unacknowledged").matches(subject(state=state)) for state in (READY, UNACKED, DEAD)] == [
        False, True, False,
    ]  # fmt: skip


@given(st.text(alphabet="ab*?.", max_size=12), st.text(alphabet="ab.", max_size=12))
def test_patterns_mean_what_shells_mean(pattern: str, text: str) -> None:
    assert Glob(pattern).matches(text.encode()) == fnmatch.fnmatchcase(text, pattern)


@given(st.text(alphabet="ab*", max_size=12), st.text(alphabet="ab", max_size=40), st.booleans(), st.integers(1, 5))
def test_a_search_in_steps_finds_what_one_look_finds(piece: str, text: str, negated: bool, step: int) -> None:
    ops = ("!=", "!~") if negated else ("=", "~")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_filter, "STEP_BYTES", step)
        matches, contains = (finished(parse(f"payload{op}{piece}").search(text.encode())) for op in ops)
    assert matches == (fnmatch.fnmatchcase(text, piece) != negated)
    assert contains == ((piece in text) != negated)


def test_no_step_of_a_search_is_long() -> None:
    body = b"a" * (16 << 20)
    search = parse("payload=*" + "a" * 2000 + "b* AND payload~" + "ab" * 900).search(body)
    steps, longest = 0, 0.0
    while True:
        began = time.process_time()
        over = next(search, True)
        longest = max(longest, time.process_time() - began)
        if over:
            break
        steps += 1
    assert steps >= len(body) // STEP_BYTES - 1
    assert longest < 0.05


@given(st.text(max_size=60) | st.text(alphabet='ab=~!<>"\\ .*?ANDheader', max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        filter_: Filter = parse(text)
    except BadFilter:
        return
    assert filter_.matches(subject(headers={"a": b"\xff", "h": {"x": 1}})) in (True, False)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_quoted_value_is_itself(value: str) -> None:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    assert parse(f'payload="{quoted}"').matches(subject(value.encode()))


def test_long_payloads_take_no_long_time() -> None:
    long = subject(b"a" * (4 << 20))
    began = time.process_time()
    for pattern in ("*" + "a*" * 60 + "b", "*" + "a" * 2000 + "b*", "*" + "a" * 30 + "b?"):
        assert not parse(f"payload={pattern}").matches(long)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "times"), [("header.a!=x", 32), ("header.a!=*?yyyyyyyyyyyyyyyyyyyyyyyyyyyyyz*", 4), ("header.b!=x", 32)]
)
@pytest.mark.parametrize("value", [[None] * 9000, ["y"] * 9000, "y" * 120_000])
def test_what_takes_long_says_so(text: str, times: int, value: Any) -> None:
    """A piece of work takes some us, whatever it is."""
    one = subject(headers={"a": value})
    began = time.process_time()
    assert parse(" AND ".join([text] * times)).matches(one)
    assert time.process_time() - began < one.work * 20e-6
    assert time.process_time() - began < 1
