"""Simulated producers of micro-batches: they stage rows in attempts, commit whole batches, and come again.

A batch has an epoch and some parts; each part is staged by an attempt of its own, in a segment of its own, until one
has all its rows confirmed. Then those that won are committed at once, and the commit is repeated until it is answered.
A producer that begins again has another run and does not know whether its last commit was carried out: it stages the
batch anew, with other rows, and one of the two counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.simulation.checkers.history import Violation
from tests.simulation.clients import Actor
from tests.simulation.publishers import Route
from tests.simulation.sockets import Socket, properties_of
from tests.unit.broker.fronts.amqp091.harness import Content

if TYPE_CHECKING:
    from tests.simulation.world import World

REPLY_TO = "amq.rabbitmq.reply-to"
ASKING = 2
"""The channel for questions and answers; rows go by the first one."""


class Row(NamedTuple):
    """Of a segment, and the queues that it goes to if that is committed."""

    segment: str
    producer: str
    epoch: int
    queues: tuple[str, ...]


class Commit(NamedTuple):
    """What a producer asks for."""

    epoch: int
    run: str
    names: tuple[str, ...]


class Batcher(Actor):
    """`routes`: targets of its segments, and the keys of their rows."""

    channels = 2

    def __init__(self, world: World, name: str, routes: list[Route]) -> None:
        self.routes = routes
        self.epoch = 0
        self._runs = 1
        self._attempts = 0
        self._parts = 1
        self._whole: dict[int, str] = {}  # the attempts that won
        self._commit: Commit | None = None  # asked until it is answered
        self._before: Commit | None = None  # the last one that was
        self._flight = ""  # what this connection is about
        self._segment = ""
        self._tags = self._asked = 0
        self._unheard: dict[int, bytes] = {}
        self._unwritten: dict[int, bytes] = {}
        self._rests_until_s = 0.0
        self._repeats = False  # when it has rested
        self.expires_ms = world.schedule.rng.choice((10_000, 3_600_000, 3_600_000))
        super().__init__(world, name)

    @property
    def waits(self) -> str:
        return self._flight or ("a commit" if self._commit is not None else "")

    @property
    def run(self) -> str:
        return f"r{self._runs}"

    def opened(self, socket: Socket) -> None:
        self._tags = 0
        socket.say(m.ConfirmSelect())
        socket.say(m.ConfirmSelect(), m.BasicConsume(queue=REPLY_TO, no_ack=True), channel=ASKING)
        if self.rng.random() < 0.15 and not self.world.quiet:
            self._begin_again()
        self.after(0.1, self._go, socket)

    def ended(self) -> None:
        self._flight = ""
        self._unheard.clear()
        self._unwritten.clear()

    def _begin_again(self) -> None:
        self.world.schedule.counts["runs"] += 1
        self._runs += 1
        self._whole.clear()
        if self._commit is not None:  # it may have been carried out, and then the one before is no "again" any more
            self._before = None
        self._commit = None

    def _go(self, socket: Socket) -> None:
        if self.socket is not socket:
            return
        self.after(self.rng.expovariate(1 / (2 * self.world.pace_s)), self._go, socket)
        if self._flight or self.blocked:
            return
        if self._commit is not None:
            self._ask("commit", self._commit)
        elif self.world.quiet or self.world.schedule.now_s < self._rests_until_s:
            return
        elif self._repeats and self._before is not None:
            self._repeats = False
            self._ask("again", self._before)
        elif self._before is not None and self.rng.random() < 0.05:
            self._ask("again", self._before)
        elif len(self._whole) == self._parts:
            names = tuple(name for _, name in sorted(self._whole.items()))
            self._commit = Commit(self.epoch, self.run, names)
        else:
            self._open(socket)

    def _rest(self) -> None:
        """It has nothing open, and is forgotten if its time is over: then it asks for the same again."""
        chance = self.world.clocks
        if chance is not None and chance.random() < 0.3:
            self._rests_until_s = self.world.schedule.now_s + chance.uniform(4, 10)
            self._repeats = True

    # -- attempts

    def _open(self, socket: Socket) -> None:
        """A new segment, now and then by a run that is over."""
        self._attempts += 1
        self._segment = f"txn.{self.name}.{self._attempts}"
        late = self._runs > 1 and self.rng.random() < 0.05
        words = {
            "x-producer": self.name, "x-epoch": self.epoch, "x-run": f"r{self._runs - late}",
            "x-target": self.routes[0][0], "x-expires": self.expires_ms,
        }  # fmt: skip
        self._flight = "a late segment" if late else "a segment"
        socket.say(m.ExchangeDeclare(exchange=self._segment, type="x-staging", durable=True, arguments=words))

    def _stage(self, socket: Socket) -> None:
        data = b""
        for number in range(1, self.rng.choice((1, 2, 5, 12)) + 1):
            _, key, _, queues = self.rng.choice(self.routes)
            body = b"%s.%d:%d" % (self.name.encode(), self._attempts, number)
            self._tags += 1
            self._unheard[self._tags] = self._unwritten[self._tags] = body
            history = self.world.checkers.history
            history.published.add(body)
            history.staged[body] = Row(self._segment, self.name, self.epoch, queues)
            self.world.schedule.counts["staged"] += 1
            data += socket.content(self._segment, key, body)
        socket.send(data)

    def confirms(self, channel: int, tag: int, multiple: bool) -> list[tuple[bytes, tuple[str, ...]]]:
        if channel == ASKING:
            return []
        tags = [one for one in self._unwritten if one == tag or (multiple and one < tag)]
        return [(self._unwritten.pop(one), (self._segment,)) for one in tags]

    def refused(self, channel: int, tag: int, multiple: bool) -> None:
        if channel != ASKING:
            self._unwritten.clear()  # the attempt has failed

    def method(self, channel: int, said: Any) -> None:
        if isinstance(said, m.ExchangeDeclareOk) and self.socket is not None:
            if self._flight == "a late segment":
                self._whole.clear()  # nobody had heard of this run: those of the other one are gone
            self._flight = "confirms"
            self._stage(self.socket)
        elif channel == ASKING or self._flight != "confirms":
            return
        elif isinstance(said, m.BasicNack):
            self._flight = ""
            self._unheard.clear()
        elif isinstance(said, m.BasicAck):
            for tag in [tag for tag in self._unheard if tag == said.delivery_tag or said.multiple]:
                if tag <= said.delivery_tag:
                    del self._unheard[tag]
            if not self._unheard:
                self._staged()

    def _staged(self) -> None:
        """The attempt is whole. Some are not wanted all the same: their tasks had been given up."""
        self._flight = ""
        chance = self.rng.random()
        if chance < 0.05:
            self._ask("abort", Commit(self.epoch, self.run, (self._segment,)))
        elif chance > 0.12:
            part = next(part for part in range(self._parts) if part not in self._whole)
            self._whole[part] = self._segment

    # -- commits

    def _ask(self, what: str, commit: Commit) -> None:
        assert self.socket is not None, "it is connected"
        self._flight = what
        self._asked += 1
        words = {"producer": self.name, "epoch": commit.epoch, "run": commit.run, "transactions": list(commit.names)}
        key = "abort" if what == "abort" else "commit"
        self.socket.send(
            self.socket.content(
                "amq.txn", key, json.dumps(words).encode(), ASKING, reply_to=REPLY_TO, correlation_id=str(self._asked)
            )
        )

    def content(self, said: Content) -> None:
        if properties_of(said).correlation_id != str(self._asked):
            return
        told = json.loads(said.body)
        what, self._flight = self._flight, ""
        outcome, code = told["outcome"], told.get("code", 0)
        self.world.schedule.counts[f"{what} {outcome} {code or ''}".strip()] += 1
        commit = self._commit
        if what == "commit" and commit is not None:
            if outcome in ("committed", "already"):
                self.world.checkers.batch_answered(self.name, commit.epoch, commit.names, outcome)
                self._before, self._commit = commit, None
                self._rest()
                self._whole.clear()
                self.epoch += 1
                self._parts = self.rng.choice((1, 2, 3))
            elif code != 503:  # its segments are gone: all of it is done again
                self._commit = None
                self._whole.clear()
                if "has committed epoch" in told["reason"]:
                    raise Violation(f"batches: {self.name} is told {told['reason']} of its newest epoch")
                if "was replaced by" in told["reason"]:
                    self._begin_again()
        elif what == "again" and outcome != "already" and code != 503:
            raise Violation(f"batches: {self.name} repeats a commit and is told {told}")
