"""A wheel of these sources, with the modules that are compiled beside them: to compile them again takes a minute."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (
    "clusterbroker", "broker", "cluster", "journal", "replication", "pipeline", "amqp10", "clusterbroker_workers",
    "pyspark_clusterbroker.py", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE",
    "scripts/build_backend.py",
)  # fmt: skip


def built_wheel(sources: Path, made: Path) -> Path:
    """The wheel's file in `made`. `sources` is an empty directory for copies."""
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES],
        capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).exists():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, sources / name, follow_symlinks=False)

    def setup(*words: str) -> None:
        command = [sys.executable, "setup.py", "-q", *words]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    setup("build_py")
    (built,) = sources.glob("build/lib*/clusterbroker")
    for stub in built.rglob("*.pyi"):
        module = stub.relative_to(built).with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        shutil.copy(ROOT / module, built / module)
    setup("bdist_wheel", "--skip-build", "--dist-dir", str(made))
    (found,) = made.glob("*.whl")
    return found
