"""A page's session: a directory, a broker, and a shell in which its commands are run, as a reader would type them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pika
import pika.exceptions

from clusterbroker import Broker
from clusterbroker.broker.trial.nodes import free_port
from tests.pages.blocks import ROOT, Block, Command, commands

PATIENCE_S: Final = 60.0
ADDRESS: Final = re.compile(r"\b(127\.0\.0\.1|localhost):(5[67]\d\d|156\d\d)\b")
"""What stands for a port of the session."""


class Terminal:
    """Where the blocks of a page are run.

    Ports of addresses like 127.0.0.1:5672 and :15672 stand for free ones, so that pages can be tried side by side.
    """

    def __init__(self, directory: Path, amqp: int, http: int) -> None:
        self.directory = directory
        self.amqp = amqp
        self._ports = {"5672": amqp, "15672": http}
        self.namespace: dict[str, Any] = {"pika": pika, "json": json, "__name__": "page"}
        self._running: list[tuple[Block, Command, subprocess.Popen[bytes], Path]] = []
        self._left: list[subprocess.Popen[bytes]] = []
        """Commands that ended, and may have left others running (`&`)."""

    def adapted(self, text: str) -> str:
        """With the ports of this session."""
        return ADDRESS.sub(lambda found: f"{found[1]}:{self.port(found[2])}", text)

    def port(self, shown: str) -> int:
        if shown not in self._ports:
            self._ports[shown] = free_port()
        return self._ports[shown]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp}/"

    def environment(self) -> dict[str, str]:
        left_out = ("CLUSTERBROKER", "PYTHONDONTWRITEBYTECODE", "PYTEST_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "HOME": str(self.directory),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:schemathesis",
            "NO_COLOR": "1",
            "COLUMNS": "160",
        }

    def run(self, block: Block) -> None:
        if block.before:
            self.execute(block._replace(text=block.before))
        self._run(block)
        if block.after:
            self.execute(block._replace(text=block.after))

    def _run(self, block: Block) -> None:
        if block.language == "python":
            self.save(block) if block.title else self.execute(block)
        elif block.title:
            self.save(block)
        elif block.language == "console":
            told = commands(block)
            last = told.pop() if block.background else None
            if told:  # in one shell: what one sets the next may use
                text = "\n".join(command.text for command in told)
                lines = tuple(line for command in told for line in command.prints)
                self.shell(block, Command(text, lines), background=False)
            if last is not None:
                self.shell(block, last, background=True)

    def save(self, block: Block) -> None:
        path = self.directory / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.adapted(block.text) + "\n", encoding="utf-8")

    def execute(self, block: Block) -> None:
        """In the namespace of the page; `await` may stand at the top."""
        if "channel" not in self.namespace:
            connection = pika.BlockingConnection(pika.URLParameters(self.url))
            self.namespace |= {"url": self.url, "connection": connection, "channel": connection.channel()}
        text = "\n" * (block.line - 1) + self.adapted(block.text)
        code = compile(text, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        before = os.getcwd()
        os.chdir(self.directory)
        try:
            if code.co_flags & inspect.CO_COROUTINE:
                awaited: Any = eval(code, self.namespace)
                asyncio.run(asyncio.wait_for(awaited, PATIENCE_S))
            else:
                exec(code, self.namespace)
        finally:
            os.chdir(before)

    def shell(self, block: Block, command: Command, *, background: bool) -> None:
        text = self.adapted(command.text)
        log = self.directory / f".said-{len(self._running)}"
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["bash", "-ec", text],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if background:
            self._running.append((block, command, process, log))
            self._await(block, command, command.prints[:1], log, process)
            return
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{block.place}: {text}\ndoes not end:\n{log.read_text()}") from None
        finally:
            self._left.append(process)
        printed = log.read_text()
        assert code == 0, f"{block.place}: {text}\nended with exit code {code}:\n{printed}"
        missing = absent(self.wanted(command.prints), printed)
        assert not missing, f"{block.place}: {text}\ndid not print\n  {missing}\nbut\n{printed}"

    def wanted(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(self.adapted, lines))

    def _await(
        self, block: Block, command: Command, lines: tuple[str, ...], log: Path, process: subprocess.Popen[bytes]
    ) -> None:
        """Until a command in the background has printed these lines."""
        until = time.monotonic() + PATIENCE_S
        while missing := absent(self.wanted(lines), log.read_text()):
            assert process.poll() is None, f"{block.place}: {command.text}\nhas ended:\n{log.read_text()}"
            assert time.monotonic() < until, (
                f"{block.place}: {command.text}\ndid not print\n  {missing}\nbut\n{log.read_text()}"
            )
            time.sleep(0.02)

    def end(self, *, judge: bool) -> None:
        """Ends what runs in the background, after it has printed all that its block shows."""
        try:
            if judge:
                for block, command, process, log in self._running:
                    self._await(block, command, command.prints, log, process)
        finally:
            with suppress(pika.exceptions.AMQPError):
                if connection := self.namespace.get("connection"):
                    connection.close()
            for process in (*self._left, *(process for _, _, process, _ in reversed(self._running))):
                _end(process)


def absent(lines: tuple[str, ...], printed: str) -> str:
    """The first of these lines that is not printed, in this order; `...` stands for anything."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in lines:
        pattern = ".*".join(re.escape(part) for part in " ".join(line.split()).split("..."))
        while rest and not re.search(pattern, rest[0]):
            rest.pop(0)
        if not rest:
            return line
        rest.pop(0)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """With its children: it leads a group of processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 5
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            break
    process.wait(5)


@contextmanager
def terminal(directory: Path, kind: str) -> Iterator[Terminal]:
    """A session with a broker: `embedded`, a `node` in a process of its own, or `none`."""
    amqp, http = free_port(), free_port()
    made = Terminal(directory, amqp, http)
    broker: Any = None
    node: subprocess.Popen[bytes] | None = None
    if kind == "embedded":
        broker = Broker(port=amqp).start()
    elif kind == "node":
        node = _node(made)
    judged = False
    try:
        yield made
        judged = True
    finally:
        try:
            made.end(judge=judged)
        finally:
            if broker is not None:
                broker.stop()
            if node is not None:
                _end(node)


def _node(made: Terminal) -> subprocess.Popen[bytes]:
    addresses = made.adapted("--amqp 127.0.0.1:5672 --http 127.0.0.1:15672")
    log = made.directory / ".node"
    with log.open("wb") as said:
        process = subprocess.Popen(
            ["bash", "-c", f"exec clusterbroker start {addresses}"],
            cwd=made.directory,
            env=made.environment(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until = time.monotonic() + PATIENCE_S
    while "\nready" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    return process
