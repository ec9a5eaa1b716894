"""Which numbered publishes a queue has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.queues import client_numbers
from clusterbroker.broker.queues import producers as module
from clusterbroker.broker.queues.producers import BUCKET_BITS, DEAD_SPREAD, Producers, dead_letter_producer
from clusterbroker.broker.queues.ring import Ring


def claim(producers: Producers, name: bytes, number: int) -> bool:
    new = not producers.knows(name, number)
    if new:
        producers.note(name, number)
    return new


def test_a_client_is_known_at_and_below_its_highest_number() -> None:
    producers = Producers(Ring(1, True))
    assert [claim(producers, b"x", number) for number in (0, 0, 3, 2, 3, 4)] == [True, False, True, False, False, True]
    assert claim(producers, b"y", 1)


def test_what_is_known_is_in_the_ring_and_so_with_the_next_owner() -> None:
    ring = Ring(1, True)
    claim(Producers(ring), b"x", 5)
    assert Producers(ring).knows(b"x", 5)


def test_the_client_that_was_silent_for_longest_goes_first(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 2)
    ring = Ring(1, True)
    producers = Producers(ring)
    for name, number in ((b"x", 1), (b"y", 1), (b"x", 2), (b"z", 1)):
        claim(producers, name, number)
    assert not producers.knows(b"y", 1)
    assert producers.knows(b"x", 1)
    assert producers.knows(b"z", 1)


Story = st.tuples(st.sampled_from([b"x", b"y", b"z"]), st.integers(0, 40), st.booleans(), st.booleans())


@given(st.lists(Story, min_size=20, max_size=120), st.integers(1, 3), st.integers(1, 4))
def test_what_was_refused_is_never_known_though_refusals_are_forgotten(
    story: list[tuple[bytes, int, bool, bool]], buckets_max: int, refused_max: int
) -> None:
    """Beyond all bounds a number may be stored twice; a number that was refused is not confirmed for nothing."""
    ring = Ring(1, True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_numbers, "REFUSED_BITS", 3)
        patched.setattr(client_numbers, "REFUSED_BUCKETS", buckets_max)
        patched.setattr(client_numbers, "REFUSED_MAX", refused_max)
        producers = Producers(ring)
        taken: set[tuple[bytes, int]] = set()
        refused: set[tuple[bytes, int]] = set()
        for name, number, room, heir in story:
            producers = Producers(ring) if heir else producers
            if producers.knows(name, number):
                assert (name, number) in taken or (name, number) not in refused
            elif room:
                producers.note(name, number)
                taken.add((name, number))
            else:
                producers.refuse(name, number)
                refused.add((name, number))


def test_the_next_owner_knows_who_was_silent_for_longest(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 2)
    ring = Ring(1, True)
    first = Producers(ring)
    for name, number in ((b"x", 1), (b"y", 1), (b"x", 2)):
        claim(first, name, number)
    heir = Producers(ring)
    claim(heir, b"z", 1)
    assert (heir.knows(b"x", 2), heir.knows(b"y", 1)) == (True, False)


@given(st.lists(st.tuples(st.integers(0, 70), st.booleans(), st.booleans()), max_size=80))
def test_a_refused_number_is_taken_once_whenever_it_comes_again(story: list[tuple[int, bool, bool]]) -> None:
    """`room`: the queue takes it; `heir`: another owner judges it."""
    ring = Ring(1, True)
    producers = Producers(ring)
    highest, taken, refused = -1, [], set()
    for number, room, heir in story:
        producers = Producers(ring) if heir else producers
        assert producers.knows(b"x", number) == (number in taken or (number <= highest and number not in refused))
        if producers.knows(b"x", number):
            continue
        if room:
            producers.note(b"x", number)
            taken.append(number)
            highest = max(highest, number)
        else:
            assert producers.refuse(b"x", number) == (number not in refused)
            refused.add(number)
    assert len(taken) == len(set(taken))


def test_what_is_remembered_of_refusals_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    ring = Ring(1, True)
    producers = Producers(ring)
    for number in range(0, 10_000, 7):
        producers.refuse(b"x", number)
    assert len(ring.attributes) == client_numbers.REFUSED_BUCKETS + 1, "and a floor"
    producers.note(b"x", 10_000)
    assert not producers.knows(b"x", 9_996), "the newest refusals are remembered"
    producers.note(b"x", 10_005)
    assert producers.knows(b"x", 10_004)
    assert not producers.knows(b"x", 0), "what was forgotten is not taken for known"
    monkeypatch.setattr(client_numbers, "NAMED_MAX", 2)
    monkeypatch.setattr(client_numbers, "REFUSED_MAX", 2)
    for name in (b"y", b"z"):
        producers.refuse(name, 1)
    assert not [name for name in ring.attributes if name.endswith(b"x")], "it was silent for longest"
    heir = Producers(ring)
    for number in (1, 40):
        heir.refuse(b"z", number)
    refusals = [name[-1:] for name in ring.attributes if name[:1] == b"h"]
    assert refusals == [b"z", b"z"], "y was not refused for longest"


@given(st.lists(st.integers(1, DEAD_SPREAD), max_size=200))
def test_dead_letters_in_any_order_are_taken_once_each(numbers: list[int]) -> None:
    producers = Producers(Ring(1, True))
    name = dead_letter_producer(9)
    taken = [number for number in numbers if claim(producers, name, number)]
    assert sorted(taken) == sorted(set(numbers))


def test_the_buckets_of_a_dying_queue_are_bounded() -> None:
    ring = Ring(1, True)
    producers = Producers(ring)
    name = dead_letter_producer(9)
    for number in range(1, 200 * BUCKET_BITS, 7):
        assert claim(producers, name, number)
        assert producers.knows(name, max(1, number - 7 * (DEAD_SPREAD // 7)))
    assert len(ring.attributes) <= module.DEAD_BUCKETS


def test_the_buckets_of_a_dying_queue_are_bounded_though_few_of_its_letters_come_here() -> None:
    ring = Ring(1, True)
    producers = Producers(ring)
    name = dead_letter_producer(9)
    numbers = [bucket * BUCKET_BITS for bucket in range(1, 3000, 11)]
    for number in numbers:
        assert claim(producers, name, number)
        producers = producers if number % 2 else Producers(ring)
    assert len(ring.attributes) <= module.DEAD_BUCKETS
    assert producers.knows(name, numbers[-1] - (module.DEAD_BUCKETS - 1) // 11 * 11 * BUCKET_BITS)


def test_dying_queues_are_bounded_too(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Each leaves its numbers, also one that is deleted then."""
    monkeypatch.setattr(module, "DYING_MAX", 3)
    ring = Ring(1, True)
    producers = Producers(ring)
    for queue_id in (1, 2, 1, 3, 4):
        assert claim(producers, dead_letter_producer(queue_id), len(ring.attributes) * BUCKET_BITS)
    assert [queue_id for queue_id in (1, 2, 3, 4) if producers.knows(dead_letter_producer(queue_id), 0)] == [1]
    assert len(ring.attributes) == 4
    assert not producers.knows(dead_letter_producer(2), BUCKET_BITS)


