"""Every rule of `rules.txt` is claimed by a test, or is named in `left.txt`, which only shrinks."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent


def listed() -> list[str]:
    lines = (HERE / "rules.txt").read_text().splitlines()
    return [line.split("|")[0].strip() for line in lines if line and not line.startswith("#")]


def left() -> set[str]:
    lines = (HERE / "left.txt").read_text().splitlines()
    return {word for line in lines if not line.startswith("#") for word in line.split()}


def claimed() -> set[str]:
    """The arguments of every `rule(...)` call, read from the source so that a partial run judges the whole suite."""
    ids: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "rule":
                ids |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return ids


def test_the_rules_have_distinct_ids() -> None:
    assert len(listed()) == len(set(listed()))


def test_every_rule_is_claimed_or_left() -> None:
    assert sorted(set(listed()) - claimed() - left()) == []


def test_nothing_that_is_claimed_is_left() -> None:
    assert sorted(claimed() & left()) == []


def test_no_unknown_rule_is_claimed() -> None:
    assert sorted((claimed() | left()) - set(listed())) == []
