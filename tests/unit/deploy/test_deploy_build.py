"""Which compiler a build takes, and which Python has its turn with a commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def program(directory: Path, name: str) -> None:
    (directory / name).write_text("#!/bin/sh\n")
    (directory / name).chmod(0o755)


def taken(path: Path, **environment: str) -> tuple[list[str] | None, list[str]]:
    """The command of the compiler, and what is asked of PyPI for it."""
    code = "import json, build_backend as b; print(json.dumps([b.c_compiler(), b.missing()]))"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", env={"PATH": str(path), **environment}, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip
    compiler, missing = json.loads(said)
    return compiler, missing


def test_without_a_compiler_ziglang_is_taken(tmp_path: Path) -> None:
    compiler, missing = taken(tmp_path, CC="nowhere")
    assert compiler == [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    assert [each.partition(">")[0] for each in missing] == ["ziglang"]
    program(tmp_path, "clang")
    assert taken(tmp_path, CC="nowhere") == (["clang"], [])
    program(tmp_path, "mine")
    assert taken(tmp_path, CC="mine -m64") == (None, []), "setuptools knows what CC is"


def test_a_wheel_for_an_old_glibc_is_always_compiled_by_ziglang(tmp_path: Path) -> None:
    program(tmp_path, "mine")
    compiler, missing = taken(tmp_path, CC="mine", CLUSTERBROKER_GLIBC="2.17")
    assert compiler is not None
    assert compiler[-2:] == ["-target", f"{platform.machine()}-linux-gnu.2.17"]
    assert missing


@pytest.fixture
def pythons(tmp_path: Path) -> Path:
    for name in ("python3.11", "python3.12", "python3.13"):
        program(tmp_path, name)
    return tmp_path


def turn(pythons: Path, commit: str) -> str:
    path = f"{pythons}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYENV_ROOT": str(pythons / "none"),
        "TESTS_COMMIT": commit,
        "PYTHON": "turn",
    }
    words = ["sh", "-c", ". scripts/pythons.sh; find_python"]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_each_commit_has_one_python_and_all_have_their_turns(pythons: Path) -> None:
    found = [turn(pythons, commit) for commit in "abcdefghijkl"]
    assert {Path(each).name for each in found} == {"python3.11", "python3.12", "python3.13"}
    assert found[0] == turn(pythons, "a")
