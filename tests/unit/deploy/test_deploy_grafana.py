"""The board, against Grafana's own models, which are made from its schema: they read and write all that it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BOARD = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "clusterbroker.json"


def unlike(said: Any, read: Any, place: str = "") -> Iterator[str]:
    """Where what was read lacks something that was said, or has another value."""
    if isinstance(said, dict) and isinstance(read, dict):
        for name, value in said.items():
            if name not in read:
                yield f"{place}/{name}: no field of Grafana's"
            else:
                yield from unlike(value, read[name], f"{place}/{name}")
    elif isinstance(said, list) and isinstance(read, list) and len(said) == len(read):
        for number, (one, other) in enumerate(zip(said, read, strict=True)):
            yield from unlike(one, other, f"{place}/{number}")
    elif said != read:
        yield f"{place}: {said!r} was read as {read!r}"


def read(board: dict[str, Any]) -> Any:
    pytest.importorskip("grafana_foundation_sdk", reason="pip install grafana-foundation-sdk")
    from grafana_foundation_sdk.cog import encoder, plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    return json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(board)))


def test_grafana_knows_all_that_the_board_says() -> None:
    board = json.loads(BOARD.read_text())
    assert not list(unlike(board, read(board)))


def test_a_field_that_it_does_not_know_would_be_found() -> None:
    board = json.loads(BOARD.read_text())
    board["panels"][0]["hieght"] = 3
    assert list(unlike(board, read(board))) == ["/panels/0/hieght: no field of Grafana's"]
