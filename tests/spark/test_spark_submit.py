"""`spark-submit` on a standalone cluster: a master and two workers, each a Java of its own, under two host names."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.pipeline.session import QUICK_START, java_home
from tests.conftest import RunningNode
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.1", "localhost")
"""Spark never runs a task speculatively on the host that runs it already."""
ROWS = 20_000


def free_port() -> int:
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        return int(tcp.getsockname()[1])


class Standalone:
    """`spark-class` as `sbin/start-master.sh` and `start-worker.sh` call it, with one core for each worker."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self._bin = Path(pyspark.__file__).parent / "bin"
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web = free_port()
        self.url = f"spark://127.0.0.1:{free_port()}"

    def _environment(self) -> dict[str, str]:
        home = java_home()
        return {
            **os.environ,
            **({"JAVA_HOME": home} if home else {}),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_DAEMON_MEMORY": "256m",
        }

    def _begin(self, name: str, *words: str) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            process = processes.popen(
                [str(self._bin / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]],
                stdout=log, stderr=log, env=self._environment(), cwd=self._directory, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        self._begin("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", str(self._web))
        for host in HOSTS:
            words = ["--host", host, "--cores", "1", "--memory", "700m", "--webui-port", "0"]
            self._begin(host, "worker.Worker", *words, "--work-dir", str(self._directory / host), self.url)
        deadline_s = time.monotonic() + 300
        while self._alive() < len(HOSTS):
            assert time.monotonic() < deadline_s, (self._directory / "master.log").read_text()[-3000:]
            time.sleep(0.2)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=10) as said:
                return int(json.load(said)["aliveworkers"])
        except OSError:
            return 0

    def submit(self, settings: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
        given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        return processes.run(
            [str(self._bin / "spark-submit"), "--master", self.url, *given, *words],
            capture_output=True, text=True, check=False, env=self._environment(), cwd=self._directory, timeout=500,
        )  # fmt: skip

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_task_that_runs_twice_at_a_time_on_a_cluster_writes_once(
    standalone: Standalone, broker: RunningNode, tmp_path: Path
) -> None:
    (tmp_path / "attempts").mkdir()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("submitted", durable=True, arguments={"x-queue-type": "stream"})
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.ui.enabled": "false",
    }
    job = str(Path(__file__).with_name("submitted_job.py"))
    done = standalone.submit(settings, job, str(tmp_path), f"127.0.0.1:{broker.port}", "submitted", str(ROWS))
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "result.json").read_text())
    assert (told["rows"], told["distinct"]) == (ROWS, ROWS)
    attempts = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "attempts").iterdir()}
    assert {"0-0", "0-1", "1-0", "2-0", "3-0"} <= attempts, "the slow one was run a second time beside itself"
