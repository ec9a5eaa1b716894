"""Each compiled module has what its stub says, with these parameters, and nothing else that is public."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.model import MODELS

ROOT = Path(__file__).resolve().parent.parent


def parameters(node: ast.FunctionDef) -> list[str]:
    return [each.arg for each in node.args.args if each.arg != "self"]


def stub(module: str) -> ast.Module:
    return ast.parse((ROOT / Path(*module.split(".")).with_suffix(".pyi")).read_text(encoding="utf-8"))


def members(tree: ast.Module, name: str) -> dict[str, ast.stmt]:
    """What the stub says of a class and of those that it extends, here or in another stub."""
    node = next((each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name), None)
    if node is None:
        imports = (each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module)
        origin = next(each.module for each in imports if name in {alias.name for alias in each.names})
        return members(stub(str(origin)), name)
    found = {} if not node.bases else members(tree, ast.unparse(node.bases[0]))
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            found[ast.unparse(each.target)] = each
        elif isinstance(each, ast.FunctionDef):
            found[each.name] = each
    return found


def signature(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", MODELS)
def test_a_stub_says_what_is_there(name: str) -> None:
    module = importlib.import_module(name)
    tree = stub(name)
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    classes = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == name}
    public = {key for key, value in own.items() if key[0] != "_" and not inspect.isclass(value)}
    assert functions.keys() == public
    for each in functions.values():
        assert signature(own[each.name]) == parameters(each), each.name
    for each in classes:
        said, there = members(tree, each), own[each]
        assert {key for key in said if key[0] != "_"} == {key for key in dir(there) if key[0] != "_"}, each
        for key, node in said.items():
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and key[0] != "_":
                assert signature(getattr(there, key)) == parameters(node), f"{each}.{key}"


def test_each_compiled_module_has_a_model() -> None:
    """Else `stand_in` leaves a compiled module among models, and bugs of the ring cannot be tried."""
    floors = ("broker", "cluster", "journal", "replication", "pipeline")
    compiled = [path.relative_to(ROOT) for floor in floors for path in (ROOT / floor).rglob("*.pyx")]
    assert {".".join(("clusterbroker", *path.with_suffix("").parts)) for path in compiled} == MODELS.keys()
