"""The foreman as a process beside a node: real processes, frames, workers of driver subprocess."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from foreman_support import spec, until

from clusterbroker.broker.foreman.drivers.port import Place
from clusterbroker.broker.foreman.drivers.records import processes_of
from clusterbroker.broker.foreman.frames import GoneRow, LaunchRow
from clusterbroker.broker.foreman.templates import read_templates
from clusterbroker.broker.node.foreman_link import Event
from clusterbroker.broker.server import companion
from clusterbroker.broker.server.foreman_desk import LOOK_S
from clusterbroker.broker.server.foreman_process import MODULE, ForemanProcess
from clusterbroker.broker.server.log import NodeLog

pytestmark = pytest.mark.processes
PREFIX = Place("c1u5ter", "node1", {}).prefix
USER = 'user = "root"' if os.geteuid() == 0 else ""


class Node:
    """What a node does with its foreman, without the node."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.directory = directory
        self.config = directory / "broker.toml"
        self.config.write_text(
            f"""
[pools.core]
driver = "subprocess"
command = ["/bin/sh", "-c", "echo $WORKER_ID >> '{directory}/started'; trap 'exit 0' TERM; sleep 600 & wait"]
{USER}
{more}
[pools.failing]
driver = "subprocess"
command = ["/not/there"]
{USER}
"""
        )
        self.config.chmod(0o600)
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.events: list[Event] = []
        self.launches: dict[str, LaunchRow] = {}
        self.index = 0
        self.hangs = False
        self.process = self.made()

    def made(self) -> ForemanProcess:
        log = NodeLog(lambda level, event, facts: self.lines.append((level, event, facts)), "debug")
        said = ("/bin/sh", "-c", f'exec "$@" 2>> {self.directory}/stderr', "sh", *MODULE)
        made = ForemanProcess("node1", self.directory / "workers", self.config, log, ["--log-level", "debug"], said)
        made.cluster, made.heard = "c1u5ter", self.heard
        return made

    def heard(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, GoneRow) and self.launches.pop(event.worker_id, None):
            self.tell()  # the command Gone

    def tell(self) -> None:
        self.index += 1
        self.process.wants(self.launches.values(), self.index)

    def want(self, worker_id: str, state: str = "wanted", **facts: Any) -> None:
        known = read_templates(self.config)
        template = known.get(facts.get("template", "core"))
        facts["version"] = "" if template is None else template.version
        self.launches[worker_id] = LaunchRow(spec=spec(worker_id, **facts), state=state)
        self.tell()

    async def lease_again(self) -> None:
        """As a node's desk does, so that its foreman knows that it does not hang."""
        while True:
            lease = self.process.link._lease
            if not self.hangs:
                self.process.lease(lease.held, lease.caught_up)
            await asyncio.sleep(LOOK_S)

    def gone(self, worker_id: str) -> GoneRow | None:
        return next((one for one in self.events if isinstance(one, GoneRow) and one.worker_id == worker_id), None)

    async def runs(self, *worker_ids: str) -> None:
        async def there() -> bool:
            return {one.worker_id for one in self.process.link.workers.values() if one.state == "running"} == {
                *worker_ids
            }

        await until(there, f"{worker_ids} run")

    async def is_gone(self, worker_id: str) -> GoneRow:
        async def told() -> GoneRow | None:
            return self.gone(worker_id)

        found: GoneRow = await until(told, f"{worker_id} is gone")
        return found

    def started(self) -> list[str]:
        path = self.directory / "started"
        return path.read_text().split() if path.exists() else []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companion, "FIRST_PAUSE_S", 0.05)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    made.process.begin(asyncio.get_running_loop())
    made.process.lease(True, True)
    leases = asyncio.create_task(made.lease_again())
    yield made
    leases.cancel()
    await made.process.end()
    for worker_id in ("w1-0", "w2-0"):
        await until(lambda worker_id=worker_id: no_process(worker_id), "no worker outlives its node")


async def no_process(worker_id: str) -> bool:
    return not processes_of(PREFIX, worker_id)


async def test_a_launch_runs_until_it_retires(node: Node) -> None:
    node.want("w1-0")
    await node.runs("w1-0")
    assert node.process.link.templates["core"].driver == "subprocess"
    node.want("w1-0", "retiring")
    assert (await node.is_gone("w1-0")).exit == 0

    async def forgotten() -> bool:
        return not list((node.directory / "workers").glob("w1-0*"))

    await until(forgotten, "its record goes when the map has dropped it")
    assert node.started() == ["w1-0"]


