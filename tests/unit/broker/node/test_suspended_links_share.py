"""Suspended links of a node: no user takes the room of all others."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from clusterbroker.broker.node import links
from clusterbroker.broker.node.links import Identity, Links, Name


class Left(NamedTuple):
    """As much of a suspended link as the registry looks at."""

    identity: Identity
    is_lasting: bool = True
    bytes_kept: int = 0


def suspend(registry: Any, user: str, administers: bool = False) -> list[Left]:
    """As many as there is room for."""
    left: list[Left] = []
    while registry.has_room(user, administers):
        left.append(Left(Identity(Name("/", user, str(len(left)), True), user)))
        registry.suspend(left[-1], 0)
    return left


def test_a_user_has_half_of_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SUSPENDED_MAX", 16)
    registry = Links()
    first, second = suspend(registry, "first"), suspend(registry, "second")
    assert (len(first), len(second)) == (8, 4)
    registry.take(first.pop())
    assert len(suspend(registry, "first")) == 0, "of twelve that the other leaves it has more than half"
    assert len(suspend(registry, "admin", administers=True)) == 5
    assert not registry.has_room("third", administers=False)
    for left in second:
        registry.take(left)
    assert registry.has_room("second", administers=False)
