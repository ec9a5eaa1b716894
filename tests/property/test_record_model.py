"""The record module and its model are one: same calls, same bytes, same answers, same refusals."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.journal import record as record_compiled
from tests.budget import examples
from tests.model import record as record_model

BOTH = (record_model, record_compiled)

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
    u8,
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


def message_of(module: Any, parts: tuple[Any, ...]) -> Any:
    exchange, key, header, body, flags, priority, time_ms, ttl_ms, message_format = parts
    address = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return module.Message(address, header + body, len(header), flags, priority, time_ms, ttl_ms, message_format)


def written(module: Any, group: list[tuple[Any, ...]], lsn: int = 7) -> bytearray:
    writer = module.GroupWriter(5, 64)
    for name, *arguments in group:
        if name == "enqueue":
            arguments[3] = message_of(module, arguments[3])
        getattr(writer, name)(*arguments)
    data = writer.finish(lsn, 1_700_000_000_000)
    assert isinstance(data, bytearray)
    module.seal(data)
    return data


def answer(module: Any, data: bytes, at: int, base: int) -> tuple[Any, ...]:
    try:
        return ("read", *module.scan_group(data, at, base))
    except record_model.DamagedRecord as damage:
        return ("damaged", *damage.args)


def proof(module: Any, span: bytes) -> object:
    try:
        return module.verify_records(span, 1, 9)
    except record_model.DamagedRecord as damage:
        return damage.args


def fields(message: Any) -> tuple[Any, ...]:
    names = ("address", "payload", "header_length", "flags", "priority", "time_ms", "ttl_ms", "format", "size")
    return tuple(getattr(message, name) for name in names)


@given(st.lists(calls, max_size=20), u64)
def test_same_calls_same_bytes_same_records(group: list[tuple[Any, ...]], lsn: int) -> None:
    pure, fast = (written(module, group, lsn) for module in BOTH)
    assert pure == fast
    read = answer(record_model, pure, 0, 64)
    assert read == answer(record_compiled, fast, 0, 64)
    assert read[:3] == ("read", lsn, len(pure))
    for call, record in zip(group, read[3], strict=True):
        if call[0] == "enqueue":
            wanted = [(record.seq, record.offset)]
            messages = [module.read_messages(pure, 64, record.queue_id, wanted)[0] for module in BOTH]
            assert fields(messages[0]) == fields(messages[1]) == fields(message_of(record_model, call[4]))


@given(st.lists(calls, min_size=1, max_size=4), st.data())
def test_every_bit_flip_is_damage_and_both_say_so(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    sealed = written(record_compiled, group)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit >> 3] ^= 1 << (bit & 7)
    damaged = answer(record_compiled, sealed, 0, 0)
    assert damaged[0] == "damaged"
    assert damaged == answer(record_model, sealed, 0, 0)


@given(st.binary(max_size=400), st.integers(0, 410))
def test_arbitrary_bytes_raise_only_damage(data: bytes, at: int) -> None:
    assert answer(record_compiled, data, at, 9) == answer(record_model, data, at, 9)


def with_good_checksums(data: bytearray, records: list[tuple[int, int]]) -> None:
    for at, length in records:
        if at + 8 <= at + length <= len(data):
            data[at + 4 : at + 8] = record_model.checksum(data[at + 8 : at + length]).to_bytes(4, "little")
    data[4:8] = record_model.checksum(data[8:32]).to_bytes(4, "little")


@settings(max_examples=examples(300))
@given(st.lists(calls, min_size=1, max_size=4), st.data())
def test_lying_fields_behind_good_checksums(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """A length, count or kind that lies is refused by its own check, in both with the same words."""
    sealed = written(record_compiled, group)
    records = [(r.offset, r.length) for r in record_compiled.scan_group(sealed, 0)[2]]
    start = data.draw(st.integers(8, len(sealed) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=4))[: len(sealed) - start]
    sealed[start : start + len(noise)] = noise
    with_good_checksums(sealed, records)
    assert answer(record_compiled, sealed, 0, 0) == answer(record_model, sealed, 0, 0)
    for at, _ in records:
        for module in BOTH:
            try:
                module.read_message(sealed, at, 1, 1)
            except record_model.DamagedRecord:
                pass


@given(st.lists(calls, max_size=6), st.data())
def test_spans_are_the_same_and_refused_alike(group: list[tuple[Any, ...]], data: st.DataObject) -> None:
    spans = []
    for module in BOTH:
        writer = module.GroupWriter(5, 64)
        start = writer.size
        for name, *arguments in [(call[0], 1, 9, *call[3:]) for call in group]:
            if name == "enqueue":
                arguments[3] = message_of(module, arguments[3])
            getattr(writer, name)(*arguments)
        spans.append(writer.span(start, writer.size))
    assert spans[0] == spans[1]
    pure, fast = (proof(module, spans[0]) for module in BOTH)
    assert pure == fast
    assert pure == len(group) or "is beyond any queue" in str(pure), "seqs are the only numbers with a limit"
    if pure == len(group):
        assert record_compiled.bodies_but_last(spans[0]) == record_model.bodies_but_last(spans[0])
        producers = {call[3] for call in group if call[0] == "set_attribute"}
        assert [module.attributes_named(spans[0]) for module in BOTH] == [producers, producers]
    noisy = bytearray(spans[0])
    if noisy:
        at = data.draw(st.integers(0, len(noisy) - 1))
        noisy[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))[: len(noisy) - at]
    answers = []
    for module in BOTH:
        for read in (
            lambda module=module: module.verify_records(noisy, 1, 9),
            lambda module=module: module.verify_records(noisy, 1, 9, True),
            lambda module=module: module.read_records(noisy),
        ):
            try:
                answers.append([fields(part[1]) for part in found] if isinstance(found := read(), list) else found)
            except record_model.DamagedRecord as damage:
                answers.append(damage.args)
    assert answers[:3] == answers[3:]
