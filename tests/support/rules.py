"""Rules of a specification that a conformance suite lists in `rules.txt`, and those that its tests claim."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COUNTED: Final = "rule on nodes:"
"""How a line of `counts` begins: then a rule's id, and a number of nodes."""
SELECTS: Final = ("CONFORMANCE_", "PYTEST_", "TESTS_")
"""Variables that have a part of the tests collected."""


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


def counts(suite: Path) -> dict[str, set[int]]:
    """By rule, the numbers of nodes on which a test that is neither skipped nor may fail asserts it, as pytest collects
    the whole suite. What a test says there is compared with its nodes when it runs (`tests.conformance.on_nodes`)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SELECTS)}
    words = ["-p", "tests.conformance.on_nodes", "--collect-only", "-q", "-s", str(suite.relative_to(ROOT))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line in done.stdout.splitlines():
        if line.startswith(COUNTED):
            rule, count = line.removeprefix(COUNTED).split()
            found[rule].add(int(count))
    return dict(found)


def check_on_one_and_three(suite: Path) -> None:
    """Every rule of `rules.txt` is asserted on one node and on three. Raises AssertionError."""
    found = counts(suite)
    lacking = {rule: sorted(found.get(rule, ())) for rule in listed(suite) if not found.get(rule, set()) >= {1, 3}}
    assert not lacking, f"rules, and the numbers of nodes on which they are asserted: {lacking}"
