"""A node and its clients in memory, a disk that answers late, and crashes; what was promised is checked after each.

    python -m tests.property.node_crash --seconds 60            random seeds until the time is over
    python -m tests.property.node_crash --seed 7                the same life once more

Every message carries a token. `Books` writes down what clients said and heard, and what follows from it for each
copy (token, queue) of a message:

    (a) a confirmed persistent message is in its queue, or where its queue's rules took it, or was acknowledged
    (b) it is never handed out twice as if for the first time
    (c) a token taken from one queue and put into another in one transaction is in exactly one of them
    (d) first deliveries keep the order of their publisher, per consumer and priority
    (e) a message whose settlement became durable never comes back
    (f) each publish is confirmed once, and none is forgotten
    (g) what a queue counts is what it holds, and an empty node holds no bytes of any segment
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from clusterbroker.broker.node import core
from clusterbroker.broker.queues.attributes import RETRY
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Content, World

Key = tuple[int, str]  # token, queue


class Kind(NamedTuple):
    """A queue of the simulation."""

    arguments: dict[str, Any]
    heir: str | None = None
    """Where its rules, or a transaction, may take a message."""
    drops: bool = False
    """Its rules may take a message away altogether."""
    priorities: int = 0


def _dying(heir: str, **arguments: Any) -> Kind:
    return Kind({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": heir, **_x(arguments)}, heir)


def _x(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


KINDS: dict[str, Kind] = {
    "plain": Kind({}),
    "wide": Kind({}),
    "prio": Kind(_x({"max_priority": 3}), priorities=3),
    "lax": Kind(_x({"durability": "disk"}), drops=True),
    "drop": Kind(_x({"max_length": 5}), drops=True),
    "refuse": Kind(_x({"max_length": 5, "overflow": "reject-publish"})),
    "refuse-dlx": _dying("refuse-dlx.dead", max_length=4, overflow="reject-publish-dlx"),
    "short": _dying("short.dead", max_length=5),
    "ttl": _dying("ttl.dead", message_ttl=60),
    "work": _dying("work.dead", delivery_limit=2),
    "quorum": Kind(_x({"queue_type": "quorum", "delivery_limit": -1}), priorities=31),
    "retry": Kind(
        _x({"queue_type": "quorum", "delivery_limit": -1, "delayed_retry_type": "all", "delayed_retry_min": 20}),
        priorities=31,
    ),
    "sac": Kind(_x({"single_active_consumer": True})),
    "take": Kind({}, heir="put"),
    "put": Kind({}),
    "short.dead": Kind({}),
    "ttl.dead": Kind({}),
    "work.dead": Kind({}),
    "refuse-dlx.dead": Kind({}),
}
HEIRS = {name: kind.heir for name, kind in KINDS.items() if kind.heir is not None}
SOURCES = {heir: name for name, heir in HEIRS.items()}
EXCHANGES = {"all": ("plain", "wide", "prio"), "mixed": ("refuse", "plain", "short"), "lazy": ("lax", "wide")}
ADDRESSES: dict[tuple[str, str], tuple[str, ...]] = {
    **{(name, ""): queues for name, queues in EXCHANGES.items()},
    **{("", name): (name,) for name in KINDS if name not in SOURCES},
}


class Published(NamedTuple):
    """What is known of a token."""

    publisher: str
    number: int
    queues: tuple[str, ...]
    priority: int
    persistent: bool


class Books:
    """What clients said and heard, and what follows from it."""

    def __init__(self) -> None:
        self.tokens: dict[int, Published] = {}
        self.safe: set[Key] = set()
        """Copies that must not be missing."""
        self.acked: set[Key] = set()
        self.durable: set[Key] = set()
        """Copies whose settlement is durable."""
        self.handed: set[Key] = set()
        self.moved: set[int] = set()
        """Tokens whose transaction was answered by commit-ok."""
        self.moving: set[int] = set()
        """Tokens in a tx.commit that was sent."""
        self.open: set[Key] = set()
        """Acknowledged after the last group began."""
        self.in_flight: set[Key] = set()
        self.first: dict[tuple[str, str, int], int] = {}
        self.counts: Counter[str] = Counter()

    # -- what happens

    def confirmed(self, token: int) -> None:
        published = self.tokens[token]
        self.counts["confirms"] += 1
        if published.persistent:
            self.safe |= {(token, queue) for queue in published.queues}

    def delivered(self, token: int, queue: str, redelivered: bool, consumer: str) -> None:
        key = token, queue
        self.counts["redeliveries" if redelivered else "deliveries"] += 1
        self._belongs(token, queue)
        assert key not in self.durable, f"(e) {key} was durably settled and is delivered again"
        if not redelivered:
            assert key not in self.handed, f"(b) {key} is handed out twice as if for the first time"
            if queue not in SOURCES:
                published = self.tokens[token]
                line = consumer, published.publisher, min(published.priority, KINDS[queue].priorities)
                assert self.first.get(line, -1) < published.number, f"(d) {key} overtook another in {line}"
                self.first[line] = published.number
        self.handed.add(key)

    def _belongs(self, token: int, queue: str) -> None:
        published = self.tokens.get(token)
        assert published is not None, f"nobody published {token}"
        source = SOURCES.get(queue)
        if source == "take":
            assert token in self.moving or token in self.moved, f"(c) {token} is in {queue} without a commit"
        elif source is not None:
            assert source in published.queues, f"{token} in {queue}, but it was published to {published.queues}"
        else:
            assert queue in published.queues, f"{token} in {queue}, but it was published to {published.queues}"

    def ack(self, key: Key) -> None:
        self.counts["acks"] += 1
        self.acked.add(key)
        self.open.add(key)

    def group_began(self, left: set[str]) -> None:
        """Without all that these queues had to write: it was full."""
        waits = {key for key in self.open if key[1] in left}
        self.in_flight, self.open = self.in_flight | self.open - waits, waits

    def group_durable(self) -> None:
        self.durable |= self.in_flight
        self.in_flight = set()

    def committed(self, tokens: list[int]) -> None:
        """tx.commit-ok: taken from "take" and put into "put"."""
        self.counts["transactions"] += 1
        for token in tokens:
            self.moved.add(token)
            self.durable.add((token, "take"))
            self.safe.discard((token, "take"))
            if self.tokens[token].persistent:
                self.safe.add((token, "put"))

    # -- what must hold

    def check(self, contents: dict[str, list[int]], crashed: bool) -> None:
        """`contents`: all that is in the queues while nobody holds anything."""
        present: set[Key] = set()
        for queue, tokens in contents.items():
            twice = [token for token, count in Counter(tokens).items() if count > 1]
            assert not twice, f"{twice} are twice in {queue}"
            for token in tokens:
                self._belongs(token, queue)
                present.add((token, queue))
        back = present & self.durable
        assert not back, f"(e) durably settled, and back: {sorted(back)}"
        for token, queue in present:
            heir = HEIRS.get(queue)
            if heir is None:
                continue
            assert (token, heir) not in present, f"(c) {token} is in {queue} and in {heir}"
            assert (token, heir) not in self.durable, f"(e) {token} was settled in {heir}, and is back in {queue}"
            if queue == "take":
                assert token not in self.moved, f"(c) {token} was moved by a committed transaction, and is back"
        missing = [key for key in sorted(self.safe) if not self._accounted(key, present)]
        assert not missing, f"(a) missing: {missing}"
        if crashed:
            self._after_crash(present)

    def _accounted(self, key: Key, present: set[Key]) -> bool:
        token, queue = key
        heir = HEIRS.get(queue)
        return (
            key in present
            or key in self.acked
            or KINDS[queue].drops
            or (heir is not None and ((token, heir) in present or (token, heir) in self.acked))
        )

    def _after_crash(self, present: set[Key]) -> None:
        """What came back was not acknowledged after all; what survived once is safe from now on."""
        for key in present:
            token, queue = key
            heir = HEIRS.get(queue)
            if heir is not None:  # a death, or a transaction, that a crash undid: the next one is another message
                self.handed.discard((token, heir))
                self.acked.discard((token, heir))
                self.safe.discard((token, heir))
        self.durable |= self.acked - present
        self.acked -= present
        self.safe = {key for key in present if self.tokens[key[0]].persistent}
        # transient copies, and those that were never confirmed, may be gone; a copy that had moved on may be new again
        self.handed = {
            key
            for key in self.handed
            if (key[1] not in SOURCES and key[1] != "lax")
            or (key in present and key[1] != "lax")
            or key in self.durable
        }
        self.open.clear()
        self.in_flight.clear()
        self.moved |= {token for token in self.moving if (token, "put") in present}
        self.moving.clear()
        self.first.clear()


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


class Publisher:
    """Publishes with confirms."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client()
        assert self.client.ask(m.ConfirmSelect()) == m.ConfirmSelectOk()
        self.next = 1
        self.outstanding: dict[int, int] = {}
        self.returned: list[int] = []

    def publish(self) -> None:
        rng = self.simulation.rng
        out = b""
        for _ in range(rng.randint(1, 3)):
            address = rng.choice(self.simulation.addresses)
            for _ in range(rng.choice((1, 1, 2, 6))):
                token, properties = self.simulation.token(self.name, ADDRESSES[address])
                self.outstanding[self.next] = token
                self.next += 1
                padding = bytes(rng.choice((0, 0, 40, 900)))
                out += self.client.content(*address, b"%d:" % token + padding, **properties)
        self.client.raw(out)
        self.simulation.world.turn()

    def hear(self) -> None:
        for said in self.client.hear():
            assert isinstance(said, m.BasicAck | m.BasicNack), said
            tag = said.delivery_tag
            assert tag in self.outstanding, f"(f) {said}, but {tag} does not wait for an answer"
            tags = [known for known in self.outstanding if known <= tag] if said.multiple else [tag]
            for known in tags:
                token = self.outstanding.pop(known)
                if isinstance(said, m.BasicAck):
                    self.simulation.books.confirmed(token)
                else:
                    self.simulation.books.counts["nacks"] += 1


