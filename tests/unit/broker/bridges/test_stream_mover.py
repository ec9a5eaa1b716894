"""A stream mover as a conversation, and its place in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.bridges.errors import Malformed
from clusterbroker.broker.bridges.ledger import BadLedger
from clusterbroker.broker.bridges.mover import End, Publish, Settle
from clusterbroker.broker.bridges.stream_carrier import StreamPlace
from clusterbroker.broker.bridges.stream_mover import CHUNK_MAX, PLACE_S, QUIET_S, Reached, Read, StreamMover
from tests.property.mover_world import FakeParcel


def parcel(*offsets: int) -> Any:
    made: Any = FakeParcel([(b"%d" % offset, 0, False) for offset in offsets])
    made.offsets = list(offsets)
    return made


def test_a_stream_from_a_place_to_its_end() -> None:
    mover = StreamMover(4, 7, numbered=True)
    assert mover.begin() == [Read(4, 7)]
    assert mover.begun(1) == []
    came = parcel(7, 8, 10)
    assert mover.delivered(came, 1) == [Publish(came)]
    assert came.numbers == [8, 9, 11], "an offset and one"
    assert mover.confirmed(2, False, 1) == []
    assert mover.confirmed(1, False, 1) == [Settle(2, sync=False)]
    assert mover.tick(1 + 2 * QUIET_S) == [], "one is not confirmed"
    assert mover.confirmed(3, False, 6) == [Settle(3, sync=False), Reached(11)]
    assert mover.tick(6 + QUIET_S / 2) == []
    assert mover.tick(6 + QUIET_S) == [End()]
    assert (mover.moved, mover.is_over) == (3, True)


def test_the_place_is_told_now_and_then_and_in_the_end() -> None:
    mover = StreamMover(100, 0, numbered=False)
    mover.begin()
    mover.begun(0)
    first, second = parcel(0), parcel(1)
    mover.delivered(first, 0)
    mover.delivered(second, 0)
    assert first.numbers == [], "the destination knows none"
    assert Reached(1) in mover.confirmed(1, False, PLACE_S)
    assert not any(isinstance(one, Reached) for one in mover.confirmed(2, False, PLACE_S + 0.1))
    assert mover.tick(PLACE_S + 0.1 + QUIET_S) == [Reached(2), End()]


def test_an_empty_stream_ends_when_the_source_has_begun() -> None:
    mover = StreamMover(4, 0, numbered=True)
    mover.begin()
    assert mover.tick(100) == [], "the source has not begun"
    mover.begun(100)
    assert mover.tick(100 + QUIET_S) == [End()]


def test_a_rate_holds_acknowledgements_back() -> None:
    mover = StreamMover(2, 0, numbered=True, rate_per_s=10)
    mover.begin()
    mover.begun(0)
    mover.delivered(parcel(0, 1), 0)
    assert not any(isinstance(one, Settle) for one in mover.confirmed(2, True, 0))
    assert mover.tick(0.2) == [Settle(2, sync=False)]


def test_what_a_stream_does_not_say_is_none() -> None:
    mover = StreamMover(4, 5, numbered=True)
    mover.begin()
    mover.begun(0)
    with pytest.raises(Malformed, match="out of their order"):
        mover.delivered(parcel(4), 0)
    with pytest.raises(Malformed, match="out of their order"):
        mover.delivered(parcel(6, 6), 0)
    with pytest.raises(Malformed, match="more messages"):
        mover.delivered(parcel(*range(5, 10 + CHUNK_MAX)), 0)
    with pytest.raises(Malformed, match="a confirm of what was not published"):
        mover.confirmed(1, False, 0)


def test_a_place_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "x.stream"
    place = StreamPlace(path, "migration")
    place.reach(7)
    again = StreamPlace(path, "migration")
    assert (again.offset, again.producer) == (7, place.producer)
    assert place.producer.startswith(b"migration/")
    path.write_text("{}")
    with pytest.raises(BadLedger, match="cannot be read"):
        StreamPlace(path, "migration")
