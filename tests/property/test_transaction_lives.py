"""Lives of transactions in clusters where anything may befall them; `transaction_lives` tells what is promised."""

from __future__ import annotations

import pytest

from clusterbroker.broker.transactions import mover
from tests.budget import examples
from tests.property.transaction_lives import live


@pytest.mark.parametrize("seed", range(examples(40)))
def test_what_is_committed_is_seen_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "ROWS_MAX", 2)  # a segment is several groups
    live(seed)
