"""Every rule of the page is claimed by at least one test, and no test claims a rule that the page lacks."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules import claimed, listed

HERE = Path(__file__).parent


def test_the_rules_have_distinct_ids() -> None:
    assert len(listed(HERE)) == len(set(listed(HERE)))


def test_every_rule_is_claimed() -> None:
    assert sorted(set(listed(HERE)) - claimed(HERE)) == []


def test_no_unknown_rule_is_claimed() -> None:
    assert sorted(claimed(HERE) - set(listed(HERE))) == []
