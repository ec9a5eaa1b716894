"""Marks that all tests share, and a node as users run it, in a process of its own: the fixture `node`."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from clusterbroker.broker.trial import nodes
from tests import budget
from tests.support.processes import popen, run

nodes.start_process = popen
_worker, _workers = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "") for name in ("", "_COUNT"))
if _workers:  # none of several workers is given another's ports
    _span = (nodes.LAST_PORT + 1 - nodes.FIRST_PORT) // int(_workers)
    nodes.FIRST_PORT += _span * int(_worker.removeprefix("gw"))  # type: ignore[misc]
    nodes.LAST_PORT = nodes.FIRST_PORT + _span - 1  # type: ignore[misc]

# how long an example takes says something of the machine, and nothing of the code
settings.register_profile("untimed", deadline=None)
settings.register_profile("brief", deadline=None, max_examples=budget.examples(100))
settings.load_profile("brief" if budget.BRIEF else "untimed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: starts a real node, and is done within seconds all the same")
    gc.set_threshold(50_000, 20, 50)  # as in a node: in thousands of tests and in what they import is little to collect


def pytest_report_header() -> list[str]:
    """What is made up, and what is left out."""
    said = [f"commit {budget.commit()[:12] or 'unknown'}: seeds follow from it (TESTS_SEED=N in its place)"]
    if budget.TIER == "commit":
        said.append(f"of the matrix: part {budget.sixth() + 1} of {budget.SIXTHS}; all with scripts/test --all")
        for folder in budget.CODE_OF:
            why = budget.whole(folder)
            less = "what has its turn" if folder in budget.FAMILIES.values() else "a smoke"
            said.append(f"tests of {folder}: {f'all, {why}' if why else f'{less}, their code has not changed'}")
    return said


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a commit does not run, and what runs first where the answer is awaited (`budget.py`)."""
    if budget.ALL:
        for item in items:
            if item.get_closest_marker("campaign") is not None:
                item.add_marker(pytest.mark.timeout(3600), append=False)
    if budget.BRIEF:
        items.sort(key=lambda item: item.nodeid.partition("::")[0] not in budget.mirrors())
    if budget.TIER not in ("commit", "brief"):
        return
    left_out = [item for item in items if not _runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _runs(item)]


def _runs(item: pytest.Item) -> bool:
    path = item.nodeid.partition("::")[0]
    folder = path.split("/")[1]
    if budget.BRIEF and path in budget.mirrors():
        return True
    if folder in budget.CODE_OF and item.get_closest_marker("smoke") is None and not budget.whole(folder):
        return False
    in_turns = item.get_closest_marker("matrix") is not None or budget.in_turns(item.nodeid)
    in_turns = in_turns or (budget.BRIEF and budget.rests(path))
    return not in_turns or budget.has_its_turn(item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `-n`."""
    from tests.support.lanes import Lanes

    return Lanes(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of collected tests live as long as the session: who asks the collector what a test has let go should
    not pay for a look at all of them each time."""
    gc.collect()
    gc.freeze()


ROOT = Path(__file__).resolve().parent.parent


class RunningNode:
    """`clusterbroker start` on a free port, with a data directory of its own.

    `start` again after `stop` or `kill` takes the same directory and port.
    """

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self.port = 0
        self.said: list[str] = []
        """What it printed at its last start."""
        self._log = directory / "node.log"
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self, *flags: str, environment: dict[str, str] | None = None) -> RunningNode:
        command = ["start", "--data-dir", str(self.data_dir), "--amqp", f"127.0.0.1:{self.port}", *flags]
        with self._log.open("ab") as log:
            self.process = popen(
                [sys.executable, "-m", "clusterbroker.broker.cli.main", *command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )
        assert self.process.stdout is not None, "its output is read"
        self.said = []
        for line in self.process.stdout:
            self.said.append(line.strip())
            if line.startswith("amqp "):
                self.port = int(line.rpartition(":")[2])
            if line.strip() == "ready":
                return self
        raise RuntimeError(f"exit code {self.process.wait()} before it was ready: {self.log}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self.process is not None, "it was started"
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        assert self.process.stdout is not None, "its output is read"
        self.process.stdout.close()
        return code

    def kill(self) -> int:
        return self.stop(signal.SIGKILL)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`clusterbroker WORDS --data-dir ...`, beside the node or while it is stopped."""
        return run_command(*words, "--data-dir", str(self.data_dir))


def run_command(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`clusterbroker WORDS`."""
    return run(
        [sys.executable, "-m", "clusterbroker.broker.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A started node; it is stopped in the end."""
    running = RunningNode(tmp_path)
    running.start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.stop()


@pytest.fixture(name="run_command")
def _run_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The function `run_command`."""
    return run_command
