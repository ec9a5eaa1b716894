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
