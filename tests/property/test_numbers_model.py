"""Numbers of producers, compiled and by batches, against the rule as decoding says it and against one at a time."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.content import numbers
from clusterbroker.broker.queues.producers import Producers
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.wire.amqp091 import codec, properties
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.broker.wire.numbers import Int8, Int64L, UInt32
from clusterbroker.journal.record import Message
from clusterbroker.journal.values import LongBytes, Timestamp
from tests.budget import examples
from tests.model import numbers as model

PRODUCERS = st.sampled_from(["a", "b", "ä", "k" * 255])
BAD = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["", "\0a", "k" * 256]),
    st.binary(max_size=3).map(lambda raw: LongBytes(b"\xff" + raw)),
    st.integers(-(2**63), 2**63 - 1),
)
SEQUENCES = st.one_of(
    st.integers(0, 9),
    st.integers(1, 9).map(Int8),
    st.integers(1, 9).map(UInt32),
    st.integers(2**61 - 2, 2**62 + 1).map(Int64L),
    st.integers(1, 9).map(Timestamp),
)
GOOD = st.fixed_dictionaries(
    {"x-producer": PRODUCERS, "x-seq": st.integers(1, 20)}, optional={"a": BAD, "n": st.lists(BAD, max_size=2)}
)
ANY = st.dictionaries(
    st.sampled_from(["CC", "BCC", "cc", "x-pro"]), st.lists(st.text(max_size=2), max_size=1), max_size=1
)
HEADERS = (
    st.none()
    | GOOD
    | st.builds(
        dict.__or__,
        st.dictionaries(st.sampled_from(["x-producer", "x-seq", ""]), SEQUENCES | BAD | PRODUCERS, max_size=3),
        ANY,
    )
)


def message(headers: dict[str, Any] | None, **more: Any) -> Message:
    made = codec.make_message(b"\0\1k", properties.encode(Properties(headers=headers, **more)), b"body", 1)
    assert isinstance(made, Message)
    return made


@settings(max_examples=examples(400))
@given(st.lists(GOOD | st.none(), max_size=8) | st.lists(HEADERS, max_size=4), st.none() | st.text(max_size=5))
def test_runs_are_those_of_decoded_headers(several: list[dict[str, Any] | None], kind: str | None) -> None:
    messages = [message(headers, content_type=kind) for headers in several]
    said, right = numbers.runs(messages), model.runs(messages)  # type: ignore[arg-type]
    assert said is None or said == right


@settings(max_examples=examples(100))
@given(st.lists(GOOD | st.none(), max_size=12))
def test_good_numbers_need_no_decoding(several: list[dict[str, Any] | None]) -> None:
    messages = [message(headers) for headers in several]
    assert numbers.runs(messages) is not None


@settings(max_examples=examples(300))
@given(HEADERS)
def test_decoded_headers_are_judged_alike(headers: dict[str, Any] | None) -> None:
    def judged(read: Any) -> object:
        try:
            return read(headers)
        except ValueError as error:
            return str(error)

    assert judged(numbers.named_in) == judged(model.named_in)
    assert numbers.is_numbered(headers or {}) == model.is_numbered(headers or {})


@settings(max_examples=examples(200))
@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_safe(raw: bytes) -> None:
    numbers.runs([Message(b"\0\0", b"\x20\0" + len(raw).to_bytes(4) + raw, 6 + len(raw), 2)])


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["run", "fleeting"]), st.sampled_from([b"a", b"b"]),
            st.sets(st.integers(1, 200), min_size=1, max_size=8).map(sorted),
        ),
        st.tuples(
            st.just("refuse"), st.sampled_from([b"a", b"b"]), st.sets(st.integers(1, 200), max_size=8).map(sorted)
        ),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=examples(300))
@given(STEPS)
def test_a_run_is_noted_as_its_numbers_one_by_one(steps: list[tuple[str, bytes, list[int]]]) -> None:
    rings = [Ring(1, True), Ring(1, True)]
    run, each = (Producers(ring) for ring in rings)
    for what, producer, several in steps:
        if what == "refuse":
            for number in several:
                assert run.knows(producer, number) == each.knows(producer, number)
                if not run.knows(producer, number):
                    assert run.refuse(producer, number) == each.refuse(producer, number)
            continue
        new = []
        for place, number in enumerate(several):
            if not each.knows(producer, number):
                each.note(producer, number, what == "fleeting")
                new.append(place)
        assert list(run.note_new(producer, several, what == "fleeting")) == new
        assert list(rings[0].attributes.items()) == list(rings[1].attributes.items()), "names in their order too"
    for number in range(1, 201):
        assert run.knows(b"a", number) == each.knows(b"a", number)
