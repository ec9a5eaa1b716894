"""Serial numbers at their wrap-around, and what is granted of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10.serials import SERIALS, distance, room

SERIAL = st.integers(0, SERIALS - 1)


@given(SERIAL, st.integers(-(2**31), 2**31 - 1))
def test_distance_is_the_way_back(since: int, steps: int) -> None:
    assert distance(since, (since + steps) % SERIALS) == steps


@given(SERIAL, st.integers(0, 2**31 - 1), SERIAL)
def test_room_is_what_was_granted_without_what_was_used(seen: int, used: int, granted: int) -> None:
    assert room((seen + used) % SERIALS, seen, granted) == max(0, granted - used)


def test_room_stays_a_serial_number() -> None:
    assert room(0, 5, SERIALS - 1) == SERIALS - 1, "who has seen more than was sent is not given more than a field says"
