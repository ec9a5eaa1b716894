"""Figures that a thread samples, and how they are read."""

from __future__ import annotations

import itertools
import threading

from bench.sampling import Sampled


def test_growth_between_two_moments_is_interpolated() -> None:
    used_s = Sampled(lambda: 0.0, 60)
    for at_ns, value in ((0, 1.0), (10, 2.0), (20, 6.0)):
        used_s.note(at_ns, value)
    assert used_s.between(5, 15) == 2.5
    assert used_s.between(-5, 30) == 5.0


def test_the_most_is_of_what_came_since() -> None:
    count = Sampled(lambda: 0, 60)
    for at_ns, value in ((0, 9), (10, 2), (20, 3), (30, 1)):
        count.note(at_ns, value)
    assert (count.most(0), count.most(10), count.most(20.5)) == (9, 3, 1)


def test_samples_are_taken_until_the_end_with_the_given_clock() -> None:
    numbers, moments, third = itertools.count(), itertools.count(100), threading.Event()

    def now() -> int:
        number = next(numbers)
        if number == 2:
            third.set()
        return number

    with Sampled(now, 0.001, lambda: next(moments)) as sampled:
        assert third.wait(60)
    taken = next(numbers)
    assert taken >= 3
    assert sampled.most(100) == sampled.most(100 + taken - 1) == taken - 1
    assert sampled.between(100, 102) == 2
