"""The two halves of the record module are one: same calls, same bytes, same answers, same refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.journal import record_pure
from tests.budget import examples

record_fast = pytest.importorskip("clusterbroker.journal.record_fast")
HALVES = (record_pure, record_fast)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
u16 = st.integers(0, 2**16 - 1)
u8 = st.integers(0, 255)

messages = st.tuples(
    st.binary(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=40),
    st.binary(max_size=300),
    u8,
    u8,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**62),
)
calls = st.one_of(
    st.tuples(st.just("enqueue"), u64, u32, u64, messages, u16),
    st.tuples(st.just("settle"), u64, u32, st.lists(st.tuples(u64, u64), min_size=1, max_size=5), u8),
    st.tuples(st.just("reserve"), u64, u32, u64),
    st.tuples(st.just("count_delivery"), u64, u32, u64, u16),
    st.tuples(st.just("dead"), u64, u32, u64, u64),
    st.tuples(st.just("cut"), u64, u32, u64),
    st.tuples(st.just("set_attribute"), u64, u32, st.binary(min_size=1, max_size=40), u64),
    st.tuples(st.just("begin_epoch"), u64, u32, u64),
)


def message_of(half: Any, parts: tuple[Any, ...]) -> Any:
    exchange, key, header, body, flags, priority, time_ms, ttl_ms = parts
    address = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return half.Message(address, header + body, len(header), flags, priority, time_ms, ttl_ms)


def written(half: Any, group: list[tuple[Any, ...]], lsn: int = 7) -> bytearray:
    writer = half.GroupWriter(5, 64)
    for name, *arguments in group:
        if name == "enqueue":
            arguments[3] = message_of(half, arguments[3])
        getattr(writer, name)(*arguments)
    data = writer.finish(lsn, 1_700_000_000_000)
    assert isinstance(data, bytearray)
    half.seal(data)
    return data


def answer(half: Any, data: bytes, at: int, base: int) -> tuple[Any, ...]:
    try:
        return ("read", *half.scan_group(data, at, base))
    except record_pure.DamagedRecord as damage:
        return ("damaged", *damage.args)


def proof(half: Any, span: bytes) -> object:
    try:
        return half.verify_records(span, 1, 9)
    except record_pure.DamagedRecord as damage:
        return damage.args


def fields(message: Any) -> tuple[Any, ...]:
    names = ("address", "payload", "header_length", "flags", "priority", "time_ms", "ttl_ms", "size")
    return tuple(getattr(message, name) for name in names)


@given(st.lists(calls, max_size=20), u64)
def test_same_calls_same_bytes_same_records(group: list[tuple[Any, ...]], lsn: int) -> None:
    pure, fast = (written(half, group, lsn) for half in HALVES)
    assert pure == fast
    read = answer(record_pure, pure, 0, 64)
    assert read == answer(record_fast, fast, 0, 64)
    assert read[:3] == ("read", lsn, len(pure))
    for call, record in zip(group, read[3], strict=True):
        if call[0] == "enqueue":
            wanted = [(record.seq, record.offset)]
            messages = [half.read_messages(pure, 64, record.queue_id, wanted)[0] for half in HALVES]
            assert fields(messages[0]) == fields(messages[1]) == fields(message_of(record_pure, call[4]))


@given(st.lists(calls, min_size=1, max_size=4), st.data())
def test_every_bit_flip_is_damage_and_both_say_so(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    sealed = written(record_fast, group)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit >> 3] ^= 1 << (bit & 7)
    damaged = answer(record_fast, sealed, 0, 0)
    assert damaged[0] == "damaged"
    assert damaged == answer(record_pure, sealed, 0, 0)


@given(st.binary(max_size=400), st.integers(0, 410))
def test_arbitrary_bytes_raise_only_damage(data: bytes, at: int) -> None:
    assert answer(record_fast, data, at, 9) == answer(record_pure, data, at, 9)


def with_good_checksums(data: bytearray, records: list[tuple[int, int]]) -> None:
    for at, length in records:
        if at + 8 <= at + length <= len(data):
            data[at + 4 : at + 8] = record_pure.checksum(data[at + 8 : at + length]).to_bytes(4, "little")
    data[4:8] = record_pure.checksum(data[8:32]).to_bytes(4, "little")


@settings(max_examples=examples(300))
@given(st.lists(calls, min_size=1, max_size=4), st.data())
def test_lying_fields_behind_good_checksums(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """A length, count or kind that lies is refused by its own check, in both halves with the same words."""
    sealed = written(record_fast, group)
    records = [(r.offset, r.length) for r in record_fast.scan_group(sealed, 0)[2]]
    start = data.draw(st.integers(8, len(sealed) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=4))[: len(sealed) - start]
    sealed[start : start + len(noise)] = noise
    with_good_checksums(sealed, records)
    assert answer(record_fast, sealed, 0, 0) == answer(record_pure, sealed, 0, 0)
    for at, _ in records:
        for half in HALVES:
            try:
                half.read_message(sealed, at, 1, 1)
            except record_pure.DamagedRecord:
                pass


@given(st.lists(calls, max_size=6), st.data())
def test_spans_are_the_same_and_refused_alike(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    spans = []
    for half in HALVES:
        writer = half.GroupWriter(5, 64)
        start = writer.size
        for name, *arguments in [(call[0], 1, 9, *call[3:]) for call in group]:
            if name == "enqueue":
                arguments[3] = message_of(half, arguments[3])
            getattr(writer, name)(*arguments)
        spans.append(writer.span(start, writer.size))
    assert spans[0] == spans[1]
    pure, fast = (proof(half, spans[0]) for half in HALVES)
    assert pure == fast
    assert pure == len(group) or "is beyond any queue" in str(pure), "seqs are the only numbers with a limit"
    if pure == len(group):
        assert record_fast.bodies_but_last(spans[0]) == record_pure.bodies_but_last(spans[0])
        producers = {call[3] for call in group if call[0] == "set_attribute"}
        assert [half.attributes_named(spans[0]) for half in HALVES] == [producers, producers]
    noisy = bytearray(spans[0])
    if noisy:
        at = data.draw(st.integers(0, len(noisy) - 1))
        noisy[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))[: len(noisy) - at]
    answers = []
    for half in HALVES:
        for read in (lambda half=half: half.verify_records(noisy, 1, 9), lambda half=half: half.read_records(noisy)):
            try:
                answers.append([fields(part[1]) for part in found] if isinstance(found := read(), list) else found)
            except record_pure.DamagedRecord as damage:
                answers.append(damage.args)
    assert answers[:2] == answers[2:]
