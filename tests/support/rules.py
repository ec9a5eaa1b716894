"""Rules of a specification that a conformance suite lists in `rules.txt`, and those that its tests claim."""

from __future__ import annotations

import ast
from pathlib import Path


def listed(suite: Path) -> list[str]:
    """The ids in the suite's `rules.txt`, in its order."""
    lines = (suite / "rules.txt").read_text().splitlines()
    return [line.split("|")[0].strip() for line in lines if line and not line.startswith("#")]


def claimed(suite: Path) -> set[str]:
    """The arguments of every `rule(...)` call, read from the source so that a partial run judges the whole suite."""
    ids: set[str] = set()
    for path in suite.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "rule":
                ids |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return ids


def left(suite: Path) -> set[str]:
    """The ids in the suite's `left.txt`, if it has one: rules that no test claims yet."""
    path = suite / "left.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {word for line in lines if not line.startswith("#") for word in line.split()}


def check_coverage(suite: Path) -> None:
    """Every rule of `rules.txt` is claimed by a test, or is named in `left.txt`, which only shrinks; a suite without
    that file leaves none. Raises AssertionError."""
    rules, here, missing = listed(suite), claimed(suite), left(suite)
    assert sorted(rule for rule in set(rules) if rules.count(rule) > 1) == [], "two rules have one id"
    assert sorted(set(rules) - here - missing) == [], "neither claimed nor left"
    assert sorted(here & missing) == [], "claimed, and left all the same"
    assert sorted((here | missing) - set(rules)) == [], "no such rule"
