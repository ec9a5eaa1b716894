"""A node and its clients in memory, a disk that answers late, and crashes; what was promised is checked after each.

    python -m tests.property.node_crash --seconds 60            random seeds until the time is over
    python -m tests.property.node_crash --seed 7                the same life once more

What must hold: `node_crash_books`. The clients: `node_crash_clients`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from typing import Any

from clusterbroker.broker.node import core
from clusterbroker.broker.queues.attributes import RETRY
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.property.node_crash_books import ADDRESSES, EXCHANGES, KINDS, Books, Published
from tests.property.node_crash_clients import Consumer, Mover, Publisher
from tests.unit.broker.fronts.amqp091.harness import World


class SlowWorld(World):
    """Tells the books when groups begin and become durable."""

    def __init__(self, books: Books, **options: Any) -> None:
        self.books = books
        super().__init__(segment_bytes=12 << 10, **options)
        self.disk_waits = True

    def _persist(self) -> None:
        assert self.journal is not None
        before = self.journal.end.lsn
        super()._persist()
        if self.journal.end.lsn > before:
            self.books.group_began({queue.name for queue in self.node.writes})

    def complete(self) -> None:
        assert self.journal is not None
        super().complete()
        if not self.journal.unsynced:
            self.books.group_durable()


class Simulation:
    """One seed's life."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.books = Books()
        few = {"group_bytes_max": 100 + seed % 2000} if seed % 2 else {}  # groups that are full with a message or two
        self.world = SlowWorld(self.books, unwritten_bytes_max=rng.choice((64 << 20, 6000)), **few)
        self.resident_bytes = rng.choice((0, 1500, 8 << 20))
        self.reads_wait = rng.random() < 0.5
        self.busy = rng.choice((0.05, 0.2, 0.5, 0.8))
        self.addresses = rng.sample(sorted(ADDRESSES), rng.randint(3, len(ADDRESSES)))
        if ("", "take") not in self.addresses:
            self.addresses.append(("", "take"))
        self.people: list[Any] = []
        self._names = 0
        self._numbers: dict[str, int] = defaultdict(int)
        client = self.world.client()
        self.world.disk_waits = False
        for name, kind in KINDS.items():
            client.ask(m.QueueDeclare(queue=name, durable=True, arguments=kind.arguments))
        for name, queues in EXCHANGES.items():
            client.ask(m.ExchangeDeclare(exchange=name, type="fanout", durable=True))
            for queue in queues:
                client.ask(m.QueueBind(queue=queue, exchange=name))
        client.leave()
        self.world.disk_waits = True
        self._page_early()

    def _page_early(self) -> None:
        for queue in self.world.node.queues.values():
            queue.ring.resident_bytes_max = self.resident_bytes

    def token(self, publisher: str, queues: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
        """A new token and the properties with which it is to be published."""
        rng = self.rng
        token = len(self.books.tokens) + 1
        number = self._numbers[publisher] = self._numbers[publisher] + 1
        properties: dict[str, Any] = {"priority": rng.choice((0, 0, 1, 2, 7)), "transient": rng.random() < 0.15}
        if queues == ("work",) and rng.random() < 0.3:
            properties["expiration"] = str(rng.choice((0, 30, 100)))
        published = Published(publisher, number, queues, properties["priority"], not properties["transient"])
        self.books.tokens[token] = published
        return token, properties

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.finish()

    def step(self) -> None:
        rng, world, journal = self.rng, self.world, self.world.journal
        assert journal is not None
        if len(self.people) < 7:
            self._names += 1
            kind = rng.choice((Publisher, Publisher, Consumer, Consumer, Mover))
            self.people.append(kind(self, f"{kind.__name__.lower()}{self._names}"))
        choice = rng.random()
        if choice < 0.5:
            self._someone_acts()
        elif choice < 0.5 + 0.35 * self.busy:
            if not journal.idle:
                world.complete()
        elif choice < 0.86:
            world.answer_reads()
        elif choice < 0.91:
            self._upkeep()
        elif choice < 0.96:
            world.wait(rng.choice((1, 5, 12, 40)))
        elif choice < 0.978:
            self._someone_leaves()
        elif choice < 0.985:
            self.settle()
        elif choice < 0.993:
            self.crash()
        world.reads_wait = self.reads_wait
        world.turn()
        self.hear()

    def _someone_acts(self) -> None:
        someone = self.rng.choice(self.people)
        if isinstance(someone, Publisher):
            someone.publish()
        elif isinstance(someone, Mover):
            for _ in range(self.rng.randint(1, 3)):
                someone.move()
        else:
            self.rng.choice((someone.consume, someone.get, someone.decide, someone.decide, someone.decide))()

    def _someone_leaves(self) -> None:
        someone = self.people.pop(self.rng.randrange(len(self.people)))
        someone.client.leave()

    def _upkeep(self) -> None:
        journal = self.world.journal
        assert journal is not None
        if journal.checkpoint is not None:
            journal.complete_checkpoint()
            self.books.group_durable() if not journal.unsynced and journal.idle else None
        else:
            self.world.checkpoint_due = True
            self.books.counts["checkpoints"] += 1
        old = [number for number in journal.segments if number < journal.checkpointed.segment]
        if old and journal.checkpoint is None and self.rng.random() < 0.5:
            self.world.copy_forward(self.rng.choice(old))

    def hear(self) -> None:
        for someone in self.people:
            someone.hear()
            assert someone.client.ended is None, f"{someone.name}: {someone.client.ended} {self.world.story.cuts}"
        assert not self.world.story.faults, self.world.story.faults

    def settle(self) -> None:
        """The disk answers all; then nobody waits for a confirm or a commit."""
        world = self.world
        world.disk_waits = world.reads_wait = False
        world.wait(40)
        world.turn()
        self.hear()
        world.disk_waits = True
        for someone in self.people:
            if isinstance(someone, Publisher):
                assert not someone.outstanding, f"(f) {someone.name} still waits for {someone.outstanding}"
            if isinstance(someone, Mover):
                assert someone.committing is None, f"{someone.name} still waits for commit-ok"

    def crash(self) -> None:
        journal = self.world.journal
        assert journal is not None
        self.hear()
        kept = self.rng.randint(0, journal.unsynced)
        if kept == journal.unsynced:
            self.books.group_durable()
        self.people.clear()
        self.world.crash(kept)
        self._page_early()
        self.books.counts["crashes"] += 1
        self.books.check(self._recovered(), crashed=True)

    def _recovered(self) -> dict[str, list[int]]:
        """What the queues hold before anybody has asked."""
        journal = self.world.journal
        assert journal is not None
        contents = {}
        for name in KINDS:
            ring = self.world.queue(name).ring
            waiting = [seq for seq, _ in RETRY.of(ring.attributes)]
            assert ring.unacked == len(waiting), f"(g) of {name} nobody holds anything but what returns later"
            locations = [*ring.missing()]
            assert len(locations) == ring.ready, f"(g) {name} counts {ring.ready} and holds {len(locations)}"
            messages = journal.read(ring.queue_id, [*locations, *map(ring.location, waiting)])
            contents[name] = [int(message.body.partition(b":")[0]) for message in messages]
        return contents

    def finish(self) -> None:
        """Everybody leaves; one last consumer drains the queues."""
        self.settle()
        while self.people:
            self.people.pop().client.leave()
            self.hear()  # what was returned may have gone to those who are still there
        self.world.disk_waits = self.world.reads_wait = False
        self.world.wait(2000)
        client = self.world.client()
        contents: dict[str, list[int]] = {name: [] for name in KINDS}
        for name in KINDS:
            heard = client.say(m.BasicConsume(queue=name, consumer_tag=name))[1:]
            while heard:
                for said in heard:
                    token = int(said.body.partition(b":")[0])
                    self.books.delivered(token, name, said.method.redelivered, f"last/{name}")
                    contents[name].append(token)
                heard = client.hear()
        self.books.check(contents, crashed=False)
        client.say(m.BasicAck(0, True))
        client.leave()
        self.world.wait(2000)
        journal = self.world.journal
        assert journal is not None
        for queue in self.world.node.queues.values():
            ring = queue.ring
            left = ring.ready, ring.unacked, ring.ready_bytes, ring.resident_bytes
            assert left == (0, 0, 0, 0), f"(g) {queue.name} is empty, and counts {left}"
        live = {number: journal.use.live(number) for number in journal.segments}
        assert not any(live.values()), f"(g) nothing lives, and yet {live}"


def live(seed: int, steps: int = 400) -> Counter[str]:
    """One life; what was counted in it. An AssertionError ends with the command that repeats it."""
    patience = core.PATIENCE_BYTES_PER_MS
    core.PATIENCE_BYTES_PER_MS = 0 if seed % 3 == 0 else patience
    try:
        simulation = Simulation(seed)
        simulation.run(steps)
    except Exception as error:
        error.add_note(f"again: python -m tests.property.node_crash --seed {seed} --steps {steps}")
        raise
    finally:
        core.PATIENCE_BYTES_PER_MS = patience
    simulation.books.counts["lives"] += 1
    return simulation.books.counts


def live_for(seconds: float, seed: int, steps: int = 400) -> Counter[str]:
    """Lives of seeds from `seed` on until the time is over; at least one."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while not counts or time.monotonic() < end:
        counts += live(seed, steps)
        seed += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, help="from this one on, for --seconds")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.seed is not None:
        counts = live(options.seed, options.steps)
    else:
        seed = options.first if options.first is not None else random.SystemRandom().randrange(1 << 32)
        sys.stdout.write(f"seeds from {seed} on\n")
        counts = live_for(options.seconds, seed, options.steps)
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
