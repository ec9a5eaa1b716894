"""Every rule of `rules.txt` is claimed by a test, or is named in `left.txt`."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules import check_coverage


def test_every_rule_is_claimed_or_left() -> None:
    check_coverage(Path(__file__).parent)
