"""Beats run on uvloop, as in the node."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning"))


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()
