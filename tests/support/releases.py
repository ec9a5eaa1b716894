"""Earlier releases, to be run beside this one: their trees, taken from the repository's history and built.

A tree is built once for a Python and kept in `build/releases/`. Where nothing that is compiled differs from this
checkout, this one's modules are taken.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILT: Final = ROOT / "build" / "releases"
BEFORE_LEVELS: Final = "86b8f5e4f059cce8c5e29b99decb933f0da3f3cc"
"""The last commit of the releases that know feature level 1, and nothing of levels."""
_COMPILED: Final = ("*.pyx", "*.pxd", "*.pxi", "*.h")
_FLOORS: Final = ("broker", "cluster", "journal", "pipeline", "replication")


class NoHistory(Exception):
    """The repository has no such commit; one line says so."""


def tree(commit: str) -> Path:
    """A checkout of the commit that runs. Raises NoHistory."""
    there = BUILT / f"{commit[:12]}-{sysconfig.get_config_var('SOABI')}"
    if there.exists():
        return there
    taken = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if taken.returncode:
        raise NoHistory(f"git has no commit {commit[:12]} here (a shallow clone?): {taken.stderr.decode().strip()}")
    BUILT.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=BUILT))
    try:
        subprocess.run(["tar", "-x", "-C", made], input=taken.stdout, check=True)
        if _sources(made) == _sources(ROOT):
            for floor in _FLOORS:
                for module in (ROOT / floor).rglob("*.so"):
                    shutil.copy2(module, made / module.relative_to(ROOT))
        else:
            _build(made)
        made.rename(there)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return there


def _sources(root: Path) -> dict[str, bytes]:
    """Whatever compiled modules are made of."""
    found = [path for floor in _FLOORS for kind in _COMPILED for path in (root / floor).rglob(kind)]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def _build(root: Path) -> None:
    settings = root / "setup.py"
    settings.write_text(settings.read_text().replace('"-O3"', '"-O0"'))  # a third of the time, and nobody measures it
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=root, capture_output=True, check=False
    )
    assert not done.returncode, done.stderr.decode()[-2000:]