def test_a_clients_name_is_no_proxys_and_no_dying_queues() -> None:
    ring = Ring(1, True)
    claim(Producers(ring), b"n1", 1)
    assert list(ring.attributes) == [b"pn1"]


@given(st.lists(st.tuples(st.integers(0, 70), st.sampled_from("pppfffrc")), max_size=80))
def test_after_a_crash_the_numbers_of_fleeting_messages_are_not_known(story: list[tuple[int, str]]) -> None:
    """`p`: the message goes to the log; `f`: it does not; `r`: there is no room; `c`: a crash, and the log is all."""
    ring = Ring(1, True)
    producers = Producers(ring)
    logged: set[int] = set()
    fleeting: set[int] = set()
    absent: set[int] = set()  # refused, or lost with a crash; what is lost and was the highest has never been here
    for number, what in story:
        if what == "c":
            producers = Producers(ring)
            absent |= {lost for lost in fleeting if lost < max(logged, default=0)}
            fleeting = set()
        here = logged | fleeting
        assert producers.knows(b"x", number) == (
            number in here or (number < max(here, default=-1) and number not in absent)
        )
        if what == "c" or producers.knows(b"x", number):
            continue
        if what == "r":
            producers.refuse(b"x", number)
            absent.add(number)
        else:
            producers.note(b"x", number, what == "f")
            (fleeting if what == "f" else logged).add(number)


@given(
    st.lists(st.tuples(st.sampled_from([b"x", b"y"]), st.integers(0, 60), st.sampled_from("pfffrc")), max_size=120),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_beyond_all_bounds_no_lost_number_is_confirmed_for_nothing(
    story: list[tuple[bytes, int, str]], buckets_max: int, ranges_max: int
) -> None:
    ring = Ring(1, True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_numbers, "REFUSED_BITS", 3)
        patched.setattr(client_numbers, "REFUSED_BUCKETS", buckets_max)
        patched.setattr(module, "FLEETING_RANGES", ranges_max)
        producers = Producers(ring)
        logged: set[tuple[bytes, int]] = set()
        fleeting: set[tuple[bytes, int]] = set()
        absent: set[tuple[bytes, int]] = set()
        for name, number, what in story:
            one = name, number
            if what == "c":
                producers = Producers(ring)
                highest = {client: max([n for c, n in logged if c == client], default=0) for client in (b"x", b"y")}
                absent |= {(client, lost) for client, lost in fleeting if lost < highest[client]}
                fleeting = set()
            elif producers.knows(name, number):
                assert one in logged | fleeting or one not in absent
            elif what == "r":
                producers.refuse(name, number)
                absent.add(one)
            else:
                producers.note(name, number, what == "f")
                (fleeting if what == "f" else logged).add(one)


def test_numbers_of_fleeting_messages_write_nothing() -> None:
    ring = Ring(1, True)
    producers = Producers(ring)
    for number in range(1, 5000):
        assert not producers.knows(b"x", number)
        producers.note(b"x", number, True)
        assert producers.knows(b"x", number)
    assert not ring.attributes
    assert not ring.needs_write
    producers.note(b"x", 5000)
    assert len(ring.attributes) <= client_numbers.REFUSED_BUCKETS + 2
    heir = Producers(ring)
    assert heir.knows(b"x", 5000)
    assert not any(heir.knows(b"x", number) for number in range(5000))
    assert all(producers.knows(b"x", number) for number in range(5000)), "in memory they are"
