"""A queue's owner among proxies that lose their links, die, attach at odd moments, and get new owners.

Checked at every hand-over (replication.md 9): a message is with one client at most (I9), one that comes unflagged has
never been handed out (I10), nobody gets what somebody holds (I11) or what is settled for good (I12), no publish is in
the queue twice (I7), and a client's failure at it counts once. What is refused and dies does so once. At the end, with
everybody well again: each confirmed message was handed out (I6), the refused never were, and nothing is left that
nobody can get (I18).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.remote.messages import (
    SETTLE_ACK,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Attach,
    Attached,
    AttachedQueue,
    Credit,
    Deliver,
    Detach,
    Publish,
    Published,
    Range,
    Settle,
    Settled,
    Settlement,
)
from clusterbroker.journal.record import read_records
from tests.budget import examples
from tests.unit.broker.remote.owner_support import EVERYBODY, QUEUE_ID, Stage, head, records


class Proxy:
    """One start of one node: its client holds what it is given until it decides."""

    def __init__(self, chaos: Chaos, node: str, incarnation: int) -> None:
        self.chaos = chaos
        self.node = node
        self.incarnation = incarnation
        self.gen = 0
        self.attached = False
        self.next_number = 1
        self.backlog: dict[int, bytes] = {}
        self.held: dict[int, tuple[bytes, int]] = {}
        self.settlements: list[Settlement] = []
        self.next_id = 1
        self.told = 0
        self.received = 0
        self.consumes = False
        self.inbox: list[tuple[Any, bytes]] = []
        self.outbox: list[tuple[Any, bytes]] = []

    @property
    def window(self) -> int:
        return self.received + 3

    def say(self, message: Any, payload: bytes = b"") -> None:
        self.outbox.append((message, payload))

    def attach(self, partial: bool) -> None:
        self.gen += 1
        self.attached = False
        self.received = 0
        stage = self.chaos.stage
        ranges: tuple[Range, ...] = tuple((seq, seq) for seq in sorted(self.held))
        entry = AttachedQueue(
            QUEUE_ID, stage.epoch, self.gen, (head(upto=3),) if self.consumes else (), ranges, tuple(self.settlements),
            self.next_number,
        )  # fmt: skip
        self.told = self.settlements[-1].id if self.settlements else 0
        self.say(Attach(self.incarnation, stage.index, (entry,), partial))

    def publish(self, body: bytes) -> None:
        self.backlog[self.next_number] = body
        self.next_number += 1
        if self.attached:
            self.send(self.next_number - 1)

    def send(self, number: int) -> None:
        data = records(number, [self.backlog[number]])
        part = (QUEUE_ID, self.chaos.stage.epoch, self.gen, number, 1, len(data))
        self.say(Publish((part,)), data)

    def settle(self, seq: int, outcome: int) -> None:
        _, count = self.held.pop(seq)
        if outcome == SETTLE_REQUEUE_COUNTED:
            self.chaos.counted[seq] += 1
        self.settlements.append(Settlement(self.next_id, outcome, ((seq, seq),), count))
        self.next_id += 1
        if self.attached:
            self.say(Settle(QUEUE_ID, self.chaos.stage.epoch, self.gen, (self.settlements[-1],)))

    def hear(self) -> None:
        message, payload = self.inbox.pop(0)
        if isinstance(message, Deliver):
            self.delivered(message, payload)
        elif message.gen != self.gen:
            return
        elif isinstance(message, Attached):
            self.attached = True
            for number in sorted(self.backlog):
                if number > message.accepted:
                    self.send(number)
            for settlement in self.settlements:
                if settlement.id > self.told:
                    self.say(Settle(QUEUE_ID, self.chaos.stage.epoch, self.gen, (settlement,)))
        elif isinstance(message, Published) and self.attached:
            for number in [number for number in self.backlog if number <= message.upto]:
                refused = any(first <= number <= last for first, last in message.refused)
                (self.chaos.refused if refused else self.chaos.confirmed).add(self.backlog.pop(number))
        elif isinstance(message, Settled):
            while self.settlements and self.settlements[0].id <= message.id:
                done = self.settlements.pop(0)
                if done.outcome == SETTLE_ACK:
                    self.chaos.settled.update(first for first, _ in done.ranges)
        elif isinstance(message, Detach):
            self.attach(partial=True)

    def delivered(self, message: Deliver, payload: bytes) -> None:
        for _, epoch, gen, _, size in message.parts:
            data, payload = payload[:size], payload[size:]
            if epoch != self.chaos.stage.epoch or gen != self.gen or not self.attached:
                continue
            for seq, got, count, redelivered in read_records(data):
                self.chaos.handed(seq, got.body, redelivered, count)
                self.held[seq] = got.body, count
                self.received += 1
                for place, one in enumerate(self.settlements):
                    if one.ranges == ((seq, seq),) and one.outcome != SETTLE_ACK:  # its return was carried out
                        self.settlements[place] = Settlement(one.id, one.outcome, (), one.count)


class Chaos:
    """The owner, its proxies, and all that clients saw."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits: dict[str, Any] = {}
        if seed % 3 != 1:
            limits = {"max_length": 5, "overflow": "reject-publish"}
        self.kills = seed % 3 == 2
        if self.kills:
            limits |= {"overflow": "reject-publish-dlx", "dead_letter_exchange": ""}
        self.stage = Stage(**limits)
        self.remote_queues = {node: Proxy(self, node, 1) for node in EVERYBODY}
        self.seen: dict[int, bytes] = {}
        self.bodies: dict[bytes, int] = {}
        self.settled: set[int] = set()
        self.counted: Counter[int] = Counter()
        """How often clients have failed at each message."""
        self.confirmed: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.dead: dict[bytes, int] = {}
        """The number under which each dead message came to its targets, who take a number once."""
        self.count = 0
        for proxy in self.remote_queues.values():
            proxy.consumes = True
            proxy.attach(partial=False)

    # -- what clients see

    def handed(self, seq: int, body: bytes, redelivered: bool, count: int) -> None:
        assert all(seq not in proxy.held for proxy in self.remote_queues.values()), f"I9, I11: {seq} is held"
        assert seq not in self.settled, f"I12: {seq} was settled"
        assert redelivered or seq not in self.seen, f"I10: {seq} was handed out before"
        assert self.seen.setdefault(seq, body) == body, f"I2: {seq} is one message"
        assert self.bodies.setdefault(body, seq) == seq, f"I7: {body!r} is in the queue twice"
        assert body not in self.refused, f"a refused message was handed out: {body!r}"
        assert body not in self.dead, f"a dead message was handed out: {body!r}"
        assert count <= self.counted[seq], f"a return of {seq} was counted twice"

    # -- what happens

    def route(self) -> None:
        for node, message, payload in self.stage.sent:
            self.remote_queues[node].inbox.append((message, payload))
        self.stage.sent.clear()
        buried, self.stage.buried = self.stage.buried, []
        for number, _, body, ticket in buried:
            assert self.dead.setdefault(body, number) == number, f"{body!r} died twice"
            ticket.pass_()

    def step(self) -> None:
        choice = self.random.random()
        proxy = self.remote_queues[self.random.choice(EVERYBODY)]
        if choice < 0.25:
            self.hear(proxy)
        elif choice < 0.50:
            self.tell(proxy)
        elif choice < 0.62:
            self.count += 1
            proxy.publish(b"%d" % self.count)
        elif choice < 0.76 and proxy.held:
            seq = self.random.choice(sorted(proxy.held))
            proxy.settle(seq, self.random.choice((SETTLE_ACK, SETTLE_ACK, SETTLE_REQUEUE, SETTLE_REQUEUE_COUNTED)))
        elif choice < 0.80 and proxy.attached and proxy.consumes:
            proxy.say(Credit(((QUEUE_ID, proxy.gen, 1, proxy.window, len(proxy.held)),)))
        elif choice < 0.92:
            self.disk()
        elif choice < 0.94:
            proxy.attach(partial=True)
        elif choice < 0.96:
            self.reset(proxy)
        elif choice < 0.97:
            proxy.consumes = not proxy.consumes
            proxy.attach(partial=True)
        elif choice < 0.98:
            self.kill(proxy.node)
        elif choice < 0.99:
            self.fail_over()
        else:
            self.hand_over()
        self.route()

    def hear(self, proxy: Proxy) -> None:
        if proxy.inbox:
            proxy.hear()

    def tell(self, proxy: Proxy) -> None:
        if proxy.outbox:
            message, payload = proxy.outbox.pop(0)
            self.stage.receive(proxy.node, message, payload)

    def disk(self) -> None:
        if self.stage.in_flight is not None:
            self.stage.group_durable()
        else:
            self.stage.turn()
            self.stage.write_group()

    def reset(self, proxy: Proxy) -> None:
        """The link between the owner and the node breaks, and is there again."""
        proxy.inbox.clear()
        proxy.outbox.clear()
        self.stage.unlink(proxy.node)
        proxy.attach(partial=False)

    def kill(self, node: str) -> None:
        """The node dies, which everybody hears, and starts again."""
        self.stage.fail(node)
        self.stage.owned_queues.members_changed(self.stage.incarnations)
        self.stage.unlink(node)
        self.remote_queues[node] = Proxy(self, node, self.stage.incarnations[node])
        self.remote_queues[node].consumes = True
        self.remote_queues[node].attach(partial=False)

    def fail_over(self) -> None:
        self.stage.fail_over()
        for proxy in self.remote_queues.values():
            proxy.inbox.clear()
            proxy.outbox.clear()
            proxy.attach(partial=False)

    def hand_over(self) -> None:
        """It is tried, and fails."""
        self.stage.owned_queues.freeze(QUEUE_ID, self.stage.now_ms + 3000)
        for _ in range(self.random.randrange(20)):
            proxy = self.remote_queues[self.random.choice(EVERYBODY)]
            self.tell(proxy)
            self.route()
        self.stage.owned_queues.thaw(QUEUE_ID)
        self.stage.turn()

    def recover(self) -> None:
        """Everybody is well, hears and tells everything, and acknowledges what it gets."""
        for proxy in self.remote_queues.values():
            proxy.consumes = True
            self.reset(proxy)
        for _ in range(400):
            self.route()
            for proxy in self.remote_queues.values():
                while proxy.inbox:
                    self.hear(proxy)
                for seq in sorted(proxy.held):
                    proxy.settle(seq, SETTLE_ACK)
                if proxy.attached:
                    proxy.say(Credit(((QUEUE_ID, proxy.gen, 1, proxy.window, 0),)))
                while proxy.outbox:
                    self.tell(proxy)
                    self.route()
            self.disk()
        self.stage.commit()
        self.route()
        ring = self.stage.ring
        assert (ring.ready, ring.unacked) == (0, 0), "everything that is here can be got"
        assert not any(proxy.backlog for proxy in self.remote_queues.values()), "every publish is answered"
        assert not any(proxy.settlements for proxy in self.remote_queues.values()), "every settlement is answered"
        assert self.confirmed <= set(self.bodies), "what was confirmed was handed out"
        assert not self.kills or self.refused <= set(self.dead), "what was refused died"


@pytest.mark.campaign
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**9))
def test_clients_see_each_message_as_they_should(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(500):
        chaos.step()
    chaos.recover()


@pytest.mark.parametrize("seed", range(6))
def test_calm_weather_confirms_and_delivers_everything(seed: int) -> None:
    """The chaos itself is worth something only if messages get through."""
    chaos = Chaos(seed * 3 + 1)
    for number in range(30):
        chaos.remote_queues[EVERYBODY[number % 3]].publish(b"calm-%d" % number)
    chaos.recover()
    assert len(chaos.confirmed) == 30
