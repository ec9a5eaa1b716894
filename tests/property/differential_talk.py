"""Three clients that talk by chance to one node and to a cluster alike; whatever they say, they hear the same.

They use a queue "q" of random arguments, and "d", where the dead letters of "q" go if it has any. Each queue has one
consumer at most, so who gets what is certain. After each step both brokers come to rest, and what each client heard is
compared: answers, deliveries with tags, flags and headers, and what was confirmed or refused. With faults the cluster
loses nodes and links and moves its queues between the steps, and clients must not notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.property.differential_sides import CLIENTS, SETTLE_MS, Difference, Heard, Side, compare
from tests.unit.broker.fronts.amqp091.harness import Client

DYING: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}
ARGUMENTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"x-max-length": 3},
    {"x-max-length": 3, "x-overflow": "reject-publish"},
    {"x-max-length": 2, "x-overflow": "reject-publish-dlx", **DYING},
    {"x-max-length": 4, "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once", **DYING},
    {"x-max-length": 3, **DYING},
    {"x-max-length-bytes": 20, **DYING},
    {"x-message-ttl": 5000},
    {"x-message-ttl": 5000, **DYING},
    {"x-message-ttl": 0, **DYING},
    {"x-max-priority": 4},
    {"x-single-active-consumer": True},
    {"x-delivery-limit": 2, **DYING},
    {"x-queue-type": "quorum", **DYING},
    DYING,
)
COUNTS_DELIVERIES: Final = ("x-delivery-limit", "x-queue-type")
"""What is lost with a node does not count there, what a client leaves behind does."""
FAULT_SHARE: Final = 0.3
LATER_MS: Final = 3000
"""After a fault, and now and then."""

DEEDS: Final = {
    "publish": 6, "get": 4, "take": 1, "consume": 2, "cancel": 1, "ack": 3, "nack": 3, "reject": 3, "end": 4,
    "count": 1, "purge": 1, "recover": 1, "later": 1, "close": 1, "leave": 1, "delete": 1,
}  # fmt: skip


class Talk:
    """One conversation. `story` tells it line by line."""

    def __init__(self, seed: int, faults: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.faults = faults
        self.arguments = rng.choice(ARGUMENTS)
        self.transient = not faults and rng.random() < 0.15
        self.modes = ("confirm", "none") if self._expires or rng.random() < 0.4 else ("confirm", "tx", "none")
        self.exact_letters = self._exact_letters()
        places = [rng.choice("abc") for _ in range(CLIENTS)]
        self.one, self.three = Side(places, three=False), Side(places, three=True)
        self.sides = self.one, self.three
        self.mode = [rng.choice(self.modes) for _ in range(CLIENTS)]
        self.held: list[list[int]] = [[] for _ in range(CLIENTS)]  # delivery tags
        self.staged: list[list[int]] = [[] for _ in range(CLIENTS)]  # of these, settled in a transaction that is open
        self.consumers: dict[str, int] = {}  # queue -> client
        self.closed: dict[int, bool] = {}  # client -> with its connection
        self.bodies = 0
        self.story = [
            f"seed {seed}, {'faults' if faults else 'calm'}: {self.arguments}{' transient' * self.transient}, "
            f"clients at {places}"
        ]
        for side in self.sides:
            side.clients[0].ask(m.QueueDeclare(queue="d", durable=True))
        self._declare()
        for number in range(CLIENTS):
            self._begin(number)
        if not self.transient:
            self._move("q", rng.choice("abc"))

    @property
    def _expires(self) -> bool:
        return "x-message-ttl" in self.arguments

    def _exact_letters(self) -> bool:
        """Whether the order of dead letters among themselves, and with what clients publish, is compared. If not, "d"
        is left alone until the end, when it holds the same letters at both."""
        if "x-dead-letter-exchange" not in self.arguments:
            return True
        return "tx" not in self.modes and not any(kind in self.arguments for kind in COUNTS_DELIVERIES)

    # -- both sides

    def both(self, line: str, said: Callable[[Client], list[Any]] | None = None, number: int = 0) -> Heard:
        """Says it to both, lets them come to rest and compares; returns what the client heard of one node."""
        self.story.append(line)
        at_once = [said(side.clients[number]) if said else [] for side in self.sides]
        for side in self.sides:
            side.wait(SETTLE_MS)
        mine = Heard([])
        for client in range(CLIENTS):
            one, three = (
                side.hear(client, at_once[at] if client == number else []) for at, side in enumerate(self.sides)
            )
            compare(client, one, three, self.faults)
            settled = [side.settled[client] for side in self.sides]
            if settled[0] != settled[1]:
                raise Difference(
                    f"publishes of client {client} (True: confirmed): one {settled[0]}, three {settled[1]}"
                )
            if client == number:
                mine = one
            self._note(client, one)
        return mine

    def _note(self, client: int, heard: Heard) -> None:
        for content in heard.contents:
            if isinstance(content.method, m.BasicDeliver | m.BasicGetOk):
                self.held[client].append(content.method.delivery_tag)
        if heard.channel_closed or heard.connection_closed:
            self.closed[client] = heard.connection_closed

    def _declare(self) -> None:
        for side in self.sides:
            side.clients[0].ask(m.QueueDeclare(queue="q", durable=not self.transient, arguments=self.arguments))

    def _begin(self, number: int) -> None:
        self.held[number], self.staged[number] = [], []
        for queue in [queue for queue, client in self.consumers.items() if client == number]:
            del self.consumers[queue]
        self.mode[number] = self.rng.choice(self.modes)
        for side in self.sides:
            side.begin(number, self.mode[number])

    def _reopen(self, number: int, gone: bool) -> None:
        """After its channel was closed, or with it its connection."""
        for side in self.sides:
            if gone:
                side.renew(number)
            else:
                side.clients[number].say(m.ChannelCloseOk())
                side.clients[number].ask(m.ChannelOpen())
            side.wait(SETTLE_MS)
        self._begin(number)
        self.both(f"  client {number} begins again, {self.mode[number]}")

    # -- faults

    def _move(self, queue: str, to: str) -> None:
        cluster = self.three.cluster
        assert cluster is not None
        entity = cluster.queue(queue)
        if entity.owner != to:
            cluster[entity.owner].node.role.hand_over(entity.queue_id, to)  # type: ignore[union-attr]
            cluster.turn()

    def _fault(self) -> None:
        cluster, rng = self.three.cluster, self.rng
        assert cluster is not None
        fault = rng.choice(("move", "move", "unlink", "kill"))
        if fault == "move":
            queue = rng.choice("qd")
            to = rng.choice(cluster.queue(queue).in_sync)
            self.story.append(f"### {queue} moves from {cluster.queue(queue).owner} to {to}")
            self._move(queue, to)
        elif fault == "unlink":
            pair = sorted(rng.sample("abc", 2))
            self.story.append(f"### the link of {pair} is reset")
            cluster.unlink(*pair)
            cluster.relink()
            cluster.turn()
        else:
            self._kill(rng.choice("abc"))
        for side in self.sides:
            side.wait(LATER_MS)
        self.both("  after it")

    def _kill(self, name: str) -> None:
        cluster = self.three.cluster
        assert cluster is not None
        lost = [number for number, place in enumerate(self.three.places) if place == name]
        holding = sum(bool(self.held[number] or self.staged[number]) for number in lost)
        if holding and any(kind in self.arguments for kind in COUNTS_DELIVERIES):
            return
        if holding > 1 and any(kind.startswith("x-max-length") for kind in self.arguments):
            return  # what they leave returns at once there, and one after the other here, and the oldest goes each time
        self.story.append(f"### {name} is killed, clients there: {lost}")
        for number in lost:
            self.one.clients[number].leave()
        cluster.kill(name)
        cluster.restart(name)
        for number in lost:
            self.one.renew(number, gone=True)
            self.three.renew(number, gone=True)
            self._begin(number)

    # -- deeds of a client

    def step(self) -> None:
        rng = self.rng
        for number, gone in tuple(self.closed.items()):
            del self.closed[number]
            self._reopen(number, gone)
        if self.faults and rng.random() < FAULT_SHARE:
            self._fault()
        number = rng.randrange(CLIENTS)
        queue = rng.choice("qqqd") if self.exact_letters else "q"
        deed = rng.choices(tuple(DEEDS), tuple(DEEDS.values()))[0]
        getattr(self, f"_{deed}")(number, queue)

    def _publish(self, number: int, queue: str) -> None:
        rng = self.rng
        bodies = [b"%d" % (self.bodies + at) for at in range(rng.randint(1, 3))]
        self.bodies += len(bodies)
        more: dict[str, Any] = {}
        if rng.random() < 0.3:
            more["priority"] = rng.randrange(6)
        if rng.random() < 0.1 and "tx" not in self.modes:
            more["expiration"] = rng.choice(("5000", "20000"))
        if rng.random() < 0.1:
            more["transient"] = True
        self.both(
            f"{number} publishes {bodies} to {queue} {more} ({self.mode[number]})",
            lambda client: client.publish("", queue, *bodies, **more),
            number,
        )

    def _get(self, number: int, queue: str) -> None:
        self.both(f"{number} gets of {queue}", lambda client: client.say(m.BasicGet(queue=queue)), number)

    def _take(self, number: int, queue: str) -> None:
        heard = self.both(
            f"{number} takes of {queue}", lambda client: client.say(m.BasicGet(queue=queue, no_ack=True)), number
        )
        for content in heard.contents:
            if isinstance(content.method, m.BasicGetOk):
                self.held[number].remove(content.method.delivery_tag)

    def _consume(self, number: int, queue: str) -> None:
        if queue not in self.consumers and number not in self.consumers.values():
            self.consumers[queue] = number
            consume = m.BasicConsume(queue=queue, consumer_tag=queue)
            self.both(f"{number} consumes {queue}", lambda client: client.say(consume), number)

    def _cancel(self, _: int, queue: str) -> None:
        if queue in self.consumers:
            number = self.consumers.pop(queue)
            self.both(f"{number} cancels {queue}", lambda client: client.say(m.BasicCancel(queue)), number)

    def _ack(self, number: int, _: str) -> None:
        self._settle(number, "acks", lambda tag, multiple, _: m.BasicAck(tag, multiple))

    def _nack(self, number: int, _: str) -> None:
        self._settle(number, "nacks", m.BasicNack)

    def _reject(self, number: int, _: str) -> None:
        self._settle(number, "rejects", lambda tag, _, requeue: m.BasicReject(tag, requeue), single=True)

    def _settle(self, number: int, does: str, said: Callable[[int, bool, bool], Any], single: bool = False) -> None:
        if not self.held[number]:
            return
        tag = self.rng.choice(self.held[number])
        requeue = self.rng.random() < 0.6
        alone = single or (not requeue and "x-dead-letter-exchange" in self.arguments and self.exact_letters)
        multiple = not alone and self.rng.random() < 0.3
        hit = [held for held in self.held[number] if held == tag or (multiple and held < tag)]
        self.held[number] = [held for held in self.held[number] if held not in hit]
        if self.mode[number] == "tx":
            self.staged[number] += hit
        self.both(
            f"{number} {does} {tag}{' and before' * multiple}, requeue {requeue} ({self.mode[number]})",
            lambda client: client.say(said(tag, multiple, requeue)),
            number,
        )

    def _end(self, number: int, _: str) -> None:
        """Of a transaction."""
        if self.mode[number] != "tx":
            return
        staged, self.staged[number] = self.staged[number], []
        if self.rng.random() < 0.7:
            self.both(f"{number} commits", lambda client: client.say(m.TxCommit()), number)
        else:
            self.held[number] = sorted(self.held[number] + staged)
            self.both(f"{number} rolls back", lambda client: client.say(m.TxRollback()), number)

    def _count(self, number: int, queue: str) -> None:
        declare = m.QueueDeclare(queue=queue, passive=True)
        self.both(f"{number} counts {queue}", lambda client: client.say(declare), number)

    def _purge(self, number: int, queue: str) -> None:
        if self.rng.random() < 0.5:
            self.both(f"{number} purges {queue}", lambda client: client.say(m.QueuePurge(queue=queue)), number)

    def _recover(self, number: int, _: str) -> None:
        self.held[number] = []
        self.both(f"{number} recovers", lambda client: client.say(m.BasicRecover(True)), number)

    def _later(self, _: int, __: str) -> None:
        for side in self.sides:
            side.wait(LATER_MS)
        self.both(f"{LATER_MS} ms later")

    def _close(self, number: int, _: str) -> None:
        if self.rng.random() < 0.5:
            self.story.append(f"{number} closes its channel")
            for side in self.sides:
                side.clients[number].say(m.ChannelClose(200, "", 0, 0))
                side.wait(SETTLE_MS)
                side.clients[number].hear()
                side.clients[number].ask(m.ChannelOpen())
            self._begin(number)
            self.both(f"  and opens another, {self.mode[number]}")

    def _leave(self, number: int, _: str) -> None:
        if self.rng.random() < 0.5:
            self.story.append(f"{number} leaves")
            self._reopen(number, gone=True)

    def _delete(self, number: int, _: str) -> None:
        if self.rng.random() > 0.4:
            return
        unused, empty = self.rng.random() < 0.5, self.rng.random() < 0.5
        delete = m.QueueDelete(queue="q", if_unused=unused, if_empty=empty)
        self.both(
            f"{number} deletes q, if unused {unused}, if empty {empty}", lambda client: client.say(delete), number
        )
        if number not in self.closed:
            self.consumers.pop("q", None)
        for client, gone in tuple(self.closed.items()):
            del self.closed[client]
            self._reopen(client, gone)
        self._declare()
        for side in self.sides:
            side.wait(SETTLE_MS)

    # -- a whole one

    def run(self, steps: int = 60) -> None:
        for _ in range(steps):
            self.step()
        self.story.append("the end")
        for side in self.sides:
            side.wait(2 * LATER_MS)
        if not self.exact_letters:
            one, three = (side.drain("d") for side in self.sides)
            if one != three:
                raise Difference(f"dead letters: only of one node {one - three}, only of three {three - one}")
