"""On how many nodes a test asserts its rules: what the parameter of its broker's fixture says, and what the map has.

A test says it by its parameter of one of FIXTURES, which start the nodes. `check` compares that with the members that
the broker has when the test is over. As a plugin of pytest (`-p`), this module prints what was collected, for
`tests.support.rules.counts`.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.support.rules import COUNTED

FIXTURES: Final = ("target", "nodes", "started")
"""Each yields what has `members()`: names, as a living node's map has them."""
ONE: Final = ("a",)
THREE: Final = ("a", "b", "c")
BOTH: Final[dict[str, Any]] = {"params": [ONE, THREE], "ids": ["one node", "three nodes"]}
"""Of a fixture `nodes`. Its ids come first in a test's, so `tests.support.lanes` keeps together what shares nodes."""
SUITES: Final = ("pools", "delay")
"""Folders whose rules are asserted on one node and on three."""


def _parameter(item: pytest.Item) -> tuple[str, Any]:
    """Which of FIXTURES it has with a parameter, and which; `("", None)`: none."""
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return next(((name, parameters[name]) for name in FIXTURES if name in parameters), ("", None))


def said(item: pytest.Item) -> int:
    """How many nodes its parameter says; 0: it has none, or the broker is another one."""
    _, value = _parameter(item)
    if isinstance(value, int):
        return value
    if isinstance(value, tuple):
        return len(value)
    return {"node": 1, "cluster": 3}.get(str(value), 0)


def rules(item: pytest.Item) -> list[str]:
    return [str(one) for mark in item.iter_markers("rule") for one in mark.args]


def demands(item: pytest.Item) -> bool:
    """Whether it asserts a rule that is asserted on one node and on three."""
    return item.path.parent.name in SUITES and said(item) > 0 and bool(rules(item))


def check(item: pytest.Item) -> None:
    """Raises AssertionError when its nodes are not as many as it says."""
    if not demands(item):
        return
    members = item.funcargs[_parameter(item)[0]].members()  # type: ignore[attr-defined]
    assert len(set(members)) == said(item), f"{item.nodeid} ran with the members {members}"


def _passed_over(item: pytest.Item) -> bool:
    """It asserts nothing, or may fail."""
    if any(True for name in ("skip", "xfail") for _ in item.iter_markers(name)):
        return True
    return any(mark.args[:1] != (False,) for mark in item.iter_markers("skipif"))


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        if demands(item) and not _passed_over(item):
            for one in rules(item):
                print(COUNTED, one, said(item))