class Consumer:
    """Consumes on channel 1, gets on channel 2, and holds what it was given until it decides."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client(channels=2)
        self.held: dict[int, dict[int, Key]] = {1: {}, 2: {}}
        self.no_ack: set[str] = set()
        self.queues: set[str] = set()
        self.getting: tuple[str, bool] | None = None
        prefetch = simulation.rng.choice((0, 1, 3, 10))
        self.client.ask(m.BasicQos(0, prefetch, False))

    def consume(self) -> None:
        rng = self.simulation.rng
        queue = rng.choice([name for name in KINDS if name != "take"])
        if queue in self.queues:
            if rng.random() < 0.5:
                self.client.raw_method(1, m.BasicCancel(queue))
                self.queues.discard(queue)
            return
        no_ack = rng.random() < 0.15
        self.queues.add(queue)
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        arguments = {"x-priority": rng.choice((0, 0, 5))}
        self.client.raw_method(1, m.BasicConsume(queue=queue, consumer_tag=queue, no_ack=no_ack, arguments=arguments))

    def get(self) -> None:
        if self.getting is None:
            rng = self.simulation.rng
            self.getting = rng.choice([name for name in KINDS if name != "take"]), rng.random() < 0.2
            self.client.raw_method(2, m.BasicGet(queue=self.getting[0], no_ack=self.getting[1]))

    def decide(self) -> None:
        """Acknowledges, returns or rejects something that it holds."""
        rng = self.simulation.rng
        channel = 2 if rng.random() < 0.3 and self.getting is None else 1
        held = self.held[channel]
        if not held:
            return
        tag = rng.choice(list(held))
        multiple = rng.random() < 0.4
        tags = [known for known in held if known <= tag] if multiple else [tag]
        what = rng.choice(("ack", "ack", "ack", "nack", "requeue", "reject", "return", "recover"))
        keys = [held[known] for known in tags]
        if what in ("nack", "reject") and any(key[1] not in HEIRS for key in keys):
            what = "ack"
        if what == "recover":
            self.client.raw_method(channel, m.BasicRecover(True))
            held.clear()
            return
        if what in ("reject", "return"):
            tags, multiple = [tag], False
        if what == "ack":
            for known in tags:
                self.simulation.books.ack(held[known])
            self.client.raw_method(channel, m.BasicAck(tag, multiple))
        elif what in ("nack", "requeue"):
            self.client.raw_method(channel, m.BasicNack(tag, multiple, what == "requeue"))
        else:
            self.client.raw_method(channel, m.BasicReject(tag, what == "return"))
        for known in tags:
            del held[known]

    def hear(self) -> None:
        books = self.simulation.books
        for channel in (1, 2):
            for said in self.client.hear(channel):
                if isinstance(said, m.BasicGetEmpty):
                    self.getting = None
                if not isinstance(said, Content):
                    assert not isinstance(said, m.ChannelClose), said
                    continue
                token, method = int(said.body.partition(b":")[0]), said.method
                if isinstance(method, m.BasicGetOk):
                    assert self.getting is not None
                    (queue, no_ack), self.getting = self.getting, None
                else:
                    queue, no_ack = method.consumer_tag, method.consumer_tag in self.no_ack
                books.delivered(token, queue, method.redelivered, f"{self.name}/{channel}/{queue}")
                if no_ack:
                    books.ack((token, queue))
                else:
                    self.held[channel][method.delivery_tag] = token, queue


class Mover:
    """Takes from "take" and puts into "put", in transactions."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.client = simulation.world.client()
        self.client.ask(m.TxSelect())
        self.client.ask(m.BasicQos(0, 4, False))
        self.client.raw_method(1, m.BasicConsume(queue="take", consumer_tag="take"))
        self.held: dict[int, int] = {}
        self.staged: dict[int, int] = {}
        self.committing: list[int] | None = None

    def move(self) -> None:
        rng = self.simulation.rng
        if self.committing is not None:
            return
        choice = rng.random()
        if choice < 0.6 and self.held:
            tag = rng.choice(list(self.held))
            token = self.staged[tag] = self.held.pop(tag)
            mode = 2 if self.simulation.books.tokens[token].persistent else 1
            parts = [
                self.client.content("", "put", b"%d:" % token, delivery_mode=mode),
                self._frame(m.BasicAck(tag, False)),
            ]
            rng.shuffle(parts)
            self.client.raw(b"".join(parts))
        elif choice < 0.9 and self.staged:
            self.committing = list(self.staged.values())
            self.simulation.books.moving |= set(self.committing)
            self.staged.clear()
            self.client.raw_method(1, m.TxCommit())
        elif choice > 0.95 and self.staged:
            self.held |= self.staged
            self.staged.clear()
            self.client.raw_method(1, m.TxRollback())

    def _frame(self, method: Any) -> bytes:
        self.client._out.method(1, m.encode(method))
        return bytes(self.client._out.take())

    def hear(self) -> None:
        for said in self.client.hear():
            if isinstance(said, Content):
                token = int(said.body.partition(b":")[0])
                self.simulation.books.delivered(token, "take", said.method.redelivered, f"{self.name}/take")
                self.held[said.method.delivery_tag] = token
            elif isinstance(said, m.TxCommitOk):
                assert self.committing is not None
                self.simulation.books.committed(self.committing)
                self.committing = None
            else:
                assert not isinstance(said, m.ChannelClose), said


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
