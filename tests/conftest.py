"""Marks that all tests share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: starts a real node, and is done within seconds all the same")