async def test_a_start_that_fails_is_gone_with_its_reason(node: Node) -> None:
    node.want("w1-0", template="failing")
    gone = await node.is_gone("w1-0")
    assert gone.exit is None
    assert "'/not/there' cannot be started" in gone.why


async def test_a_template_that_no_file_has(node: Node) -> None:
    node.want("w1-0", template="nowhere")
    assert "there is no [pools.nowhere] in" in (await node.is_gone("w1-0")).why
    assert "(there are: core, failing)" in node.events[-1].why  # type: ignore[union-attr]


async def test_nothing_starts_without_a_lease_or_a_map_of_now(node: Node) -> None:
    node.process.lease(True, False)
    node.want("w1-0")
    node.process.lease(False, True)
    node.want("w2-0")

    async def told() -> bool:
        return node.process.link.place is not None

    await until(told)
    assert node.started() == []
    node.process.lease(True, True)
    await node.runs("w1-0", "w2-0")


async def test_a_killed_foreman_is_followed_by_one_that_adopts(node: Node) -> None:
    node.want("w1-0")
    await node.runs("w1-0")
    before = processes_of(PREFIX, "w1-0")
    pid = node.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def followed() -> bool:
        return node.process.pid not in (pid, None)

    await until(followed, "another foreman is there")
    node.process.link.workers.clear()  # what the first one said last
    await node.runs("w1-0")
    node.want("w2-0")
    await node.runs("w1-0", "w2-0")
    assert set(before) <= set(processes_of(PREFIX, "w1-0")), "the worker did not notice"
    assert node.started() == ["w1-0", "w2-0"], "and was not started again"


async def test_a_killed_worker_is_gone_with_its_signal(node: Node) -> None:
    node.want("w1-0")
    await node.runs("w1-0")
    os.kill(min(processes_of(PREFIX, "w1-0")), signal.SIGKILL)
    assert (await node.is_gone("w1-0")).exit == 137


async def test_what_no_fresh_map_wants_is_ended(node: Node) -> None:
    node.want("w1-0")
    await node.runs("w1-0")
    node.launches.clear()
    node.tell()
    await until(lambda: no_process("w1-0"), "a worker without a launch ends")
    assert node.gone("w1-0") is None


async def test_nothing_starts_for_a_node_that_hangs(node: Node) -> None:
    node.want("w1-0")
    await node.runs("w1-0")
    node.hangs = True

    async def said() -> bool:
        return "foreman.node_silent" in (node.directory / "stderr").read_text()

    await until(said, "its foreman has noticed")
    node.want("w2-0")
    node.want("w1-0", "retiring")
    await node.is_gone("w1-0")
    assert node.started() == ["w1-0"]
    node.hangs = False
    await node.runs("w2-0")


async def test_workers_of_keep_outlive_the_node_and_are_adopted(tmp_path: Path) -> None:
    node = Node(tmp_path, 'on_node_exit = "keep"')
    loop = asyncio.get_running_loop()
    node.process.begin(loop)
    node.process.lease(True, True)
    node.want("w1-0")
    await node.runs("w1-0")
    await node.process.end()
    assert processes_of(PREFIX, "w1-0"), "it goes on"
    node.process = node.made()
    node.process.begin(loop)
    node.process.lease(True, True)
    node.tell()
    await node.runs("w1-0")
    assert node.started() == ["w1-0"]
    node.want("w1-0", "revoked")
    assert (await node.is_gone("w1-0")).exit is None, "no child of this foreman: nobody heard its status"
    await node.process.end()


async def test_rule_66_a_file_that_others_may_write(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("[pools.core]\n")
    config.chmod(0o666)
    words = ["--node", "a", "--cluster", "c", "--directory", str(tmp_path / "w"), "--config", str(config)]
    import socket

    own, its = socket.socketpair()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "clusterbroker.broker.foreman.main", *words, "--lifeline", str(its.fileno())],
        pass_fds=[its.fileno()], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    own.close()
    its.close()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, "one line"
    assert f"others may write it (mode 0666): chmod go-w {config}" in done.stderr
    assert not stat.S_IMODE((tmp_path / "w").stat().st_mode) & 0o077


async def test_no_secret_is_in_a_log_line(node: Node) -> None:
    node.want("w1-0", key="a secret key")
    await node.runs("w1-0")
    node.want("w1-0", "revoked", key="a secret key")
    await node.is_gone("w1-0")
    told = (node.directory / "stderr").read_text() + repr(node.lines) + repr(node.events)
    assert "worker.started" in told
    assert "pass" not in told.replace("passed", "")
    assert "a secret key" not in told
