"""Every rule of the page is claimed by at least one test, and no test claims a rule that the page lacks."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules import check_coverage


def test_every_rule_is_claimed() -> None:
    check_coverage(Path(__file__).parent)
