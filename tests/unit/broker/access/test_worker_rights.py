"""Where a worker of a pool may answer: for whom it works, and no further."""

from __future__ import annotations

import pytest

from clusterbroker.broker.access.worker_rights import FORGET_AT, WorkerRights
from clusterbroker.broker.content.message import new_message, with_flags
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_entities import MoreSettings
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message


class Held:
    """A ledger, which counts how often it is asked."""

    def __init__(self) -> None:
        self.tags: set[int] = set()
        self.asked = 0

    def holds(self, tag: int) -> bool:
        self.asked += 1
        return tag in self.tags


@pytest.fixture
def rights() -> WorkerRights:
    return rights_of(c.DeclarePool(vhost="/", name="core", template="core"))


def rights_of(declaration: c.DeclarePool) -> WorkerRights:
    """Of a pool's worker."""
    map_ = ClusterMap()

    def do(command: c.AnyCommand) -> None:
        assert map_.apply(LogIndex(map_.applied + 1), command).ok

    do(c.AddVhost(name="/"))
    do(declaration)
    (pool,) = map_.pools.all()
    orphans = map_.queue_by_id(pool.orphans)
    assert orphans is not None
    do(c.RequireGroups(pool_id=pool.pool_id, epoch=orphans.epoch, keys=("k",)))
    do(c.LaunchWorkers(pool_id=pool.pool_id, epoch=orphans.epoch, workers=(("k", "a", "v1"),)))
    return WorkerRights(map_, map_.pools.launches(pool.pool_id)[0].launch_id)


def request(reply_to: str, answerable: bool = True) -> Message:
    made = new_message("core", "k", Properties(reply_to=reply_to), b"", 0)
    return with_flags(made, made.flags | ANSWERABLE) if answerable else made


def test_an_address_that_the_publisher_may_not_use_is_none_of_the_workers(rights: WorkerRights) -> None:
    ledger = Held()
    ledger.tags = {1, 2}
    rights.took(ledger, 1, request("victim", answerable=False))
    rights.took(ledger, 2, request("own"))
    assert not rights.may_publish("", "victim")
    assert rights.unheard("victim"), "an answer there is no mistake of the worker's"
    assert not rights.unheard("other")
    assert rights.may_publish("", "own")
    assert not rights.unheard("own")
    ledger.tags = set()
    assert not rights.unheard("victim")


def test_an_address_is_the_workers_while_a_request_of_it_is_held(rights: WorkerRights) -> None:
    ledger = Held()
    for tag in (1, 2):
        ledger.tags.add(tag)
        rights.took(ledger, tag, request("q"))
    for tag in (2, 1):
        assert rights.may_publish("", "q")
        ledger.tags.remove(tag)
    assert not rights.may_publish("", "q")


def test_a_look_does_not_cost_what_is_held(rights: WorkerRights) -> None:
    ledger = Held()
    for tag in range(10_000):
        ledger.tags.add(tag)
        rights.took(ledger, tag, request(f"q{tag % 5_000}"))
    ledger.asked = 0
    for tag in range(1_000):
        assert rights.may_publish("", f"q{tag}")
    assert ledger.asked == 1_000


def test_settled_requests_are_forgotten(rights: WorkerRights) -> None:
    ledger = Held()
    for tag in range(50 * FORGET_AT):
        ledger.tags = {tag}
        rights.took(ledger, tag, request(f"q{tag}"))
    assert len(rights._addresses) <= 2 * FORGET_AT


@pytest.mark.parametrize("may", [False, True])
def test_a_worker_calls_its_own_pool_where_that_is_allowed(may: bool) -> None:
    rights = rights_of(c.DeclarePool(vhost="/", name="core", template="core", more=MoreSettings(workers_may_call=may)))
    names = PoolNames("core")
    for exchange in (names.exchange, names.requests):
        assert rights.allowed("/", "write", exchange) is may
        assert rights.may_publish(exchange, "any key") is may
        assert not rights.allowed("/", "configure", exchange)
    assert not rights.may_publish(names.delayed, "any key")
    for closed in (names.exchange_of(names.orphans), PoolNames("other").exchange):
        assert not rights.allowed("/", "write", closed)
        assert not rights.may_publish(closed, "k")
