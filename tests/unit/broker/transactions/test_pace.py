"""Answers to commits that wait for earlier epochs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.transactions.pace import HOLD_MS, Pace

P, Q = ("/", "p"), ("/", "q")


class Told:
    """A node whose map says which epochs are on their way, and what was told."""

    def __init__(self) -> None:
        self.moving: dict[tuple[str, str], list[int]] = {P: [], Q: []}
        self.said: list[str] = []
        self.asked = 0
        self.node: Any = SimpleNamespace(now_ms=1000, map=SimpleNamespace(moves_before=self._moves_before))
        self.pace = Pace(self.node)

    def _moves_before(self, vhost: str, producer: str, epoch: int) -> bool:
        self.asked += 1
        return any(moving < epoch for moving in self.moving[vhost, producer])

    def hold(self, producer: tuple[str, str], epoch: int) -> None:
        self.moving[producer].append(epoch)
        self.pace.hold(producer, epoch, lambda: self.said.append(f"{producer[1]}{epoch}"))

    def moved(self, producer: tuple[str, str], epoch: int) -> None:
        self.moving[producer].remove(epoch)
        self.pace.moved(producer)


def test_the_first_epoch_is_answered_at_once() -> None:
    told = Told()
    told.hold(P, 3)
    assert (told.said, told.pace.next_wake_ms) == (["p3"], None)


def test_an_epoch_is_answered_when_the_one_before_is_moved() -> None:
    told = Told()
    told.hold(P, 1)
    told.hold(P, 2)
    told.hold(Q, 2)
    told.hold(P, 3)
    assert told.said == ["p1", "q2"]
    told.moved(P, 1)
    assert told.said == ["p1", "q2", "p2"]
    told.moved(Q, 2)
    told.moved(P, 2)
    assert told.said == ["p1", "q2", "p2", "p3"]
    assert told.pace.next_wake_ms is None


def test_nobody_waits_longer_than_that() -> None:
    told = Told()
    told.hold(P, 1)
    told.hold(P, 2)
    told.node.now_ms += 10
    told.hold(P, 3)
    assert told.pace.next_wake_ms == 1000 + HOLD_MS
    told.pace.turn(1000 + HOLD_MS - 1)
    assert told.said == ["p1"]
    told.pace.turn(1000 + HOLD_MS)
    assert told.said == ["p1", "p2"]
    told.moved(P, 1)
    told.moved(P, 2)
    assert told.said == ["p1", "p2", "p3"]
    told.pace.turn(1000 + 2 * HOLD_MS)
    assert told.said == ["p1", "p2", "p3"]


def test_who_asks_again_is_answered_too() -> None:
    told = Told()
    told.hold(P, 1)
    told.hold(P, 2)
    told.hold(P, 2)
    told.moved(P, 1)
    assert told.said == ["p1", "p2", "p2"]


def test_many_who_ask_again_cost_each_its_own_answer_and_no_more() -> None:
    """One client may have thousands of them: 256 on each of its channels."""
    told = Told()
    told.hold(P, 1)
    told.moving[P] += [1] * 100
    for _ in range(2000):
        told.hold(P, 2)
    told.asked = 0
    for _ in range(100):
        told.moved(P, 1)
    assert (told.asked, told.said) == (100, ["p1"])
    told.pace.turn(1000 + HOLD_MS)
    assert told.said == ["p1"] + 2000 * ["p2"]
    assert told.pace.next_wake_ms is None
