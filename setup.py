"""Compiles the per-message modules; where no compiler is found the pure-Python twins run instead. Builds the web page
when it is missing; where no npm is found the node runs without it, and its page says how to build it.
`CLUSTERBROKER_PURE=1` compiles nothing.

Everything else about the build is declared in pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

COMPILED = [
    "clusterbroker.journal.record_fast",
    "clusterbroker.journal.walk_fast",
    "clusterbroker.broker.amqp.codec_fast",
    "clusterbroker.broker.queues.ring_fast",
    "clusterbroker.broker.session.delivery_fast",
    "clusterbroker.broker.transactions.rows_fast",
    "clusterbroker.pipeline.records_fast",
]


def extension(module: str) -> Extension:
    source = module.replace(".", "/") + ".pyx"
    depends = ["clusterbroker/journal/commit_thread.h"] if module == "clusterbroker.journal.record_fast" else []
    flags = ["-O3", "-fno-strict-aliasing"]
    return Extension(module, [source], depends=depends, extra_compile_args=flags)


extensions = cythonize(
    [] if os.environ.get("CLUSTERBROKER_PURE", "") not in ("", "0") else [extension(module) for module in COMPILED],
    compiler_directives={
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
    },
)
for compiled in extensions:
    # a failed compile (or no compiler) is reported by the build and leaves the twin in charge; cythonize forgets this
    compiled.optional = True

ROOT = Path(__file__).resolve().parent


class BuildPy(build_py):
    """Makes the page first, so that it is package data like any other."""

    def run(self) -> None:
        build_page()
        super().run()


def build_page() -> None:
    """A page that is there is taken as it is; what keeps it from being built never stops the installation."""
    if (ROOT / "clusterbroker/broker/http/page/index.html").exists() or not (ROOT / "web").exists():
        return
    if shutil.which("npm") is None:
        print("npm was not found: installed without the web page (Node.js 18 or newer builds it)", file=sys.stderr)
        return
    done = subprocess.run([ROOT / "scripts/build-web"], capture_output=True, text=True)  # noqa: S603 - our own
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        print(f"installed without the web page: scripts/build-web said: {told[-1]}", file=sys.stderr)


setup(
    ext_modules=extensions,
    cmdclass={"build_py": BuildPy},
    options={"build_ext": {"parallel": os.cpu_count() or 1}},  # a compiler for each core
)
