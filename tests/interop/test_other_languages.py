"""Clients that are not Python: scripts with their own assertions, in node/ and go/.

The libraries are fetched into a cache (INTEROP_CACHE, or .cache/interop in the user's home); where there is no
toolchain, or neither cache nor network, the test is skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.node import NodeProcess

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("INTEROP_CACHE", Path.home() / ".cache" / "clusterbroker-interop"))


def called(command: list[str], directory: Path, timeout_s: float = 60, **environment: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return -1, f"not finished after {expired.timeout} s"
    return done.returncode, done.stdout + done.stderr


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The directory whose node_modules has amqplib."""
    npm = tool("npm")
    tool("node")
    place = CACHE / "node"
    if not (place / "node_modules" / "amqplib").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "node" / "package.json", place)
        code, said = called([npm, "install", "--no-audit", "--no-fund"], place, 90)
        if code:
            pytest.skip(f"npm cannot install amqplib: {said.strip()[-300:]}")
    return place


@pytest.fixture(scope="module")
def go_program() -> Path:
    """The compiled program."""
    go = tool("go")
    place = CACHE / "go"
    place.mkdir(parents=True, exist_ok=True)
    program = place / "interop"
    sources = [HERE / "go" / name for name in ("main.go", "go.mod")]
    if program.exists() and all(source.stat().st_mtime < program.stat().st_mtime for source in sources):
        return program
    for source in sources:
        shutil.copy(source, place)
    for command in ([go, "mod", "tidy"], [go, "build", "-o", str(program), "."]):
        code, said = called(command, place, 110)
        if code and command[1] == "mod":
            pytest.skip(f"go cannot fetch amqp091-go: {said.strip()[-300:]}")
        assert code == 0, said
    return program


def test_node_amqplib(node: NodeProcess, node_modules: Path) -> None:
    script = str(HERE / "node" / "amqplib.mjs")
    code, said = called([tool("node"), script], node_modules, AMQP_URL=node.url, INTEROP_MODULES=str(node_modules))
    assert code == 0, said
    print(said)


def test_go_amqp091(node: NodeProcess, go_program: Path) -> None:
    code, said = called([str(go_program)], go_program.parent, AMQP_URL=node.url)
    assert code == 0, said
    print(said)
