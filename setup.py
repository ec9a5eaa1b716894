"""Compiles the per-message modules; where no compiler is found the pure-Python twins run instead.

Everything else about the build is declared in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = ["journal.record_fast", "broker.amqp.codec_fast", "broker.queues.ring_fast"]


def extension(module: str) -> Extension:
    source = module.replace(".", "/") + ".pyx"
    depends = ["journal/commit_thread.h"] if module == "journal.record_fast" else []
    # optional: a failed compile is reported by the build and leaves the twin in charge
    flags = ["-O3", "-fno-strict-aliasing"]
    return Extension(module, [source], depends=depends, optional=True, extra_compile_args=flags)


setup(
    ext_modules=cythonize(
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
)
