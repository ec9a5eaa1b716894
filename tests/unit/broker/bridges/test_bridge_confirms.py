"""See `broker.bridges.confirms`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.bridges.confirms import Confirms
from clusterbroker.broker.bridges.errors import Malformed

PUBLISHED = 12


@given(st.lists(st.tuples(st.integers(0, PUBLISHED), st.booleans()), max_size=30))
def test_all_up_to_a_number_is_confirmed(acks: list[tuple[int, bool]]) -> None:
    confirms, known = Confirms(), set[int]()
    for tag, multiple in acks:
        if not tag and not multiple:
            continue
        confirms.take(tag, multiple, PUBLISHED)
        known |= set(range(1, (tag or PUBLISHED) + 1)) if multiple else {tag}
        first_open = next(number for number in range(1, PUBLISHED + 2) if number not in known)
        assert confirms.upto == first_open - 1


@pytest.mark.parametrize(("tag", "multiple"), [(4, False), (4, True), (0, False)])
def test_what_was_not_published_is_malformed(tag: int, multiple: bool) -> None:
    with pytest.raises(Malformed, match="not published"):
        Confirms().take(tag, multiple, 3)
