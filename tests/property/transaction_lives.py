"""Lives of transactions: producers, their attempts and commits, in a cluster in which nodes die, links break, disks
dawdle and queues are handed over at any step. What is committed is in each of its queues once at the end, in the order
of its producer's epochs; nothing else is anywhere.

    attempt    a segment opened at some node, and rows that are confirmed, or not: then it is given up
    commit     of whole attempts, one for each part of an epoch; asked once or twice, at any node
    full       a queue that refuses beyond three messages; somebody takes from it now and then
    journals   their segments are small; checkpoints take a while, and what lives in old segments is written again
"""

from __future__ import annotations

import random
from typing import Any

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.property.cluster_lives_world import SEGMENT_BYTES, checkpoint_some, copy_forward, journal_of
from tests.unit.broker.fronts.amqp091.harness import Client, Content
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.transactions.stager import Stager

QUEUES = {"all": "#", "odd": "#.odd", "full": "#.full"}
KEYS = ("even", "odd", "full")


class Producer:
    """What one has done, and what of it must be seen. `parts` of an epoch: whole attempts, the last of each counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run, self.runs = "r1", 1
        self.epoch = 0
        self.parts: dict[int, tuple[str, list[bytes]]] = {}
        self.committed: list[list[bytes]] = []


class Life:
    """One cluster and all that befalls it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster("a", "b", "c")
        self.producers = [Producer("p"), Producer("q")]
        self.names = self.taken = 0
        self.seen: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        self.told: list[str] = []
        for site in self.cluster.sites.values():
            journal_of(site).segment_bytes = SEGMENT_BYTES
        for queue, key in QUEUES.items():
            client = self.node.client()
            words = {"x_max_length": 3, "x_overflow": "reject-publish"} if queue == "full" else {}
            client.declare(queue, x_queue_leader_locator="client-local", **words)
            client.ask(m.QueueBind(queue=queue, exchange="amq.topic", routing_key=key))

    @property
    def node(self) -> Site:
        return self.chance.choice(self.cluster.running)

    def live(self, steps: int) -> None:
        deeds = [
            *[self.attempt] * 6, *[self.commit] * 4, *[self.some_rounds] * 4, self.new_run, self.kill, self.restart,
            self.break_link, self.hand_over, self.slow_disk, self.take, self.zombie, self.abort,
            *[self.checkpoint] * 2, *[self.forward] * 2, self.copy_anew,
        ]  # fmt: skip
        for _ in range(steps):
            deed = self.chance.choice(deeds)
            self.told.append(deed.__name__)
            deed()

    # -- what producers do

    def stager(self, producer: Producer, run: str = "") -> Stager:
        return Stager(self.node.client(channels=2), producer.name, run or producer.run)

    def attempt(self) -> None:
        producer, part = self.chance.choice(self.producers), self.chance.randrange(2)
        self.names += 1
        name = f"txn.{self.names}"
        stager = self.stager(producer)
        if stager.declare(name, producer.epoch) != [m.ExchangeDeclareOk()]:
            return
        rows, acked = [], 0
        for row in range(self.chance.randrange(1, 7)):
            key = self.chance.choice(KEYS)
            rows.append(b"%s.%d.%d.%d.%s" % (producer.name.encode(), producer.epoch, self.names, row, key.encode()))
            acked += sum(isinstance(said, m.BasicAck) for said in stager.stage(name, rows[-1], key=f"x.{key}"))
        if acked == len(rows) and self.chance.random() < 0.9:
            producer.parts[part] = name, rows

    def commit(self) -> None:
        producer = self.chance.choice(self.producers)
        names = tuple(name for _, (name, _) in sorted(producer.parts.items()))
        command = c.CommitTransaction(
            at_ms=self.cluster.now_ms, vhost="/", producer=producer.name, epoch=producer.epoch, run=producer.run,
            transactions=names, user="guest",
        )  # fmt: skip
        site = self.node
        outcome: list[Any] = []
        for _ in range(self.chance.choice((1, 1, 2))):
            site.cluster.log.append((command, site, outcome.append))
        for _ in range(self.chance.randrange(12)):
            self.cluster._round()
        judged = site.map if site.alive else self.cluster.running[0].map
        known = judged.producer("/", producer.name)
        if site.applied < len(self.cluster.log):
            self.cluster.turn()
            known = judged.producer("/", producer.name)
        if known is None or known.epoch != producer.epoch:
            assert outcome, "the wiring answers"
            assert outcome[0].result.outcome == "refused"
            producer.parts.clear()  # one of them was dropped: all of the batch is done again
            return
        assert [one.result.outcome for one in outcome] in ([], ["committed"], ["committed", "already"])
        producer.committed.append([row for _, (_, rows) in sorted(producer.parts.items()) for row in rows])
        producer.parts.clear()
        producer.epoch += 1

    def new_run(self) -> None:
        """All that is open of the one before is gone with its first word."""
        producer = self.chance.choice(self.producers)
        producer.runs += 1
        producer.run = f"r{producer.runs}"
        producer.parts.clear()

    def zombie(self) -> None:
        """Of a run that was replaced, or into a segment that is gone: it is refused, or what it says is not seen."""
        producer = self.chance.choice(self.producers)
        if producer.runs > 1:
            stager = self.stager(producer, f"r{self.chance.randrange(1, producer.runs)}")
            known = self.cluster.running[0].map.producer("/", producer.name)
            fenced = known is not None and stager.run in known.fenced_runs
            self.names += 1
            heard = stager.declare(f"txn.{self.names}", producer.epoch)
            if fenced:
                assert isinstance(heard[0], m.ChannelClose)
            elif heard == [m.ExchangeDeclareOk()]:  # nobody has heard of the newer one, or of this one
                stager.stage(f"txn.{self.names}", b"zombie", key="x.even")
                producer.parts.clear()

    def abort(self) -> None:
        producer = self.chance.choice(self.producers)
        if producer.parts:
            part = self.chance.choice(list(producer.parts))
            name, _ = producer.parts.pop(part)
            self.stager(producer).abort(name, epoch=producer.epoch)

    # -- what befalls them

    def some_rounds(self) -> None:
        for _ in range(self.chance.randrange(15)):
            self.cluster._round()

    def kill(self) -> None:
        if len(self.cluster.running) == 3:
            self.cluster.kill(self.node.name)
            self.cluster.wait(self.chance.choice((0, 200, 2000)))

    def restart(self) -> None:
        for name, site in self.cluster.sites.items():
            if not site.alive:
                self.cluster.restart(name)
                self.cluster.wait(3000)

    def break_link(self) -> None:
        one, other = sorted(self.chance.sample("abc", 2))
        self.cluster.unlink(one, other)
        self.cluster.relink()

    def hand_over(self) -> None:
        site = self.node
        owned = [queue for queue in site.node.queues.values() if queue.ring.replicated]
        others = [other.name for other in self.cluster.running if other is not site]
        if owned and others and site.node.role is not None:
            site.node.role.hand_over(self.chance.choice(owned).entity.queue_id, self.chance.choice(others))

    def slow_disk(self) -> None:
        site = self.node
        site.disk_waits = True
        for _ in range(self.chance.randrange(8)):
            self.cluster._round()
        site.disk_waits = False

    def checkpoint(self) -> None:
        checkpoint_some(self.node, self.chance)

    def forward(self) -> None:
        copy_forward(self.node, self.chance)

    def copy_anew(self) -> None:
        """A copy of a queue or a segment ends, and is made anew at the same node."""
        entity = self.chance.choice(tuple(self.cluster.running[0].map.lasting_queues()))
        others = [name for name in entity.replicas if name != entity.owner]
        if others:
            name = self.chance.choice(others)
            self.cluster.order(c.MoveReplica(queue_id=entity.queue_id, remove=(name,)))
            self.cluster.order(c.MoveReplica(queue_id=entity.queue_id, add=(name,)))

    def take(self) -> None:
        self.taken += self.drain(self.node.client(), "full", 2)

    def drain(self, client: Client, queue: str, most: int = 10**9) -> int:
        for count in range(most):
            heard = client.say(m.BasicGet(queue=queue, no_ack=True))
            if not heard:
                client.leave()  # nobody serves the queue now: the answer would come when nobody looks any more
                return count
            if not isinstance(heard[0], Content):
                return count
            self.seen[queue].append(heard[0].body)
        return most

    # -- the end

    def end(self) -> None:
        """Everybody is there again, and all that is under way arrives."""
        self.restart()
        for _ in range(60):
            self.cluster.wait(2000)
            if not any(self.cluster["a"].map.segments("/") and self.moving):
                self.drain(self.cluster["a"].client(), "full")
                if not self.moving:
                    break
        self.check()

    @property
    def moving(self) -> list[str]:
        self.drain(self.cluster["a"].client(), "full", 3)
        return [segment.name for segment in self.cluster["a"].map.segments("/") if segment.place is not None]

    def check(self) -> None:
        assert not self.moving, (self.moving, self.told)
        assert len(self.cluster.digests()) == 1
        for queue in QUEUES:
            self.drain(self.cluster["b"].client(), queue)
            seen = self.seen[queue]
            assert len(set(seen)) == len(seen), f"doubled in {queue}: {self.told}"
            for producer in self.producers:
                mine = [row for row in seen if row.split(b".")[0] == producer.name.encode()]
                expected = [
                    {row for row in epoch if queue == "all" or row.endswith(queue.encode())}
                    for epoch in producer.committed
                ]
                at = 0
                for number, rows in enumerate(expected):
                    got = mine[at : at + len(rows)]
                    assert set(got) == rows, (queue, producer.name, number, rows ^ set(got), self.told)
                    at += len(rows)
                assert mine[at:] == [], f"of no commit: {mine[at:]}"
            assert not [row for row in seen if row == b"zombie"]
        for site in self.cluster.running:
            for ring in [one.ring for one in site.node.queues.values()]:
                assert not [name for name in ring.attributes if name[:1] == b"t"], "nothing is remembered for nothing"


def live(seed: int, steps: int = 40) -> None:
    life = Life(seed)
    life.live(steps)
    life.end()
