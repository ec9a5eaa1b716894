"""Compiles the per-message modules, side by side; without a C compiler by `ziglang` (scripts/build_backend.py). Builds
the web page when it is missing; where no npm is found the node runs without it, and its page says how to build it.

Everything else about the build is declared in pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))
from build_backend import c_compiler  # noqa: E402

COMPILED = (  # the longest first
    "clusterbroker.broker.queues.ring",
    "clusterbroker.journal.record",
    "clusterbroker.broker.wire.amqp091.codec",
    "clusterbroker.broker.wire.amqp10.codec",
    "clusterbroker.broker.wire.amqp10.sections",
    "clusterbroker.broker.wire.amqp10.tags",
    "clusterbroker.broker.wire.amqp10.flows",
    "clusterbroker.broker.fronts.amqp091.delivery",
    "clusterbroker.broker.fronts.amqp10.delivery",
    "clusterbroker.broker.content.translation",
    "clusterbroker.broker.access.ledger",
    "clusterbroker.pipeline.records",
    "clusterbroker.broker.transactions.rows",
    "clusterbroker.broker.bridges.rewriting",
    "clusterbroker.broker.content.headers",
    "clusterbroker.broker.content.delays",
    "clusterbroker.broker.content.numbers",
    "clusterbroker.journal.walk",
    "clusterbroker.journal.due_index",
)
DEPENDS = {"clusterbroker.journal.record": ["clusterbroker/journal/commit_thread.h"]}
FLAGS = ["-O3", "-fno-strict-aliasing", "-g0"]
CORES = os.cpu_count() or 1


def extension(module: str) -> Extension:
    source = module.replace(".", "/") + ".pyx"
    return Extension(module, [source], depends=DEPENDS.get(module, []), extra_compile_args=FLAGS)


class BuildExt(build_ext):
    """Cython and C side by side, a module for each core. What is made in between stands in build/."""

    def run(self) -> None:
        from Cython.Build import cythonize

        headers = Path(sysconfig.get_path("include"), "Python.h")
        if not headers.exists():
            sys.exit(
                f"{headers} is missing: install the headers of Python (Debian, Ubuntu: apt-get install python3-dev)"
            )
        translated = cythonize(
            self.extensions,
            nthreads=CORES,
            build_dir="build/c",
            force=self.force,
            compiler_directives={
                "language_level": 3,
                "boundscheck": False,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": False,
                "embedsignature": True,
            },
        )
        sources = {module.name: module.sources for module in translated}
        for module in self.extensions:
            module.sources = sources[module.name]
        super().run()

    def build_extensions(self) -> None:
        found = c_compiler()
        if found is not None:
            flags = ["-fPIC", "-DNDEBUG", "-fwrapv", "-fomit-frame-pointer", "-pthread"]
            self.compiler.set_executables(
                compiler=found, compiler_so=[*found, *flags], linker_so=[*found, "-shared", "-pthread"]
            )
        super().build_extensions()


class BuildPy(build_py):
    """Makes the page first, so that it is package data like any other."""

    def run(self) -> None:
        build_page()
        super().run()


def build_page() -> None:
    """A page that is there is taken as it is; what keeps it from being built never stops the installation."""
    if (ROOT / "clusterbroker/broker/http/page/index.html").exists() or not (ROOT / "web").exists():
        return
    if os.environ.get("WEB_PAGE") == "beside":  # whoever installs builds it at the same time
        return
    if shutil.which("npm") is None:
        print("npm was not found: installed without the web page (Node.js 18 or newer builds it)", file=sys.stderr)
        return
    done = subprocess.run([ROOT / "scripts/build-web"], capture_output=True, text=True)  # noqa: S603 - our own
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        print(f"installed without the web page: scripts/build-web said: {told[-1]}", file=sys.stderr)


if __name__ == "__main__":
    setup(
        ext_modules=[extension(module) for module in COMPILED],
        cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
        options={"build_ext": {"parallel": CORES}},
    )
