"""Worker pools, seen from a caller: three nodes, twelve keys, a ramp, a burst and a rest, with two kills in the middle.

    ramp    requests of all keys, more and more; the controller's node is killed (SIGKILL), and started again
    burst   one key gets most of them; one of its workers is killed (SIGKILL)
    rest    all is answered; workers end, and their groups

Answers go to a durable queue, so an answer that comes twice is seen. The verdict follows from requests and answers:
each request that was confirmed is answered, by a worker of its key. A request whose worker or node was killed may be
computed again, and its second answer says that it was redelivered; without that word a second answer is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from rich.console import Console
from rich.text import Text

from clusterbroker.broker.trial.client import Client, ClientLost, Delivery
from clusterbroker.broker.trial.nodes import LOOPBACK, LocalCluster, TrialError, free_port
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker_workers import Request, Worker

KEYS: Final = "abcdefghijkl"
POOL: Final = "demo"
ANSWERS: Final = "answers"
SERVICE_S: Final = 0.05
RATE: Final = 60.0
"""Requests a second at the end of the ramp."""
BURST: Final = 200
PATIENCE_S: Final = 90.0
SAMPLE_S: Final = 0.5
WIDTH: Final = 76
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
COLOURS: Final = ("red", "green", "yellow", "blue", "magenta", "cyan")


class Square(Worker):
    """The worker of the demo: computes the square of a number, slowly."""

    def handle(self, request: Request) -> bytes:
        """JSON: number, its square, this worker's key and id, and whether it was delivered before."""
        time.sleep(SERVICE_S)
        number = int(request.body)
        mine = {"key": os.environ["WORKER_KEY"], "worker": os.environ["WORKER_ID"], "pid": os.getpid()}
        return json.dumps(mine | {"number": number, "square": number**2, "again": request.redelivered}).encode()


@dataclass
class Call:
    """A request, and what came back."""

    key: str
    sent_s: float
    confirmed: bool = False
    refused: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)
    answered_s: float = 0.0


@dataclass(frozen=True)
class Sample:
    """One moment: requests sent in all, waiting ones, workers by key, p95 of the answers since the last one, ms."""

    at_s: float
    sent: int
    waiting: int
    workers: dict[str, int]
    p95_ms: float


# -- the verdict -------------------------------------------------------------------------------------------------------


def findings(calls: list[Call], unserved: int) -> list[str]:
    """What is wrong; nothing when all is well. `unserved`: answers of the broker instead of a worker's."""
    lost = sum(call.confirmed and not call.answers for call in calls)
    refused = sum(call.refused for call in calls)
    twice = sum(sum(not answer["again"] for answer in call.answers) > 1 for call in calls)
    strange = sum(any(answer["key"] != call.key for answer in call.answers) for call in calls)
    wrong = sum(any(a["square"] != number**2 for a in call.answers) for number, call in enumerate(calls))
    open_ = sum(not call.confirmed and not call.refused for call in calls)
    said = {
        "lost": lost, "answered twice without redelivered": twice, "answered by a worker of another key": strange,
        "answered wrongly": wrong, "refused": refused, "not confirmed": open_, "answered by the broker": unserved,
    }  # fmt: skip
    return [f"{count} requests {what}" for what, count in said.items() if count]


def figures(calls: list[Call]) -> str:
    """Of a run that is well."""
    again = sum(len(call.answers) > 1 for call in calls)
    workers = {answer["worker"] for call in calls for answer in call.answers}
    took = sorted(call.answered_s - call.sent_s for call in calls)
    return (
        f"{len(calls)} requests of {len({call.key for call in calls})} keys, 0 lost, 0 by a wrong worker, "
        f"{again} answered again with redelivered, {len(workers)} workers, p95 {took[len(took) * 95 // 100]:.2f} s"
    )


# -- the plot ----------------------------------------------------------------------------------------------------------


