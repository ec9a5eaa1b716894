"""Nothing is lost and nothing doubled by a counted mover, wherever it is interrupted (docs/decisions/057)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tests.property.mover_world import World

SEEDS = st.integers(0, 2**32)
WINDOWS = st.integers(1, 30)
COUNTS = st.integers(0, 80)
INTERRUPTIONS = st.integers(0, 6)


@given(COUNTS, SEEDS, WINDOWS, INTERRUPTIONS)
@settings(max_examples=examples(300), deadline=None)
def test_messages_that_differ(count: int, seed: int, window: int, interruptions: int) -> None:
    world = World([(b"%d" % number, 0) for number in range(count)], seed, window)
    world.run(interruptions)
    assert world.stored == world.expected


@given(COUNTS, SEEDS, WINDOWS, st.integers(0, 1))
@settings(max_examples=examples(300), deadline=None)
def test_messages_that_are_all_the_same(count: int, seed: int, window: int, interruptions: int) -> None:
    """Of two interruptions the second may hide what the first one left open: docs/decisions/057."""
    world = World([(b"tick", 0)] * count, seed, window)
    world.run(interruptions)
    assert world.stored == world.expected


@given(st.lists(st.integers(0, 3), max_size=80), SEEDS, WINDOWS, INTERRUPTIONS)
@settings(max_examples=examples(300), deadline=None)
def test_priorities(priorities: list[int], seed: int, window: int, interruptions: int) -> None:
    world = World([(b"%d" % at, priority) for at, priority in enumerate(priorities)], seed, window)
    world.run(interruptions)
    assert world.stored == world.expected


@given(COUNTS, SEEDS, WINDOWS, INTERRUPTIONS)
@settings(max_examples=examples(300), deadline=None)
def test_a_source_that_forgets_what_it_took_last(count: int, seed: int, window: int, interruptions: int) -> None:
    world = World([(b"%d" % number, 0) for number in range(count)], seed, window, forgets=interruptions)
    world.run(interruptions)
    assert world.stored >= world.expected
    doubled = (world.stored - world.expected).total()
    assert doubled <= interruptions, "one message that comes alone proves nothing"
