"""Rounds of load, kill -9 and restart, with every message accounted for.

One round: publishers with confirms and consumers of several kinds work at full speed, the node is killed at a random
moment (every fifth round it is stopped by SIGTERM, every third it is killed again while it starts), started again,
and all queues are drained. Then must hold:

    lost        nothing: what was confirmed as persistent was delivered before or after
    twice       a second delivery of a message by the same queue has redelivered=true
    order       first deliveries of one publisher's messages come in the order of their publishes
    split       a dead-lettered message is in exactly one of the two queues
    torn        a transaction is there as a whole or not at all, and a commit-ok is kept

    python -m tests.faults.kill_rounds --rounds 50 [--seed N] [--dir DIR] [--power-loss]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pika import spec

from tests.faults.client import Channel, Client, Delivery
from tests.faults.disk import shim, volatile
from tests.faults.node import NodeProcess, command

WINDOW = 400
PRIORITIES = 4
QUEUES: dict[str, dict[str, Any]] = {
    "backlog": {},
    "acked": {},
    "mixed": {},
    "priority": {"x-max-priority": PRIORITIES},
    "fan1": {},
    "fan2": {},
    "rejecting": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "dead": {},
    "requeuing": {},
    "tx-in": {},
    "tx-out1": {},
    "tx-out2": {},
}
ACKED_BY_LOAD = ("acked", "mixed", "priority", "fan1", "rejecting", "requeuing")


@dataclass
class Ledger:
    """What one round knows. A token ("backlog-3:17") names publisher and number; `confirmed` are persistent ones."""

    sent: dict[str, list[str]] = field(default_factory=dict)
    confirmed: dict[str, set[str]] = field(default_factory=dict)
    nacked: int = 0
    seen: dict[str, dict[str, int]] = field(default_factory=lambda: {queue: {} for queue in QUEUES})
    drained: dict[str, set[str]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)
    rejects: set[str] = field(default_factory=set)
    staged: list[list[str]] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    redelivered: int = 0
    problems: list[str] = field(default_factory=list)

    def delivered(self, queue: str, delivery: Delivery) -> str:
        token = delivery.body.partition(b"|")[0].decode()
        publisher, _, number = token.partition(":")
        seen = self.seen[queue]
        times = seen[token] = seen.get(token, 0) + 1
        if delivery.redelivered:
            self.redelivered += 1
            return token
        if times > 1:
            self.problems.append(f"twice: {token} from {queue}, delivery {times} without redelivered")
        rank = int(number) % (PRIORITIES + 1) if queue == "priority" else 0
        if queue != "dead":  # rejected in batches and out of order by the consumer
            before = self.last.get((queue, publisher, rank), -1)
            if int(number) <= before:
                self.problems.append(f"order: {token} from {queue} after {before}")
            self.last[(queue, publisher, rank)] = int(number)
        return token

    def verdict(self) -> list[str]:
        problems = self.problems
        for queue in QUEUES:
            for token in self.confirmed.get(queue, ()):
                place = ("dead", queue) if queue == "rejecting" else (queue,)
                if not any(token in self.seen[where] for where in place):
                    problems.append(f"lost: {token} of {queue}")
        for token in self.confirmed.get("fan", ()):
            for queue in ("fan1", "fan2"):
                if token not in self.seen[queue]:
                    problems.append(f"lost: {token} of {queue}")
        back, dead = self.drained["rejecting"], self.drained["dead"]
        for token in back & dead:
            problems.append(f"split: {token} was rejected and is in both queues")
        # what was not confirmed yet may have been delivered, and yet be gone
        for token in self.rejects & self.confirmed.get("rejecting", set()) - back - dead:
            problems.append(f"lost: {token} was rejected and is in neither queue")
        for token in dead - self.rejects:
            problems.append(f"split: {token} is dead and was never rejected")
        self._transactions()
        return problems

    def _transactions(self) -> None:
        inside, out1, out2 = (self.drained[queue] for queue in ("tx-in", "tx-out1", "tx-out2"))
        for batch in self.staged:
            places = {(token in out1, token in out2) for token in batch}
            if places not in ({(False, False)}, {(True, True)}) or any(token in inside & out1 for token in batch):
                self.problems.append(f"torn: of {batch} are in tx-in {inside & {*batch}}, the others at {places}")
        for token in self.committed - out1:
            self.problems.append(f"torn: {token} was committed and is gone")
        for token in self.confirmed.get("tx-in", set()) - inside - out1:
            self.problems.append(f"lost: {token} of tx-in")


class Load:
    """Publishers and consumers that work until their connections are gone."""

    def __init__(self, port: int, number: int, ledger: Ledger, seed: int) -> None:
        self.port = port
        self.number = number
        self.ledger = ledger
        self.random = random.Random(seed)
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        publishing, feeding, consuming, tx = [await Client.open(self.port) for _ in range(4)]
        self.clients = [publishing, feeding, consuming, tx]
        for queue in ACKED_BY_LOAD:
            await self._consumer(consuming, queue)
        for name in ("backlog", "acked", "mixed", "priority", "fan"):
            self.tasks.append(asyncio.create_task(self._publish(await publishing.channel(confirm=True), name)))
        for name in ("rejecting", "requeuing", "tx-in"):
            self.tasks.append(asyncio.create_task(self._publish(await feeding.channel(confirm=True), name)))
        self.tasks.append(asyncio.create_task(self._transact(await tx.channel())))

    async def finish(self) -> None:
        """The node is gone: waits until everybody noticed."""
        for client in self.clients:
            await asyncio.wait_for(client.lost.wait(), 60)
        for task in self.tasks:
            task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result
        for client in self.clients:
            await client.close()

    async def _publish(self, channel: Channel, name: str) -> None:
        publisher = f"{name}-{self.number}"
        sent = self.ledger.sent.setdefault(name, [])
        confirmed = self.ledger.confirmed.setdefault(name, set())
        persistent: list[bool] = []
        room = asyncio.Event()
        upto, answered = 0, 0

        def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
            nonlocal upto, answered
            for number in range(upto + 1, tag + 1) if multiple else (tag,):
                answered += 1
                if not ack:
                    self.ledger.nacked += 1
                elif persistent[number - 1]:
                    confirmed.add(sent[number - 1])
            if multiple:
                upto = tag
            room.set()

        channel.on_confirm = on_confirm
        exchange, key = ("fan", "") if name == "fan" else ("", name)
        while not channel.client.lost.is_set():
            for _ in range(self.random.randint(1, 60)):
                number = len(sent)
                sent.append(f"{publisher}:{number}")
                persistent.append(name != "mixed" or self.random.random() < 0.5)
                size = 20000 if self.random.random() < 0.005 else self.random.randint(0, 300)
                body = sent[-1].encode() + b"|" + b"x" * size
                channel.publish(exchange, key, body, persistent[-1], number % (PRIORITIES + 1))
            await channel.client.drain()
            while channel.published - answered > WINDOW:
                room.clear()
                await room.wait()
            await asyncio.sleep(0)

    async def _consumer(self, client: Client, queue: str) -> None:
        channel = await client.channel()
        unacked = 0

        def on_deliver(delivery: Delivery) -> None:
            nonlocal unacked
            token = self.ledger.delivered(queue, delivery)
            chance = self.random.random()
            if queue == "rejecting" and chance < 0.4:
                self.ledger.rejects.add(token)
                channel.reject(delivery.tag, requeue=False)
            elif queue == "requeuing" and chance < 0.2:
                channel.reject(delivery.tag, requeue=True)
            elif queue in ("rejecting", "requeuing"):
                channel.ack(delivery.tag)
            else:
                unacked += 1
                if unacked == 40:
                    unacked = 0
                    channel.ack(delivery.tag, multiple=True)

        channel.on_deliver = on_deliver
        await channel.consume(queue, prefetch=120)

    async def _transact(self, channel: Channel) -> None:
        await channel.call(spec.Tx.Select())
        waiting: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        channel.on_deliver = lambda delivery: waiting.put_nowait(
            (delivery.tag, self.ledger.delivered("tx-in", delivery))
        )
        await channel.consume("tx-in", prefetch=60)
        while not channel.client.lost.is_set():
            batch = [await waiting.get()]
            while len(batch) < 10 and not waiting.empty():
                batch.append(waiting.get_nowait())
            tokens = [token for _, token in batch]
            self.ledger.staged.append(tokens)
            for _, token in batch:
                channel.publish("", "tx-out1", token.encode() + b"|")
                channel.publish("", "tx-out2", token.encode() + b"|")
            channel.ack(batch[-1][0], multiple=True)
            await channel.call(spec.Tx.Commit())
            self.ledger.committed.update(tokens)


async def declare(port: int) -> None:
    client = await Client.open(port)
    channel = await client.channel()
    await channel.call(spec.Exchange.Declare(exchange="fan", type="fanout", durable=True))
    for queue, arguments in QUEUES.items():
        await channel.declare(queue, **arguments)
    for queue in ("fan1", "fan2"):
        await channel.call(spec.Queue.Bind(queue=queue, exchange="fan"))
    await client.close()


async def drain(port: int, ledger: Ledger) -> None:
    """Takes everything out of all queues."""
    client = await Client.open(port)
    for queue in QUEUES:
        channel = await client.channel()
        count = 0

        def on_deliver(delivery: Delivery, queue: str = queue, channel: Channel = channel) -> None:
            nonlocal count
            token = ledger.delivered(queue, delivery)
            if token in ledger.drained[queue]:
                ledger.problems.append(f"twice: {token} drained twice from {queue}")
            ledger.drained[queue].add(token)
            count += 1
            if count % 50 == 0:
                channel.ack(0, multiple=True)

        channel.on_deliver = on_deliver
        await channel.consume(queue, prefetch=1000)
        quiet = 0
        while quiet < 2:
            before = count
            left = (await channel.call(spec.Queue.Declare(queue=queue, passive=True))).message_count
            channel.ack(0, multiple=True) if count != before else None
            quiet = quiet + 1 if not left and count == before else 0
    await client.close()


@dataclass
class Totals:
    rounds: int = 0
    kills: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, ledger: Ledger, number: int) -> None:
        self.rounds += 1
        self.counts["sent"] += sum(map(len, ledger.sent.values()))
        self.counts["confirmed"] += sum(map(len, ledger.confirmed.values()))
        self.counts["delivered"] += sum(sum(seen.values()) for seen in ledger.seen.values())
        self.counts["redelivered"] += ledger.redelivered
        self.counts["transactions"] += len(ledger.staged)
        self.counts["dead"] += len(ledger.drained["dead"])
        self.problems += [f"round {number}: {problem}" for problem in ledger.verdict()]

    def __str__(self) -> str:
        kinds = Counter(problem.split(": ")[1] for problem in self.problems)
        found = ", ".join(f"{kinds[kind]} {kind}" for kind in ("lost", "twice", "order", "split", "torn"))
        counts = ", ".join(f"{value} {name}" for name, value in self.counts.items())
        return f"{self.rounds} rounds, {self.kills} kills: {counts}; {found}"


async def one_round(node: NodeProcess, number: int, chance: random.Random, totals: Totals) -> None:
    ledger = Ledger()
    load = Load(node.port, number, ledger, chance.randrange(1 << 30))
    await load.start()
    await asyncio.sleep(chance.uniform(0.1, 0.8))  # the random moment of the kill
    if number % 5 == 4:
        node.signal(signal.SIGTERM)
        code = await asyncio.to_thread(node.wait)
        if code:
            ledger.problems.append(f"lost: SIGTERM ended with {code}")
    else:
        node.kill()
        totals.kills += 1
    await load.finish()
    if number % 3 == 2:
        node.launch()
        await asyncio.sleep(chance.uniform(0.0, 0.6))
        node.kill()
        totals.kills += 1
    await asyncio.to_thread(node.start)
    await drain(node.port, ledger)
    totals.add(ledger, number)


async def run(node: NodeProcess, rounds: int, seed: int, say: bool = False) -> Totals:
    chance = random.Random(seed)
    totals = Totals()
    await asyncio.to_thread(node.start)
    await declare(node.port)
    for number in range(rounds):
        await one_round(node, number, chance, totals)
        if say:
            print(totals, flush=True)
        if totals.problems:
            break
    await asyncio.to_thread(node.stop)
    code, said = await asyncio.to_thread(command, "journal", "check", str(node.data_dir))
    if code:
        totals.problems.append(f"round {rounds}: lost: journal check: {said}")
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description="Load, kill -9, restart, account for every message.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--dir", type=Path, help="where the node keeps its data and log; else a temporary directory")
    parser.add_argument(
        "--power-loss", action="store_true", help="a kill loses what was not flushed (needs a C compiler)"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = asked.dir or Path(temporary)
        node = NodeProcess(directory, {"journal.segment_bytes": "8MiB", "log.level": "warning"})
        if asked.power_loss:
            volatile(node, shim(Path(temporary)))
        try:
            totals = asyncio.run(run(node, asked.rounds, asked.seed, say=True))
        finally:
            node.kill()
        for problem in totals.problems[:40]:
            print(problem)
    print(f"{'FAILED' if totals.problems else 'ok'} (seed {asked.seed}): {totals}")
    return 1 if totals.problems else 0


if __name__ == "__main__":
    sys.exit(main())
