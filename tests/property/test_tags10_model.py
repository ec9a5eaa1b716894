"""Delivery-tags in a row and in a set are those of their model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10 import tags as tags_compiled
from tests.model import tags10 as tags_model

BOTH = (tags_model, tags_compiled)
# few lengths, and few bytes: tags meet again, begin alike, and are as long as a word of the set or a byte more or less
some_tags = st.one_of(
    st.integers(0, 40).map(lambda number: number.to_bytes(4)),
    st.binary(max_size=3),
    st.tuples(st.sampled_from((6, 7, 8, 15, 16, 23, 24, 31)), st.sampled_from((b"\0", b"a"))).map(
        lambda drawn: drawn[0] * drawn[1] + b"z"
    ),
)
steps = st.one_of(
    st.tuples(st.just("hold"), st.lists(some_tags, max_size=30), st.booleans()),
    st.tuples(st.just("release"), st.lists(some_tags, max_size=30), st.booleans()),
    st.tuples(st.just("add"), some_tags),
    st.tuples(st.just("in"), some_tags),
    st.tuples(st.just("many"), st.integers(0, 200)),
    st.tuples(st.just("few"), st.integers(0, 200)),
)


def answer(module: Any, tags: Any, step: tuple[Any, ...]) -> Any:
    kind, value, *rest = step
    if kind in ("many", "few"):
        row = module.Tags([b"m%d" % number for number in range(value)])
        return tags.hold(row) if kind == "many" else tags.release(row)
    if kind == "in":
        return value in tags
    if kind == "add":
        return tags.add(value)
    return getattr(tags, kind)(module.Tags(value) if rest[0] else value)


@given(st.lists(steps, max_size=30))
def test_a_set_holds_what_its_model_holds(steps: list[tuple[Any, ...]]) -> None:
    sides = [(module, module.TagSet()) for module in BOTH]
    for step in steps:
        told = [answer(module, tags, step) for module, tags in sides]
        assert told[0] == told[1], step
        assert len(sides[0][1]) == len(sides[1][1])
        assert sorted(sides[0][1]) == sorted(sides[1][1])


@given(st.lists(some_tags, max_size=60))
def test_tags_in_a_row_are_those_that_were_put(tags: list[bytes]) -> None:
    for module in BOTH:
        row = module.Tags(tags)
        row.append(b"last")
        assert list(row) == [*tags, b"last"] == row
        assert len(row) == len(tags) + 1
        assert (b"last" in row, b"absent" in row) == (True, False)


@pytest.mark.parametrize("module", BOTH)
def test_a_tag_has_at_most_32_bytes(module: Any) -> None:
    with pytest.raises(ValueError, match="33 bytes: at most 32"):
        module.Tags().append(bytes(33))
    with pytest.raises(ValueError, match="33 bytes: at most 32"):
        module.TagSet().add(bytes(33))
    whole = module.TagSet()
    assert whole.add(bytes(32))
    assert bytes(32) in whole
    assert bytes(31) not in whole
    assert bytes(33) not in whole


def test_a_set_gives_back_its_memory() -> None:
    tags = tags_compiled.TagSet()
    row = tags_compiled.Tags([number.to_bytes(8) for number in range(100_000)])
    assert tags.hold(row)
    assert not tags.hold(row)
    assert tags.bytes_held >= 100_000 * 16
    tags.release(row)
    assert (len(tags), tags.bytes_held) == (0, 0)
