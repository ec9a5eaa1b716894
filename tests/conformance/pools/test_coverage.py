"""Every rule of `rules.txt` is claimed by a test, or is named in `left.txt`, which only shrinks."""

from __future__ import annotations

from pathlib import Path

from tests.support.rules import claimed, listed

HERE = Path(__file__).parent


def left() -> set[str]:
    lines = (HERE / "left.txt").read_text().splitlines()
    return {word for line in lines if not line.startswith("#") for word in line.split()}


def test_the_rules_have_distinct_ids() -> None:
    assert len(listed(HERE)) == len(set(listed(HERE)))


def test_every_rule_is_claimed_or_left() -> None:
    assert sorted(set(listed(HERE)) - claimed(HERE) - left()) == []


def test_nothing_that_is_claimed_is_left() -> None:
    assert sorted(claimed(HERE) & left()) == []


def test_no_unknown_rule_is_claimed() -> None:
    assert sorted((claimed(HERE) | left()) - set(listed(HERE))) == []