def columns(samples: list[Sample], width: int = WIDTH) -> list[Sample]:
    """At most so many, evenly taken."""
    step = max(1, -(-len(samples) // width))
    return samples[::step]


def line(values: list[float]) -> str:
    """One block character each, the highest value full; what is not 0 is seen."""
    most = max(values, default=0.0) or 1.0
    return "".join(BLOCKS[0 if value <= 0 else max(1, round(value / most * 8))] for value in values)


def stacks(samples: list[Sample]) -> list[str]:
    """Rows from the top: workers of each key stacked, each worker its key's letter."""
    piles = ["".join(key * sample.workers.get(key, 0) for key in KEYS) for sample in samples]
    height = max(map(len, piles), default=0)
    return ["".join(pile[row] if row < len(pile) else " " for pile in piles) for row in reversed(range(height))]


def plot(samples: list[Sample], marks: list[tuple[float, str]]) -> list[str]:
    """Rows of text: load, waiting, workers per key stacked, p95, kills as marks."""
    shown = columns(samples)
    if not shown:
        return []
    rates = [0.0] + [(b.sent - a.sent) / (b.at_s - a.at_s) for a, b in pairwise(shown)]
    under = [" "] * len(shown)
    for at_s, mark in marks:
        under[min(sum(sample.at_s < at_s for sample in shown), len(shown) - 1)] = mark
    rows = [
        (f"load, at most {max(rates):.0f}/s", line(rates)),
        (f"waiting, at most {max(sample.waiting for sample in shown)}", line([float(s.waiting) for s in shown])),
        (f"p95, at most {max(sample.p95_ms for sample in shown) / 1000:.1f} s", line([s.p95_ms for s in shown])),
    ]
    rows += [("workers, by key" if not row else "", text) for row, text in enumerate(stacks(shown))]
    rows.append(("kills: N node, W worker", "".join(under)))
    return [f"{name:<24}{text}" for name, text in rows]


def coloured(row: str) -> Text:
    """Letters of keys in the colour of their key."""
    text = Text(row[:24])
    for character in row[24:]:
        text.append(character, COLOURS[KEYS.index(character) % 6] if character in KEYS else "")
    return text


# -- the run -----------------------------------------------------------------------------------------------------------


class Stage:
    """Cluster, calls and samples of a run."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory)
        self.ports = {name: free_port() for name in self.cluster.names}
        config = directory / "broker.toml"
        command = [sys.executable, "-m", "clusterbroker_workers", "demo_pools:Square"]
        user = 'user = "root"\n' if os.geteuid() == 0 else ""
        variables = f"environment = {{ PYTHONPATH = {json.dumps(str(Path(__file__).parent))} }}\n"
        config.write_text(f'[pools.{POOL}]\ndriver = "subprocess"\ncommand = {json.dumps(command)}\n{user}{variables}')
        config.chmod(0o600)
        for name, node in self.cluster.nodes.items():
            node.words = ["--config", str(config), "--http", f"{LOOPBACK}:{self.ports[name]}"]
        self.calls: list[Call] = []
        self.open: dict[int, Call] = {}
        self.unserved = 0
        self.samples: list[Sample] = []
        self.marks: list[tuple[float, str]] = []
        self.begun_s = 0.0
        self.at = "a"
        """The node that the caller is connected to and that is asked."""
        self._client: Client
        self._tag = 0
        self._confirmed = 0
        self._took: list[float] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.begun_s

    async def ask(self, path: str, document: Any = None) -> Any:
        """The management API, of the caller's node. Raises OSError."""
        body = None if document is None else json.dumps(document).encode()
        headers = {"authorization": f"Basic {b64encode(b'guest:guest').decode()}", "content-type": "application/json"}
        url = f"http://{LOOPBACK}:{self.ports[self.at]}/api/pools/%2F/{POOL}{path}"
        request = HttpRequest(url, body, headers, method="GET" if body is None else "PUT")

        def asked() -> Any:
            with urlopen(request, timeout=20) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")

        return await asyncio.to_thread(asked)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Raises TrialError after PATIENCE_S."""
        end_s, why = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < end_s:
            try:
                if await holds():
                    return
            except OSError as error:
                why = f" ({error})"
            await asyncio.sleep(0.05)
        raise TrialError(f"not within {PATIENCE_S:g} s: {what}{why}")

    # -- client

    async def connect(self) -> None:
        """The caller, at a node that does not control the pool: that one is to be killed."""

        async def declared() -> bool:
            await self.ask("", {"template": POOL, "max": 4, "unbind_delay_s": 2, "stop_delay_s": 1})
            return True

        await self.until("the pool is declared", declared)
        controller = await self.controller()
        self.at = next(name for name in self.cluster.names if name != controller)
        self._client = client = await Client.open(self.cluster.target(self.at), timeout_s=30, heartbeat_s=60)
        client.on_confirm, client.on_deliver = self._confirm, self._deliver
        await client.call(m.QueueDeclare(queue=ANSWERS, durable=True))
        await client.call(m.ConfirmSelect())
        await client.call(m.BasicConsume(queue=ANSWERS, consumer_tag="c"))

    async def controller(self) -> str:
        """The node that leads the pool's orphan queue; empty: none for now."""
        return str((await self.ask(""))["controller"] or "")

    def send(self, key: str) -> None:
        """One request."""
        number = len(self.calls)
        call = Call(key, time.monotonic())
        self.calls.append(call)
        self._tag += 1
        self.open[self._tag] = call
        about = Properties(reply_to=ANSWERS, correlation_id=str(number), delivery_mode=2)
        self._client.publish(key, b"%d" % number, exchange=POOL, properties=about)

    def _confirm(self, ack: bool, tag: int, multiple: bool) -> None:
        tags = [each for each in self.open if each == tag or (multiple and each < tag)]
        for each in tags:
            call = self.open.pop(each)
            call.confirmed, call.refused = ack, not ack

    def _deliver(self, delivery: Delivery) -> None:
        self._client.acknowledge(delivery.tag)
        if not delivery.body:
            self.unserved += 1
            return
        answer = json.loads(delivery.body)
        call = self.calls[answer["number"]]
        if delivery.flagged and answer in call.answers:
            return  # the same answer of the reply queue, whose leader was killed before it heard of the acknowledgement
        call.answers.append(answer)
        if not call.answered_s:
            call.answered_s = time.monotonic()
            self._took.append(call.answered_s - call.sent_s)

    # -- what is seen

    async def watch(self) -> None:
        """Samples, until it is cancelled."""
        while True:
            try:
                rows = await self.ask("/workers")
            except OSError:
                rows = None
            if rows is not None:
                workers = Counter(row["key"] for row in rows if not row["revoked"])
                took, self._took = sorted(self._took), []
                p95_s = took[len(took) * 95 // 100] if took else 0.0
                waiting = sum(not call.answers for call in self.calls)
                self.samples.append(Sample(self.now_s, len(self.calls), waiting, dict(workers), p95_s * 1000))
            await asyncio.sleep(SAMPLE_S)

    # -- acts

    async def ramp(self, seconds: float) -> None:
        """More and more requests of all keys, turn by turn; each key has one in the first round."""
        began_s, nth = time.monotonic(), 0
        while (part := (time.monotonic() - began_s) / seconds) < 1:
            self.send(KEYS[nth % len(KEYS)])
            nth += 1
            await asyncio.sleep(1 / (5 + (RATE - 5) * part))

    async def kill_controller(self) -> str:
        """SIGKILL of the pool's controller; its node begins again."""
        name = await self.controller()
        if name in ("", self.at):
            raise TrialError(f"the pool's controller is {name or 'nowhere'}, where it must not be killed")
        await self.cluster.kill(name)
        self.marks.append((self.now_s, "N"))
        return name

    async def burst(self, key: str) -> None:
        """Many requests at once; the worker that answers one of the first is killed."""
        first = len(self.calls)
        for _ in range(BURST):
            self.send(key)

        async def answered() -> bool:
            return any(call.answers for call in self.calls[first:])

        await self.until(f"the first request of the burst at {key!r} is answered", answered)
        pid = max(self.calls[first:], key=lambda call: call.answered_s).answers[-1]["pid"]
        os.kill(pid, signal.SIGKILL)
        self.marks.append((self.now_s, "W"))

    async def rest(self) -> None:
        """Until all is answered, and no worker is left."""

        async def answered() -> bool:
            return all(call.answers for call in self.calls) or self.unserved > 0

        async def empty() -> bool:
            return not await self.ask("/workers") and not await self.ask("/groups")

        try:
            await self.until("all requests are answered", answered)
        except TrialError:
            return  # the verdict says which
        await self.until("all workers have ended", empty)

    async def play(self, say: Callable[[str], None], seconds: float) -> None:
        """The whole. Raises TrialError, ClientLost."""
        watch: asyncio.Task[None] | None = None
        try:
            await self.cluster.begin()
            await self.connect()
            self.begun_s = time.monotonic()
            watch = asyncio.create_task(self.watch())
            say(f"three nodes, a pool, {len(KEYS)} keys; the caller is at {self.at}")
            ramp = asyncio.create_task(self.ramp(2 * seconds))
            await asyncio.sleep(seconds)
            name = await self.kill_controller()
            say(f"{self.now_s:5.1f} s  {name}, the pool's controller, was killed amid the ramp")
            back = asyncio.create_task(self.cluster.start(name))
            await ramp
            await self.burst(KEYS[0])
            say(f"{self.now_s:5.1f} s  a worker of {KEYS[0]!r} was killed amid a burst of {BURST} requests")
            await back
            await self.rest()
            say(f"{self.now_s:5.1f} s  rest: all is answered, workers and groups have ended")
        finally:
            if watch is not None:
                watch.cancel()
            await self.cluster.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo --pools", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="half of the ramp's time (default: 8)")
    seconds = parser.parse_args().seconds
    if seconds < 1:
        parser.error("--seconds must be at least 1: the controller is killed amid the ramp")
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="clusterbroker-demo-"))
    stage, began_s = Stage(directory), time.perf_counter()
    failures: list[str]
    try:
        asyncio.run(stage.play(console.print, seconds))
        failures = findings(stage.calls, stage.unserved)
    except (TrialError, ClientLost, OSError) as error:
        failures = [*findings(stage.calls, stage.unserved), str(error)]
    for row in plot(stage.samples, stage.marks):
        console.print(coloured(row), soft_wrap=True)
    if failures:
        print(f"demo failed: {'; '.join(failures)} (logs are kept in {directory})")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    print(f"demo passed: {figures(stage.calls)}, {time.perf_counter() - began_s:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
