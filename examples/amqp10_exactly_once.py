"""Exactly once over AMQP 1.0: a sender and a receiver whose nodes are killed with SIGKILL while they work.

    python examples/amqp10_exactly_once.py --messages 20000 --kills 6

Starts three nodes in a directory of its own. Each kill hits the node that the sender, or the receiver, is connected to;
both go on at another one with recoverable links. In the end what was sent and what was received are compared, number by
number: nothing lost, nothing doubled, order kept. Exit status: 0 so, 1 not so.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from clusterbroker.amqp10.client import Accepted, ClientConnection, Message, Receiver, Sender, connect
from clusterbroker.amqp10.client.management import Management
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp10.performatives import Composite

QUEUE = "exactly-once"
IN_FLIGHT = 200
BURST, PAUSE_S = 20, 0.01


class Work:
    """What is sent and received, as it goes on."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        """At least so many; more while nodes are still to be killed."""
        self.killed = asyncio.Event()
        """No node is killed any more."""
        self.sent: int | None = None
        """How many, when the sender is done."""
        self.outcomes: Counter[str] = Counter()
        self.found: list[int] = []

    async def send(self, sender: Sender) -> None:
        """Sends 0, 1, 2 ... and counts the outcomes."""
        flying: deque[asyncio.Future[Composite]] = deque()
        number = 0
        while number < self.messages or not self.killed.is_set():
            flying.append(sender.submit(Message(body=b"%d" % number)))
            number += 1
            if number % BURST == 0:
                await asyncio.sleep(PAUSE_S)
            if len(flying) == IN_FLIGHT:
                self.outcomes[(await flying.popleft()).NAME] += 1
        for future in flying:
            self.outcomes[(await future).NAME] += 1
        self.sent = number

    async def receive(self, receiver: Receiver) -> None:
        """Until all numbers are here; each is settled by the broker before it counts as done."""
        answers: deque[asyncio.Future[None]] = deque()
        while True:
            delivery = await receiver.receive(timeout=2)
            if delivery is not None:
                self.found.append(int(delivery.body))
                answers.append(delivery.dispose(Accepted()))
            elif self.sent is not None and len(self.found) >= self.sent:
                break
            while answers and answers[0].done():
                answers.popleft().result()
        await asyncio.gather(*answers)

    async def kill(self, cluster: LocalCluster, connections: Sequence[ClientConnection], kills: int) -> None:
        """One node at a time, when more has come since the last kill, and not before that node works again."""
        for number in range(kills):
            await self._progress()
            at = connections[number % len(connections)].address
            name = next(each for each in cluster.names if at is not None and cluster.target(each).port == at.port)
            print(f"{len(self.found)} received: kill -9 of node {name}", flush=True)
            await cluster.kill(name)
            await self._progress()
            await cluster.start(name)
        self.killed.set()

    async def _progress(self) -> None:
        before = len(self.found)
        while len(self.found) < before + IN_FLIGHT:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.05)

    def verdict(self, reconnects: int) -> bool:
        found, sent = self.found, self.sent or 0
        lost, doubled = sent - len(set(found)), len(found) - len(set(found))
        order = "kept" if found == sorted(found) else "broken"
        print(f"{sent} sent, outcomes {dict(self.outcomes)}; {len(found)} received: {lost} lost, {doubled} doubled")
        print(f"order {order}; {reconnects} times the connection was made anew")
        good = self.outcomes == {"accepted": sent} and found == list(range(sent))
        print("EXACTLY ONCE" if good else "NOT EXACTLY ONCE")
        return good


async def run(urls: Sequence[str], work: Work, cluster: LocalCluster, kills: int) -> int:
    """The exit status."""
    async with (
        await connect(urls, container_id="exactly-once-out") as out,
        await connect([*urls[1:], urls[0]], container_id="exactly-once-in") as into,
    ):
        async with await Management.open(out) as management:
            await management.declare_queue(QUEUE)
        sender = await out.sender(f"/queues/{QUEUE}", name="numbers-out", recoverable=True)
        receiver = await into.receiver(f"/queues/{QUEUE}", name="numbers-in", credit=IN_FLIGHT, recoverable=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work.send(sender))
            tasks.create_task(work.receive(receiver))
            tasks.create_task(work.kill(cluster, (out, into), kills))
        return 0 if work.verdict(out.reconnects + into.reconnects) else 1


async def main(messages: int, kills: int, directory: Path) -> int:
    """Starts the nodes, and ends them."""
    cluster = LocalCluster(directory)
    try:
        await cluster.begin()
        urls = [f"amqp://{cluster.target(name)}" for name in cluster.names]
        return await run(urls, Work(messages), cluster, kills)
    finally:
        await cluster.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        sys.exit(asyncio.run(main(options.messages, options.kills, Path(made))))
