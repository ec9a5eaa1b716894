"""kill -9 in the middle of declaring: what was told is there again, ids are never given twice, the log is sound."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.log_store import LogStore
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 8

CHILD = """
import asyncio, sys
from pathlib import Path
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.local_log import LocalLog

async def main():
    loop = asyncio.get_running_loop()
    log = LocalLog(Path(sys.argv[1]), call_soon=loop.call_soon_threadsafe, on_failure=print, snapshot_every=200)
    prefix, n = sys.argv[2], 0

    def told(applied):
        queue = applied.result
        print("T" if queue.transient else "D", queue.queue_id, queue.name, flush=True)

    while True:
        n += 1
        log.propose(c.DeclareQueue(vhost="/", name=f"{prefix}-{n}", durable=n % 3 != 0), told)
        if n % 7 == 0:
            queue = log.map.queue("/", f"{prefix}-{n - 6}")
            if queue is not None and queue.durable:
                log.propose(
                    c.DeleteQueue(vhost="/", name=queue.name, queue_id=queue.queue_id),
                    lambda applied: print("X", applied.command.queue_id, applied.command.name, flush=True),
                )
        if n % 20 == 0:
            await asyncio.sleep(0)
        while log.pending > 500:  # each channel of a node has one command under way: never without a bound
            await asyncio.sleep(0.001)

asyncio.run(main())
"""


@pytest.mark.faults
def test_killed_in_the_middle(tmp_path: Path) -> None:
    directory = tmp_path / "wiring"
    alive: dict[str, int] = {}
    given: set[int] = set()
    for round_ in range(ROUNDS):
        lines = run_and_kill(directory, f"r{round_}", lines_min=200 + 150 * round_)
        deleting: set[str] = set()
        for kind, queue_id, name in lines:
            if kind == "X":
                alive.pop(name, None)
                continue
            assert int(queue_id) not in given, "an id was given twice"
            given.add(int(queue_id))
            if kind == "D":
                alive[name] = int(queue_id)
                # its deletion may have been committed and not yet told when the kill came
                if int(name.split("-")[1]) % 7 == 1:
                    deleting.add(name)
        log = LocalLog(directory, call_soon=lambda call: None, on_failure=print)
        present = {queue.name: queue.queue_id for queue in log.map.queues("/")}
        missing = {name for name, queue_id in alive.items() if present.get(name) != queue_id}
        assert missing <= deleting, "a declare that was told is gone"
        for name in missing:
            del alive[name]
        assert all(not queue.transient for queue in log.map.queues("/"))
        alive = dict(present)
        given.update(present.values())
        log.close()
        store = LogStore(directory, read_only=True)
        store.load()
        store.close()


def run_and_kill(directory: Path, prefix: str, lines_min: int) -> list[list[str]]:
    """Start the child, wait until it has told so many outcomes, kill it; the complete lines it printed."""
    child = processes.popen(
        [sys.executable, "-c", CHILD, str(directory), prefix],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    try:
        deadline = time.monotonic() + 60
        lines: list[bytes] = []
        while len(lines) < lines_min:
            assert time.monotonic() < deadline, "the child is too slow"
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            lines.append(line)
        child.send_signal(signal.SIGKILL)
        lines.extend(child.stdout.readlines())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return [line.decode().split() for line in lines if line.endswith(b"\n")]
