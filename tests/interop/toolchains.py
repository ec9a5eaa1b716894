"""Programs and libraries of other languages, built once into a cache: INTEROP_CACHE, or .cache of the user's home.

Where there is no toolchain, or neither cache nor network, the test is skipped with the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("INTEROP_CACHE", Path.home() / ".cache" / "clusterbroker-interop"))


def called(command: list[str], directory: Path, timeout_s: float = 60, **environment: str) -> tuple[int, str]:
    """Exit code and output. Code -1: it was not finished in time."""
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


def require(done: tuple[int, str], what: str) -> None:
    """Skips the test when a command that needs a network failed."""
    code, said = done
    if code:
        pytest.skip(f"{what}: {said.strip()[-300:]}")


def built(name: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """The cache's directory `name`, with copies of `sources` and what `build` made of them. It is made anew when a
    source has changed, or when the last build did not finish. Two runs of tests do not build at once."""
    sources = sorted(sources)
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    place = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finished = place / "finished"
        if not finished.exists() or finished.read_text() != digest:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for source in sources:
                shutil.copy(source, place)
            build(place)
            finished.write_text(digest)
    return place


def node_modules(folder: str, library: str) -> Path:
    """The directory whose node_modules has what package.json of a folder here asks for."""
    npm = tool("npm")
    tool("node")

    def build(place: Path) -> None:
        require(called([npm, "install", "--no-audit", "--no-fund"], place, 90), f"npm cannot install {library}")

    return built(folder, [HERE / folder / "package.json"], build)


def go_program(folder: str, library: str) -> Path:
    """The program that the sources of a folder here compile to."""
    go = tool("go")

    def build(place: Path) -> None:
        require(called([go, "mod", "tidy"], place, 110), f"go cannot fetch {library}")
        code, said = called([go, "build", "-o", "program", "."], place, 110)
        assert code == 0, said

    return built(folder, (HERE / folder).iterdir(), build) / "program"


COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def java_program(folder: str, library: str, name: str) -> tuple[list[str], Path]:
    """The command of a class that the sources of a folder here compile to, and where it is run."""
    maven, javac, java = tool("mvn"), tool("javac"), tool("java")

    def build(place: Path) -> None:
        fetch = [maven, "-q", "-B", COPY, "-DoutputDirectory=lib", f"-Dmaven.repo.local={CACHE / 'maven'}"]
        require(called(fetch, place, 240), f"Maven cannot fetch {library}")
        sources = sorted(source.name for source in place.glob("*.java"))
        code, said = called([javac, "-cp", "lib/*", "-d", ".", *sources], place, 110)
        assert code == 0, said

    place = built(folder, (HERE / folder).iterdir(), build)
    return [java, "-XX:TieredStopAtLevel=1", "-cp", "lib/*:.", name], place
