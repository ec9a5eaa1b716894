"""A simulated reader of a queue by leases: it takes a range, reads it more than once, and settles what it has read.

It has a name, and a run at a time; what it was told survives its connections, and a word without an answer is said
again. Now and then another run takes the lease over, one that was replaced speaks and must be refused, whoever owns the
queue by then, or the lease is given back and some messages are taken as anybody takes them. What it reads is looked at
when it is written (`checkers.leasing`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterbroker.broker.queues.leasing import REPLACED_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.record import read_records
from tests.simulation.checkers.history import Violation
from tests.simulation.clients import Actor
from tests.simulation.sockets import Socket, properties_of
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World

REPLY_TO = "amq.rabbitmq.reply-to"
READING = 2
"""The channel of what is read; words and answers go by the first one."""
NAME = "batches"
AGAIN_S = 0.3


class Range(NamedTuple):
    """What is leased: messages `start` to before `end`, of which `rows` live."""

    start: int
    end: int
    rows: int


def records_of(said: Content) -> list[tuple[int, bytes]]:
    """(seq, body) of what a delivery of a lease holds: one message, or a part of the range."""
    headers = properties_of(said).headers or {}
    if "x-stream-count" not in headers:
        seq: Any = headers["x-queue-seq"]
        return [(seq, said.body)]
    found = [(seq, message.body) for seq, message, _, _ in read_records(said.body)]
    assert len(found) == headers["x-stream-count"], "a part holds what it says"
    return found


class LeaseReader(Actor):
    """`leased`: what it was told last; None: it has no lease, or does not know. `reads`: the part that it reads now,
    and `found` what came of it."""

    channels = 2

    def __init__(self, world: World, name: str, queue: str) -> None:
        self.queue = queue
        self.leased: Range | None = None
        self.reads: tuple[int, int] | None = None
        self.found: list[tuple[int, bytes]] = []
        self.settled = 0  # all below has been settled by its word
        self._runs = 1
        self._took: list[int] = []
        """The runs that were told of the present lease, in their order: all but the last one are replaced."""
        self._word: dict[str, Any] = {}  # said until it is answered
        self._key = ""
        self._said = ""  # the word, as it is published
        self._numbers = 0
        self._flight = False
        self._gets = 0
        self._whole = False  # all of the range has been read
        self.unheard = 0
        """A run before has said that all below is settled, and did not hear whether it is; 0: there is no such word."""
        self._due_s = 0.0
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return "an answer to its lease" if self._flight or self._key else ""

    def queue_of(self, method: Any) -> str | None:
        return self.queue if isinstance(method, m.BasicGetOk) else None

    def opened(self, socket: Socket) -> None:
        socket.say(m.BasicConsume(queue=REPLY_TO, consumer_tag="answers", no_ack=True))
        socket.say(m.BasicQos(prefetch_count=self.rng.choice((1, 3, 50))), channel=READING)
        if self.rng.random() < 0.2 and self._key != "release":
            self._take_over()
        self.after(0.1, self._go, socket)

    def ended(self) -> None:
        self._flight = False
        self._gets = 0
        self.reads = None

    def _take_over(self) -> None:
        """Another process has the reader's name."""
        self.world.schedule.counts["lease runs"] += 1
        self._runs += 1
        if self._key != "zombie":
            self.unheard = max(self.unheard, self._word.get("upto") or 0, self._word.get("from") or 0)
        self._key, self._word = "", {}

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket:
            return
        pace_s = 0.02 if self.world.quiet else self.world.pace_s
        self.after(self.rng.expovariate(1 / pace_s), self._go, socket)
        if not self._flight and self.world.schedule.now_s >= self._due_s:
            self._next(socket)

    def _next(self, socket: Socket) -> None:
        chance = 1.0 if self.world.quiet else self.rng.random()
        if not self._key and chance < 0.1 and self.rng.random() < 0.5:
            self._take_over()
        if self._key:
            self._say(socket)
        elif self._gets:
            self._flight = True
            socket.say(m.BasicGet(queue=self.queue), channel=READING)
        elif self.leased is None or self.unheard or self._took[-1] != self._runs:
            # who does not know what became of a word, or has not taken the lease over yet, asks what there is
            self._ask(socket, "take", rows_max=self._rows_max)
        elif chance < 0.05:
            self._ask(socket, "release")
        elif chance < 0.25 and self._replaced:
            self._ask(socket, "zombie")
        elif self.leased.rows and (not self._whole or chance < 0.3):
            self._read(socket)
        elif chance < 0.5 and self._whole:
            self._done()
            self._ask(socket, "settle", upto=self.leased.end)
        elif self._whole or not self.leased.rows:
            self._done()
            self._ask(socket, "take", **{"from": self.leased.end, "rows_max": self._rows_max})
        else:
            self._ask(socket, "take", rows_max=self._rows_max)

    @property
    def _rows_max(self) -> int:
        return 100 if self.world.quiet else self.rng.choice((1, 4, 10, 30))

    def _done(self) -> None:
        """Everything that it has read is carried out: it may leave the queue."""
        assert self.leased is not None, "something was read"
        self.world.checkers.lease_done(self.queue, self.leased.end)
        self.settled = max(self.settled, self.leased.end)

    # -- words

    @property
    def _replaced(self) -> list[int]:
        """Runs that must be refused: those that the owner remembers, whoever it is."""
        return [run for run in self._took[:-1] if run >= self._runs - REPLACED_MAX]

    def _ask(self, socket: Socket, key: str, **fields: Any) -> None:
        """`zombie`: a run that was replaced has something to say."""
        run = self._runs
        self._key = self._said = key
        if key == "zombie":
            run, self._said = self.rng.choice(self._replaced), self.rng.choice(("take", "settle", "release"))
            assert self.leased is not None, "it is told something else then"
            fields = {"upto": self.leased.end} if self._said == "settle" else {}
        self._word = {"queue": self.queue, "name": NAME, "run": f"r{run}", **fields}
        self._say(socket)

    def _say(self, socket: Socket) -> None:
        self._flight = True
        self._numbers += 1
        raw = json.dumps(self._word).encode()
        socket.send(socket.content("amq.lease", self._said, raw, reply_to=REPLY_TO, correlation_id=str(self._numbers)))

    def content(self, said: Content) -> None:
        if isinstance(said.method, m.BasicGetOk):
            self._got(said)
        elif said.method.consumer_tag != "answers":
            self._came(said)
        elif properties_of(said).correlation_id == str(self._numbers):
            self._flight = False
            self._answered(json.loads(said.body))

    def _answered(self, told: dict[str, Any]) -> None:
        key, word = self._key, self._word
        outcome, code = told["outcome"], told.get("code", 0)
        self.world.schedule.counts[f"{key} {outcome} {code or ''}".strip()] += 1
        if code == 503:
            return  # said again
        self._key, self._word = "", {}
        if key == "zombie":
            if code != 409:
                raise Violation(f"leases: of {self.name} {self._took} took the lease, and {word} is told {told}")
            self.world.schedule.counts["lease zombies"] += 1
        elif outcome == "leased":
            self._told(word, told)
        elif outcome == "settled" and key == "settle":
            assert self.leased is not None, "it is settled what was leased"
            if told["acknowledged"] < word["upto"]:
                raise Violation(f"leases: {self.name} settles up to {word['upto']} and is told {told['acknowledged']}")
            self.leased, self._whole = Range(self.leased.end, self.leased.end, 0), True
        elif outcome == "released":
            self.leased, self._whole, self._took = None, False, []
            self._gets = self.rng.choice((0, 1, 3))
        elif code == 406 and self.leased is None:
            self._due_s = self.world.schedule.now_s + AGAIN_S  # somebody holds a message still
        else:
            raise Violation(f"leases: {self.name} has {self.leased} and is told {told}")

    def _told(self, word: dict[str, Any], told: dict[str, Any]) -> None:
        before, now = self.leased, Range(told["start"], told["end"], told["rows"])
        self.world.checkers.lease_told(self, now, word)
        self._whole = self._whole and before is not None and now.end == before.end
        self.leased, self.unheard = now, 0
        if self._runs not in self._took:
            self._took.append(self._runs)

    # -- reading

    def _read(self, socket: Socket) -> None:
        """All of the range, or a part of it."""
        assert self.leased is not None, "it is read what is leased"
        first, end = self.leased.start, self.leased.end
        if self._whole and self.rng.random() < 0.5:
            first = self.rng.randrange(first, end)
            end = self.rng.randrange(first, end) + 1
        self.reads, self.found = (first, end), []
        words = {"x-lease": NAME, "x-stream-offset": first, "x-stream-end": end}
        if self.rng.random() < 0.3:
            words["x-stream-chunks"] = True
        self._flight = True
        self._numbers += 1
        consume = m.BasicConsume(queue=self.queue, consumer_tag=f"read{self._numbers}", arguments=words)
        socket.say(consume, channel=READING)

    def handed(self, socket: Socket, channel: int, said: Content) -> None:
        if channel == READING and not isinstance(said.method, m.BasicGetOk):
            for seq, body in records_of(said):
                self.world.checkers.lease_read(self, seq, body)

    def _came(self, said: Content) -> None:
        self.found += records_of(said)
        if self.socket is not None:
            self.socket.say(m.BasicAck(said.method.delivery_tag), channel=READING)

    def method(self, channel: int, said: Any) -> None:
        if channel == READING and isinstance(said, m.BasicCancel) and self.reads is not None:
            (first, end), self.reads, self._flight = self.reads, None, False
            self.world.checkers.lease_was_read(self, first, end, [seq for seq, _ in self.found])
            assert self.leased is not None, "it has been read"
            self._whole = self._whole or (first, end) == self.leased[:2]
        elif isinstance(said, m.BasicGetEmpty):
            self._flight = False
            self._gets = 0

    def closed(self, said: Any) -> None:
        if isinstance(said, m.ChannelClose) and self.reads is not None and said.reply_code != 404:
            raise Violation(f"leases: {self.name} reads {self.reads} of {self.leased}: {said.reply_text}")

    # -- as anybody

    def _got(self, said: Content) -> None:
        self._flight = False
        self._gets -= 1
        if self.socket is not None:
            self.world.checkers.released(self.socket, self.queue, said.body, True)
            self.socket.say(m.BasicAck(said.method.delivery_tag), channel=READING)
