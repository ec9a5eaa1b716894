"""Every rule of `rules.txt` is claimed by a test, on one node and on three, or is named in `left.txt`."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules import check_coverage, check_on_one_and_three


def test_every_rule_is_claimed_or_left() -> None:
    check_coverage(Path(__file__).parent)


def test_every_rule_is_asserted_on_one_node_and_on_three() -> None:
    check_on_one_and_three(Path(__file__).parent)
