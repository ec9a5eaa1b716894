"""Compiles the per-message modules; where no compiler is found the pure-Python twins run instead.

Everything else about the build is declared in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = ["journal.record_fast", "journal.walk_fast", "broker.amqp.codec_fast", "broker.queues.ring_fast"]


def extension(module: str) -> Extension:
    source = module.replace(".", "/") + ".pyx"
    depends = ["journal/commit_thread.h"] if module == "journal.record_fast" else []
    flags = ["-O3", "-fno-strict-aliasing"]
    return Extension(module, [source], depends=depends, extra_compile_args=flags)


extensions = cythonize(
    [extension(module) for module in COMPILED],
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

setup(ext_modules=extensions)
