"""Lives of a node with crashes (`node_crash.py`); longer: `python -m tests.property.node_crash --seconds 600`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.budget import campaign, campaign_s
from tests.property.node_crash import live

pytestmark = pytest.mark.campaign


@pytest.mark.timeout(campaign_s("node_crash") * 4 + 600)
def test_a_node_keeps_its_promises_through_crashes() -> None:
    counts: Counter[str] = sum(campaign("node_crash", live, "python -m tests.property.node_crash --seed"), Counter())
    assert counts["crashes"], "a life without a crash proves nothing"
    assert counts["confirms"], "a life without a confirm proves nothing"
