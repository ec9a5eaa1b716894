"""Real nodes whose membership changes: each is started with the flags that a test gives it."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.client import Client, Delivery, Target
from clusterbroker.broker.trial.nodes import LOOPBACK, Node, all_ready, environment, free_port
from clusterbroker.broker.wire.amqp091 import methods
from tests.support.processes import popen, run

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 90.0


class Fleet:
    """Nodes of one secret, by name. `founders` are what --peers says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secret = directory / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(secrets.token_hex(32))
        self.nodes: dict[str, Node] = {}

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            self.nodes[name] = Node(name, self.directory / name, free_port(), free_port())
        return self.nodes[name]

    def at(self, name: str) -> str:
        return f"{LOOPBACK}:{self.node(name).cluster_port}"

    def peers(self, *names: str) -> str:
        """ "a", "b/witness": what --peers says of them."""
        words = []
        for name in names:
            bare, slash, role = name.partition("/")
            words.append(f"{bare}@{self.at(bare)}{slash}{role}")
        return ",".join(words)

    def launch(self, name: str, *words: str, release: Path = ROOT, **settings: str) -> Node:
        """Starts a process with these flags (and variables) besides name, data directory and AMQP address. `release`:
        the tree of another one."""
        node = self.node(name)
        assert not node.running, "a node is started once"
        node.directory.mkdir(parents=True, exist_ok=True)
        line = [*command_of(release), "start", "--name", name, "--data-dir", str(node.data_dir)]
        line += ["--amqp", f"{LOOPBACK}:{node.amqp_port}", *words]
        with open(node.directory / "node.out", "wb") as out, open(node.log, "ab") as log:
            node.process = popen(
                line, stdout=out, stderr=log, stdin=subprocess.DEVNULL, cwd=release,
                env=self._environment(release) | settings, start_new_session=True,
            )  # fmt: skip
        return node

    def _environment(self, release: Path) -> dict[str, str]:
        return environment(self.secret) | ({} if release == ROOT else {"PYTHONPATH": str(release)})

    def found(self, *names: str) -> None:
        """Launches founders."""
        for name in names:
            self.launch(name.partition("/")[0], "--peers", self.peers(*names))

    async def ready(self, *names: str) -> None:
        await all_ready([self.node(name) for name in names])

    async def refused(self, name: str) -> str:
        """The last line of a node that ends by itself, as a console has it; its exit code must be 1. All are JSON."""
        node = self.node(name)
        assert node.process is not None
        code = await asyncio.to_thread(node.process.wait, PATIENCE_S)
        said = [json.loads(line) for line in node.log.read_text().splitlines()]
        assert (code, said[-1]["event"], said[-1]["code"]) == (1, "node.ended", 1), (code, said[-1])
        return f"clusterbroker: {said[-1]['why']}"

    async def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        node = self.node(name)
        await node.end(signal.SIGTERM)
        assert node.process is not None
        return node.process.wait()

    async def kill(self, *names: str) -> None:
        for name in names:
            await self.node(name).end(signal.SIGKILL)

    async def kill_all(self) -> None:
        for name, node in self.nodes.items():
            if node.running:
                node.send(signal.SIGCONT)
                await self.kill(name)

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.node(name).data_dir)

    # -- commands

    async def command(self, name: str, *words: str, release: Path = ROOT) -> tuple[int, str, str]:
        """`clusterbroker WORDS --data-dir ...`: exit code, what it said, its errors."""
        return await self._run(*words, "--data-dir", str(self.node(name).data_dir), release=release)

    async def journal(self, *words: str) -> tuple[int, str, str]:
        """`clusterbroker journal WORDS`."""
        return await self._run("journal", *words)

    async def _run(self, *words: str, release: Path = ROOT) -> tuple[int, str, str]:
        done = await asyncio.to_thread(
            run, [*command_of(release), *words], capture_output=True, text=True, timeout=120, check=False, cwd=release,
            env=self._environment(release),
        )  # fmt: skip
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    async def ask(self, name: str, do: str, **arguments: Any) -> dict[str, Any]:
        answer = await asyncio.to_thread(ask, self.node(name).data_dir, do, arguments, 90.0)
        assert answer is not None, f"{name} runs"
        return answer

    async def join(self, name: str, to: str, *words: str, release: Path = ROOT) -> tuple[int, str, str]:
        line = ("join", self.at(to), "--name", name, "--cluster", self.at(name), *words)
        return await self.command(name, *line, release=release)

    async def members(self, name: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in (await self.ask(name, "members"))["members"]}

    async def queue(self, name: str, queue: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = (await self.ask(name, "queues"))["queues"]
        return next(row for row in rows if row["name"] == queue)

    # -- clients

    async def client(self, name: str) -> Client:
        return await Client.open(Target(LOOPBACK, self.node(name).amqp_port))

    async def publish(self, name: str, queue: str, bodies: list[bytes], **declared: Any) -> None:
        """Declares the queue, publishes, and waits until all is confirmed."""
        client = await self.client(name)
        try:
            await client.call(methods.QueueDeclare(queue=queue, durable=True, **declared), 20)
            await client.call(methods.ConfirmSelect())
            confirmed = asyncio.Event()
            last = 0

            def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
                nonlocal last
                assert ack
                last = max(last, tag) if multiple else last + 1
                if last >= len(bodies):
                    confirmed.set()

            client.on_confirm = on_confirm
            for body in bodies:
                client.publish(queue, body)
            if bodies:
                await asyncio.wait_for(confirmed.wait(), 60)
        finally:
            await client.close()

    async def consume(self, name: str, queue: str, count: int) -> list[bytes]:
        """So many messages, acknowledged."""
        client = await self.client(name)
        bodies: list[bytes] = []
        enough = asyncio.Event()

        def on_deliver(delivery: Delivery) -> None:
            bodies.append(delivery.body)
            client.acknowledge(delivery.tag)
            if len(bodies) == count:
                enough.set()

        client.on_deliver = on_deliver
        try:
            await client.call(methods.BasicConsume(queue=queue, consumer_tag="c"), 20)
            await asyncio.wait_for(enough.wait(), 60)
        finally:
            await client.close()
        return bodies


def command_of(release: Path) -> list[str]:
    """`clusterbroker` of this checkout, which a zygote forks, or of another release, which is executed."""
    if release == ROOT:
        return [sys.executable, "-m", "clusterbroker.broker.cli.main"]
    return [sys.executable, "-m", "clusterbroker"]


async def until(reached: Callable[[], Any], what: str = "what was waited for", timeout_s: float = PATIENCE_S) -> Any:
    """Waits for a condition, plain or awaitable; its value."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        value = reached()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} did not come within {timeout_s:g} s")
