"""Queues of delays in keys are ordered by who orders the log: at once, and again when that did not help."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from clusterbroker.broker.server.upkeep import KeyDelays
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring_log import MemoryWiringLog

BITS = {"delay-bits": 28, "delay-exchange": "end"}


class Place:
    """What KeyDelays sees of a node."""

    def __init__(self, leads: bool | None) -> None:
        self.wiring = MemoryWiringLog()
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.later: list[Callable[[], None]] = []
        self.raft = SimpleNamespace(is_leader=leads)
        self.shell: Any = SimpleNamespace(
            loop=SimpleNamespace(
                call_later=lambda _, look: self.later.append(look),
                call_soon=lambda order, *said: self.soon.append((order, said)),
            ),
            storage=SimpleNamespace(wiring=self.wiring),
            cluster=None if leads is None else SimpleNamespace(raft=self.raft),
            clock=SimpleNamespace(wall_ms=lambda: 1),
            ended=SimpleNamespace(done=lambda: False),
        )
        KeyDelays(self.shell)

    def do(self, *commands: c.AnyCommand) -> None:
        for command in commands:
            self.wiring.propose(command)
        while self.soon:
            order, said = self.soon.pop(0)
            order(*said)

    def look(self) -> None:
        self.later.pop()()

    @property
    def kept(self) -> list[str]:
        return [queue.delays for queue in self.wiring.map.queues("/") if queue.key_bits]


POLICY = c.PutPolicy(vhost="/", name="bits", pattern="^first", definition=BITS, apply_to="exchanges")
FIRST, SECOND = (c.DeclareExchange(vhost="/", name=name, type="topic", durable=True) for name in ("first", "first2"))


def test_a_policy_an_exchange_and_the_end_of_a_queue_bring_one() -> None:
    place = Place(None)
    place.do(FIRST)
    assert place.kept == []
    place.do(POLICY)
    assert place.kept == ["first"]
    place.do(SECOND)
    assert place.kept == ["first", "first2"]
    other = c.PutPolicy(vhost="/", name="bits", pattern="^first", definition={**BITS, "delay-bits": 3})
    place.do(other)
    queue = place.wiring.map.queue("/", "amq.delay.first")
    assert queue is not None
    place.do(c.EndDelays(queue_id=queue.queue_id, epoch=queue.epoch))
    again = place.wiring.map.queue("/", "amq.delay.first")
    assert again is not None
    assert again.key_bits == 3


def test_who_leads_later_looks_too() -> None:
    place = Place(False)
    place.do(FIRST, POLICY)
    place.look()
    assert place.kept == []
    place.raft.is_leader = True
    place.look()
    assert place.kept == ["first"]
    assert place.later, "and goes on looking"


def test_without_room_it_waits_for_room() -> None:
    place = Place(None)
    place.do(c.SetVhostLimits(vhost="/", queues_max=0), FIRST, POLICY)
    place.look()
    assert place.kept == []
    place.do(c.ClearVhostLimits(vhost="/"))
    place.look()
    assert place.kept == ["first"]
