"""The last stage of the Containerfile, for tests that build it.

The stage before it compiles what is installed: here the modules beside the sources take its place, and a base image of
this machine's Python that of the registry (`scripts/image-base`, `scripts/driver-daemons`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemons import Missing, programs
from tests.support.wheels import ROOT, built_wheel

CONTAINERFILE: Final = ROOT / "deploy" / "container" / "Containerfile"
BASE: Final = "docker.io/library/python:3.13-slim-bookworm"


def base_image() -> Path:
    """A tar file of the base image. Raises Missing."""
    if sys.version_info[:2] != (3, 13):
        raise Missing("the image has Python 3.13: wheels of another one are none for it")
    base = programs() / "base-image.tar"
    if not base.exists():
        raise Missing(f"no {base}: scripts/image-base makes it")
    return base


def last_stage() -> str:
    """The Containerfile with a stage `build` that takes its wheels from the context."""
    text = CONTAINERFILE.read_text()
    begins = text.rindex("\nFROM ")
    assert "from=build,source=/wheels" in text[begins:]
    arguments = "\n".join(line for line in text[:begins].splitlines() if line.startswith("ARG "))
    return f"{arguments}\nFROM scratch AS build\nCOPY wheels /wheels\n{text[begins:]}"


def wheels(directory: Path) -> Path:
    """Of this project and all that its node needs. Skips where the others cannot be had."""
    (directory / "sources").mkdir()
    (made := directory / "wheels").mkdir()
    own = built_wheel(directory / "sources", made)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--prefer-binary", "--wheel-dir", str(made), f"{own}[server]"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"no wheels of what the node needs: {done.stderr[-300:]}")
    shutil.rmtree(directory / "sources")
    return made


def context(directory: Path) -> Path:
    """What the build is sent: a directory."""
    wheels(directory)
    (directory / "Containerfile").write_text(last_stage())
    entrypoint = directory / "deploy" / "container" / "entrypoint"
    entrypoint.parent.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "container" / "entrypoint", entrypoint)
    return directory
