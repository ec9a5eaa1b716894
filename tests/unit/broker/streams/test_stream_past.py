"""A stream's older part: what is dropped, cut and brought again while checkpoints go on."""

from __future__ import annotations

from clusterbroker.broker.streams.past import Past
from clusterbroker.journal.stream_catalogue import Filing, StreamFile


def filed(past: Past, filing: Filing) -> None:
    """One more file for each part, as the checkpoint thread makes them."""
    made = [StreamFile(moved.first, moved.end, 100, 5, 5, moved.first + 1000) for moved in filing.moved]
    past.filed(sorted((*filing.files, *made), key=lambda part: part.first))


def past_of(*ends: int) -> Past:
    past, first = Past(7, 1 << 20), 1
    for end in ends:
        filed(past, past.begin([(first, end, [(1, 0, 100)])], {}))
        first = end
    return past


def test_what_only_this_copy_had_dropped_is_there_when_a_sync_brings_it_again() -> None:
    past = past_of(101, 201)
    past.drop(1, 150)
    assert past.ranges == [(151, 200)]
    filing = past.begin([(1, 151, [(2, 0, 100)])], {})
    assert past.ranges == [(1, 200)]
    assert filing.meta["first"] == 1
    filed(past, filing)
    assert past.ranges == [(1, 200)]
    assert [(part.first, part.end) for part in past.parts] == [(1, 151), (151, 201)]
    restored = Past(7, 1 << 20)
    restored.restore({"first": past.first, "files": [part.entry() for part in past.files]})
    assert restored.ranges == [(1, 200)]
    past.drop(1, 160)
    assert past.ranges == [(161, 200)]


def test_of_what_comes_again_only_the_rest_is_new() -> None:
    past = past_of(101)
    filing = past.begin([(90, 121, [(2, 0, 100)])], {})
    assert [(moved.first, moved.end) for moved in filing.moved] == [(101, 121)]
    filed(past, filing)
    assert past.ranges == [(1, 120)]
