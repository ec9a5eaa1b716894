"""The build backend: setuptools', which asks for a C compiler from PyPI (`ziglang`) where the machine has none."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ZIG = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
GLIBC = os.environ.get("CLUSTERBROKER_GLIBC", "")
"""A release such as 2.17: the modules are compiled by `ziglang`, to run on it and on later ones (scripts/wheels)."""


def c_compiler() -> list[str] | None:
    """The command of the C compiler to use; None: the one that Python was built with, or `CC`, is there."""
    if GLIBC:
        return [*ZIG, "-target", f"{platform.machine()}-linux-gnu.{GLIBC}"]
    if shutil.which(shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]):
        return None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), ZIG)


def missing() -> list[str]:
    """What a build needs beside pyproject.toml's list."""
    return ["ziglang>=0.13"] if (c_compiler() or [])[: len(ZIG)] == ZIG else []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *missing()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *missing()]
