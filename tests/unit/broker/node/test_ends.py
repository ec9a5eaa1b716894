"""What ends something of a node is ordered until the metadata log takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterbroker.broker.node.ends import AGAIN_MS, Ends
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring_log import unlogged


class Node:
    """Whose proposals are answered by hand."""

    now_ms = 5

    def __init__(self) -> None:
        self.proposed: list[tuple[Any, Callable[[Applied], None]]] = []

    def propose(self, command: Any, done: Callable[[Applied], None]) -> None:
        self.proposed.append((command, done))

    def answer(self, taken: bool) -> Any:
        command, done = self.proposed.pop(0)
        done(Applied(LogIndex(1), command, None, None, ()) if taken else unlogged(command, Unavailable("no majority")))
        return command


def suspend(number: int) -> c.SuspendLink:
    return c.SuspendLink(link=LogIndex(number), attach=1)


def test_what_is_late_is_ordered_until_it_is_taken() -> None:
    node, told = Node(), []
    ends = Ends(node)
    ends.order(suspend(1), lambda: told.append("tried"))
    assert ends.next_ms is None
    node.answer(False)
    assert told == ["tried"]
    for _ in range(3):
        due_ms = ends.next_ms
        assert due_ms == node.now_ms + AGAIN_MS
        ends.turn(due_ms - 1)
        assert not node.proposed
        node.now_ms = due_ms
        ends.turn(due_ms)
        assert node.answer(False) == suspend(1)
    ends.hurry()
    node.answer(True)
    assert ends.next_ms is None
    assert told == ["tried"], "once"


def test_what_is_late_comes_before_what_has_to_find_it_ended() -> None:
    node = Node()
    ends = Ends(node)
    for number in (1, 2):
        ends.order(suspend(number))
        node.answer(False)
    ends.hurry()
    assert [command for command, _ in node.proposed] == [suspend(1), suspend(2)]
    assert ends.next_ms is None


def test_a_command_that_ends_a_part_is_ordered_for_the_rest() -> None:
    node, told, left = Node(), [], [2]
    ends = Ends(node)

    def more() -> bool:
        left[0] -= 1
        return left[0] > 0

    ends.order(c.RemoveConnection(connection="c"), lambda: told.append("tried"), more)
    node.answer(True)
    assert not told
    node.answer(False)
    assert told == ["tried"]
    left[0] = 2
    ends.hurry()
    node.answer(True)
    node.answer(True)
    assert not node.proposed
    assert told == ["tried"]
