"""Exchanges and bindings of a vhost, and the cascades of their ends (amqp-rules.md 5.1, 5.3)."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import (
    AccessRefused,
    InUse,
    LimitReached,
    NotFound,
)
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.snapshot import decode, encode
from clusterbroker.cluster.wiring.topology import ARGUMENT_SETS_MAX
from tests.unit.cluster.wiring.map_world import World


def test_queues_that_were_declared_alike_share_their_arguments(world: World) -> None:
    for name, most in (("a", 5), ("b", 5), ("c", 6)):
        world.queue(name, arguments={"x-max-length": most, "x-overflow": "drop-head"})
    decoded = decode(world.map.applied, list(encode(world.map.snapshot())))
    for known in (world.map, ClusterMap.restored(decoded)):
        a, b, c_ = (known.queue("/", name) for name in "abc")
        assert a is not None
        assert b is not None
        assert c_ is not None
        assert a.arguments is b.arguments
        assert (b.arguments["x-max-length"], c_.arguments["x-max-length"]) == (5, 6)
    for number in range(2 * ARGUMENT_SETS_MAX):
        world.queue(f"q{number}", arguments={"x-max-length": number})
        found = world.map.queue("/", f"q{number}")
        assert found is not None
        assert found.arguments == {"x-max-length": number}


def test_bindings(world: World) -> None:
    world.exchange("x", "topic")
    world.queue("q")
    binding = world.bind("x", "q", "a.#", arguments={"n": 1})
    assert world.told == ["Bound x->q"]
    assert world.bind("x", "q", "a.#", arguments={"n": 1}) is binding
    assert world.told == []
    world.bind("x", "q", "a.#", arguments={"n": True})
    assert len(world.map.bindings_from("/", "x", "a.#")) == 2
    assert world.map.bindings_to("/", "queue", "q") == world.map.bindings("/")
    assert world.unbind("x", "q", "a.#", arguments={"n": 1}) is True
    assert world.unbind("x", "q", "a.#", arguments={"n": 1}) is False
    assert world.unbind("nowhere", "q") is False
    assert world.unbind("x", "nobody") is False


@pytest.mark.parametrize(
    "source, destination, kind, error, text",
    [
        ("none", "nobody", "queue", NotFound, "no exchange 'none' in vhost '/'"),
        ("amq.direct", "nobody", "queue", NotFound, "no queue 'nobody' in vhost '/'"),
        ("amq.direct", "nobody", "exchange", NotFound, "no exchange 'nobody' in vhost '/'"),
        ("", "q", "queue", AccessRefused, "operation not permitted on the default exchange"),
        ("amq.direct", "", "exchange", AccessRefused, "operation not permitted on the default exchange"),
    ],
)
def test_bind_refused(world: World, source: str, destination: str, kind: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        world.bind(source, destination, kind=kind)
    assert caught.value.text == text


def test_deleting_a_queue_ends_its_bindings_and_auto_delete_exchanges_in_cascade(world: World) -> None:
    world.exchange("top", auto_delete=True)
    world.exchange("mid", auto_delete=True)
    world.exchange("kept")
    queue = world.queue("q")
    world.bind("mid", "q")
    world.bind("kept", "q")
    world.bind("top", "mid", kind="exchange")
    world.bind("kept", "mid", kind="exchange")
    world.do(c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id))
    assert world.told == [
        "Unbound mid->q",
        "Unbound kept->q",
        "Unbound top->mid",
        "Unbound kept->mid",
        "ExchangeDeleted mid",
        "ExchangeDeleted top",
        "QueueDeleted q",
    ]
    assert world.map.exchange("/", "kept") is not None
    assert world.map.bindings("/") == ()


def test_auto_delete_by_unbind_and_never_without_a_binding(world: World) -> None:
    world.exchange("x", auto_delete=True)
    world.queue("q")
    assert world.unbind("x", "q") is False
    assert world.map.exchange("/", "x") is not None
    world.bind("x", "q", "1")
    world.bind("x", "q", "2")
    world.unbind("x", "q", "1")
    assert world.map.exchange("/", "x") is not None
    world.unbind("x", "q", "2")
    assert world.told == ["Unbound x->q", "ExchangeDeleted x"]


def test_cycles_of_auto_delete_exchanges_end(world: World) -> None:
    for name in ("a", "b"):
        world.exchange(name, auto_delete=True)
    world.bind("a", "b", kind="exchange")
    world.bind("b", "a", kind="exchange")
    world.bind("a", "a", kind="exchange")
    world.do(c.DeleteExchange(vhost="/", name="a"))
    assert world.told == [
        "Unbound a->b",
        "Unbound a->a",
        "Unbound b->a",
        "ExchangeDeleted b",
        "ExchangeDeleted a",
    ]
    assert world.map.exchange("/", "b") is None


def test_delete_exchange(world: World) -> None:
    assert world.do(c.DeleteExchange(vhost="/", name="x")) is False
    with pytest.raises(AccessRefused, match=r"deletion of system exchange 'amq\.topic' in vhost '/' not allowed"):
        world.do(c.DeleteExchange(vhost="/", name="amq.topic"))
    with pytest.raises(AccessRefused):
        world.do(c.DeleteExchange(vhost="/", name=""))
    world.exchange("x")
    world.exchange("y")
    world.queue("q")
    world.bind("x", "q")
    world.bind("y", "x", kind="exchange")
    with pytest.raises(InUse) as caught:
        world.do(c.DeleteExchange(vhost="/", name="x", if_unused=True))
    assert caught.value.text == "exchange 'x' in vhost '/' in use"
    world.unbind("x", "q")
    assert world.do(c.DeleteExchange(vhost="/", name="x", if_unused=True)) is True
    assert world.told == ["Unbound y->x", "ExchangeDeleted x"]


def test_durable_bindings_have_two_durable_ends(world: World) -> None:
    world.exchange("x", durable=False)
    world.queue("q")
    world.queue("t", durable=False)
    assert world.map.is_durable_binding(world.bind("amq.direct", "q"))
    assert not world.map.is_durable_binding(world.bind("amq.direct", "t"))
    assert not world.map.is_durable_binding(world.bind("x", "q"))
    assert world.map.is_durable_binding(world.bind("amq.direct", "amq.fanout", kind="exchange"))


def test_binding_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(key: str) -> None:
        world.do(c.Bind(vhost="/", source="amq.topic", destination="q", destination_kind="queue", routing_key=key))

    world.queue("q")
    world.do(c.SetVhostLimits(vhost="/", bindings_max=1))
    bind("a")
    with pytest.raises(LimitReached) as caught:
        bind("b")
    assert caught.value.text == "cannot bind to exchange 'amq.topic': binding limit in vhost '/' (1) is reached"
    bind("a")
    world.do(c.SetVhostLimits(vhost="/", bindings_max=-1))
    bind("b")
    world.do(c.SetVhostLimits(vhost="/", exchange_bindings_max=2, only=("exchange_bindings_max",)))
    assert world.map.vhost_limits("/").bindings_max == -1
    with pytest.raises(LimitReached, match=r"binding limit of an exchange in vhost '/' \(2\) is reached"):
        bind("c")
    bind("b")
    world.do(c.Bind(vhost="/", source="amq.direct", destination="q", destination_kind="queue", routing_key="c"))
    world.do(c.Unbind(vhost="/", source="amq.direct", destination="q", destination_kind="queue", routing_key="c"))
    world.do(c.ClearVhostLimits(vhost="/"))
    monkeypatch.setattr("clusterbroker.cluster.wiring.topology.BINDINGS_MAX", 3)
    bind("c")
    with pytest.raises(LimitReached):
        bind("d")


def test_a_long_cascade_is_fast() -> None:
    world = World()
    apply = world.map.apply
    index = 0

    def do(command: c.AnyCommand) -> Any:
        nonlocal index
        index += 1
        return apply(LogIndex(index), command).result

    queue = do(c.DeclareQueue(vhost="/", name="q"))
    count = 5000
    for n in range(count):
        do(c.DeclareExchange(vhost="/", name=f"x{n}", type="fanout", auto_delete=True))
        do(c.Bind(vhost="/", source=f"x{n}", destination="q"))
        if n:
            kind: Any = "exchange"
            do(c.Bind(vhost="/", source=f"x{n}", destination=f"x{n - 1}", destination_kind=kind))
    done = apply(LogIndex(index + 1), c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id))
    assert sum(isinstance(change, told.ExchangeDeleted) for change in done.changes) == count
    assert len(world.map.exchanges("/")) == 6
