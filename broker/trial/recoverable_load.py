"""Programs with recoverable links of AMQP 1.0 at all nodes of a trial, which are killed as well as its nodes.

    sender 0 -> queue 0 -> receivers 0 and 1         two links share it
    sender 1 -> queue 1 -> receiver 2
    sender 2 -> exchange -> queue 2 -> receiver 3    each queue has it once
                         -> queue 3 -> receiver 4

Three programs have these links (`recoverable_client`); each keeps its unsettled deliveries in a file, and writes down
what it sees. Whatever happens to nodes and programs, each message comes exactly once (`recoverable_judge`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from clusterbroker.broker.trial import nodes
from clusterbroker.broker.trial.client import Client, Target
from clusterbroker.broker.trial.judge import Verdict
from clusterbroker.broker.trial.recoverable_client import ClientPlan, LinkPlan
from clusterbroker.broker.trial.recoverable_judge import RecoverableJudge
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.fields import Table

QUEUES: Final = 4
RATE_PER_S: Final = 40.0
HOLD_S: Final = 0.3
POLL_S: Final = 0.05
HITS_MAX: Final = 3
"""Of programs, in a round."""


class RecoverableLoad:
    """`start`, rounds of `resume`, `torment`, `settle` and `verdict`, `stop`."""

    def __init__(self, directory: Path, targets: tuple[Target, ...], prefix: str) -> None:
        self._targets = targets
        self._queues = [f"{prefix}-links-{number}" for number in range(QUEUES)]
        self._exchange = f"{prefix}-links"
        queues, address = self._queues, "/queues/{}".format
        senders = [
            LinkPlan("sender-0", address(queues[0]), True),
            LinkPlan("sender-1", address(queues[1]), True),
            LinkPlan("sender-2", f"/exchanges/{self._exchange}/", True),
        ]
        sources = {f"receiver-{number}": queues[max(0, number - 1)] for number in range(QUEUES + 1)}
        receivers = [LinkPlan(name, address(queue), False) for name, queue in sources.items()]
        links = (
            (senders[0], receivers[0]),
            (senders[1], receivers[1], receivers[3]),
            (senders[2], receivers[2], receivers[4]),
        )
        urls = [f"amqp://{target}" for target in targets]
        self._plans = {
            plan.name: plan
            for plan in (
                ClientPlan(
                    f"{prefix}-program-{number}",
                    (*urls[number % len(urls) :], *urls[: number % len(urls)]),
                    str(directory),
                    own,
                    RATE_PER_S,
                    HOLD_S,
                )
                for number, own in enumerate(links)
            )
        }
        routes = {"sender-0": queues[:1], "sender-1": queues[1:2], "sender-2": queues[2:]}
        self._judge = RecoverableJudge(routes, sources)
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = dict.fromkeys(self._plans, 0)
        self._round = 0
        self._command = b""

    async def start(self) -> None:
        """Declares the queues and starts the programs. Raises ClientLost."""
        client = await Client.open(self._targets[0])
        try:
            await client.call(m.ExchangeDeclare(exchange=self._exchange, type="fanout", durable=True))
            for number, queue in enumerate(self._queues):
                arguments: Table = {"x-queue-type": "quorum"}
                await client.call(m.QueueDeclare(queue=queue, durable=True, arguments=arguments))
                if number >= 2:
                    await client.call(m.QueueBind(queue=queue, exchange=self._exchange))
        finally:
            await client.close()
        for name in self._plans:
            self._launch(name)

    def _launch(self, name: str) -> None:
        plan = self._plans[name]
        words = [sys.executable, "-m", "clusterbroker.broker.trial.recoverable_client"]
        words.append(msgspec.json.encode(plan).decode())
        with open(Path(plan.directory) / f"{name}.err", "ab") as errors:
            self._programs[name] = nodes.start_process(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        self._tell(name)

    def _tell(self, name: str) -> None:
        channel = self._programs[name].stdin
        assert channel is not None, "commands are written to it"
        try:
            channel.write(self._command)
            channel.flush()
        except BrokenPipeError:
            pass  # it is killed: its next life hears

    def _command_all(self, command: str) -> None:
        self._command = f"{command}\n".encode()
        for name in self._programs:
            self._tell(name)

    def resume(self) -> None:
        """Send on."""
        self._round += 1
        self._command_all("go")

    async def torment(self, chance: random.Random) -> list[str]:
        """Kills and stops programs while nodes have their faults; what was done."""
        done = []
        for _ in range(chance.randint(0, HITS_MAX)):
            await asyncio.sleep(chance.uniform(0.1, 2.0))
            name = chance.choice(list(self._plans))
            deed: Callable[[str, float], Awaitable[str]] = self._kill if chance.random() < 0.7 else self._freeze
            done.append(await deed(name, chance.uniform(0.0, 1.0)))
        return done

    async def _kill(self, name: str, pause_s: float) -> str:
        await self._end(name)
        await asyncio.sleep(pause_s)
        self._launch(name)
        return f"kill -9 of {name}"

    async def _freeze(self, name: str, pause_s: float) -> str:
        """Up to six seconds: its connection is given up by its node, or it gives it up itself."""
        program = self._programs[name]
        program.send_signal(signal.SIGSTOP)
        await asyncio.sleep(6 * pause_s)
        program.send_signal(signal.SIGCONT)
        return f"SIGSTOP of {name} ({6 * pause_s:.1f} s)"

    async def _end(self, name: str) -> None:
        program = self._programs[name]
        program.send_signal(signal.SIGKILL)
        while program.poll() is None:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.005)
        if program.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it had ended by itself, and a command is still to be written
                program.stdin.close()

    async def settle(self, timeout_s: float) -> str:
        """Stops sending and waits until all is through; what is missing when the time is over, "" for nothing."""
        self._command_all(f"pause {self._round}")
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._take()
            ended = [name for name, program in self._programs.items() if program.poll() is not None]
            missing = self._judge.missing(self._round, list(self._plans))
            if not missing and not ended:
                return ""
            if ended:
                return f"programs have ended: {', '.join(ended)}; {missing}"
            if time.monotonic() > deadline_s:
                for program in self._programs.values():
                    program.send_signal(signal.SIGUSR1)
                return f"after {timeout_s:g} s {missing}"
            await asyncio.sleep(POLL_S)

    def _take(self) -> None:
        """What the programs have written since."""
        for name, plan in self._plans.items():
            if not plan.log.exists():
                continue
            with open(plan.log, "rb") as log:
                log.seek(self._read[name])
                data = log.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[name] += len(whole)
            for line in whole.decode().splitlines():
                self._judge.take(name, line)

    def verdict(self) -> Verdict:
        """Of the round that has settled."""
        self._take()
        return self._judge.verdict()

    async def stop(self) -> None:
        """Ends all programs."""
        for name in list(self._programs):
            await self._end(name)
