"""The floors inside broker/, package by package: imports go down, and no file is tied into a circle.

All imports count: those that run, those in a function, those for type checkers, `cimport` and `include`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import test_architecture as house
from tests.test_architecture import MAY_IMPORT, cython_imports, from_import, module_of, modules, within

FLOORS: tuple[tuple[str, ...], ...] = (
    ("broker",),
    ("broker.cli",),
    ("broker.embedded",),
    ("broker.embedded_pools",),
    ("broker.config",),
    ("broker.boot_definitions", "broker.config_sections", "broker.peer_list"),
    ("broker.trial",),
    ("broker.http", "broker.foreman.main"),
    ("broker.management",),
    ("broker.server",),
    ("broker.fronts",),
    ("broker.fronts.amqp091", "broker.fronts.amqp10"),
    ("broker.fronts.client_connection",),  # what each of them stands on
    ("broker.access",),
    ("broker.node",),
    ("broker.remote",),
    ("broker.pools",),
    ("broker.transactions", "broker.streams", "broker.delay"),
    ("broker.queues",),
    ("broker.routing",),
    ("broker.stats", "broker.oauth2", "broker.foreman"),
    ("broker.bridges",),
    ("broker.content",),
    ("amqp10",),  # a client is built upon the codec, and on nothing of the node
    ("broker.wire",),
    ("broker.version", "broker.visible", "broker.extras"),
    ("replication",),
    ("cluster",),
    ("journal",),
)
"""From the roof down. A package imports packages of lower floors, and none beside it."""


def _place(module: str) -> tuple[int, str] | None:
    """(floor, package) of a module; None: it is on no floor (pipeline, the world)."""
    found = None
    for floor, packages in enumerate(FLOORS):
        for package in packages:
            if (module == package or (module.startswith(f"{package}.") and package != "broker")) and (
                found is None or len(package) > len(found[1])
            ):
                found = (floor, package)
    return found


def _known(name: str) -> str | None:
    """The module of ours that a dotted name is, or is in."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


@cache
def every_import(path: Path) -> frozenset[str]:
    """Our modules that a file names in an import, wherever it stands."""
    text = (house.ROOT / path).read_text(encoding="utf-8")
    names = _of_python(ast.parse(text), path) if path.suffix == ".py" else _of_cython(path, text)
    return frozenset(known for name in names if (known := _known(name)) is not None)


def _of_python(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (within(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from from_import(node, path)


def _of_cython(path: Path, text: str) -> Iterator[str]:
    yield from cython_imports(text)
    for included in re.findall(r"^include\s+[\"'](.+?)[\"']", text, re.MULTILINE):
        beside = path.parent / included
        yield from _of_cython(beside, (house.ROOT / beside).read_text(encoding="utf-8"))
    head = (house.ROOT / path).with_suffix(".pxd")
    if path.suffix == ".pyx" and head.exists():
        yield from _of_cython(path.with_suffix(".pxd"), head.read_text(encoding="utf-8"))


def upward(path: Path) -> tuple[str, ...]:
    """The packages that a file imports and should not."""
    own = _place(module_of(path))
    assert own is not None, f"{path} is in a package that FLOORS does not name"
    places = {place for name in every_import(path) if (place := _place(name)) is not None}
    return tuple(sorted(package for floor, package in places if package != own[1] and floor <= own[0]))


def knots() -> list[tuple[str, ...]]:
    """Sets of modules of which each imports each other one, in some steps (Tarjan's components), the largest first."""
    edges = {module: sorted(every_import(path) - {module}) for module, path in modules().items()}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for target in edges[module]:
            if target not in number:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], number[target])
        if lowest[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(tuple(sorted(stack[at:])))
            del stack[at:]

    for module in sorted(edges):
        if module not in number:
            visit(module)
    return sorted(found, key=lambda knot: (-len(knot), knot))


def test_imports_go_down() -> None:
    floors = {path for path in modules().values() if path.parts[0] in MAY_IMPORT and path.parts[0] != "pipeline"}
    found = [f"{path} imports {package}" for path in sorted(floors) for package in upward(path)]
    assert not found, "imports go down (FLOORS), but " + "; ".join(found)


def test_no_file_is_tied_into_a_circle() -> None:
    found = [" and ".join(knot) for knot in knots()]
    assert not found, f"these import each other in a circle: {'; '.join(found)}"


def test_a_floor_names_each_package_once() -> None:
    names = [package for packages in FLOORS for package in packages]
    assert len(names) == len(set(names)), "a package stands on one floor"
    empty = [name for name in names if name not in modules()]
    assert not empty, f"named in FLOORS, but not there: {', '.join(empty)}"


def test_a_rule_that_is_broken_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules themselves, tried on a small house: imports for type checkers, late ones, and those of an include."""
    texts = {
        "journal/__init__.py": "",
        "journal/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cluster.b import late\n",
        "cluster/__init__.py": "",
        "cluster/b.py": "def late():\n    from journal import a\n",
        "cluster/c.pyx": 'include "c.pxi"\n',
        "cluster/c.pxi": "from replication.d cimport D\n",
        "replication/__init__.py": "",
        "replication/d.pyx": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    for table in (modules, every_import):
        table.cache_clear()
    try:
        with pytest.raises(AssertionError, match=r"cluster/c.pyx imports replication; journal/a.py imports cluster"):
            test_imports_go_down()
        with pytest.raises(AssertionError, match=r"cluster.b and journal.a"):
            test_no_file_is_tied_into_a_circle()
    finally:
        for table in (modules, every_import):
            table.cache_clear()
