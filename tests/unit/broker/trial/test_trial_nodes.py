"""What trials know of their processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterbroker.broker.trial.nodes import Node, TrialError, all_ready, free_port

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_given_once_and_are_none_that_the_system_gives() -> None:
    ports = [free_port() for _ in range(300)]
    assert len(set(ports)) == len(ports)
    if RANGE.exists():
        assert max(ports) < int(RANGE.read_text().split()[0])


def node(directory: Path, name: str, program: str) -> Node:
    found = Node(name, directory / name, 0, 0)
    found.directory.mkdir()
    with open(found.directory / "node.out", "wb") as out, open(found.log, "wb") as log:
        found.process = subprocess.Popen([sys.executable, "-c", program], stdout=out, stderr=log)
    return found


WAITS = "import sys, time; print('waits for b', file=sys.stderr, flush=True); time.sleep(60)"
ENDS = "import sys; sys.exit('cannot listen')"
READY = """print('{"at": ["amqp 127.0.0.1:1"], "event": "node.listening"}')"""


async def test_a_node_that_ends_is_told_of_whoever_is_waited_for_first(tmp_path: Path) -> None:
    waiting, ended = node(tmp_path, "a", WAITS), node(tmp_path, "b", ENDS)
    assert waiting.process is not None
    try:
        with pytest.raises(TrialError, match="node b ended with 1: cannot listen"):
            await all_ready((waiting, ended))
    finally:
        waiting.process.kill()
        waiting.process.wait()


async def test_who_is_not_ready_in_time_is_named_with_what_all_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, waiting = node(tmp_path, "a", READY), node(tmp_path, "b", WAITS)
    assert ready.process is not None
    assert waiting.process is not None
    ready.process.wait()
    await all_ready((ready,))  # it ended after it had said so
    try:
        while not waiting.log.read_text():
            pass
        monkeypatch.setattr("clusterbroker.broker.trial.nodes.START_TIMEOUT_S", 0.0)
        with pytest.raises(TrialError, match=r"not ready in 0 s: b\. a: it said nothing; b: waits for b"):
            await all_ready((ready, waiting))
    finally:
        waiting.process.kill()
        waiting.process.wait()
