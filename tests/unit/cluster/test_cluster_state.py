"""The fold: what each command does, answers and tells (amqp-rules.md 5.1, 5.3)."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.cluster import changes as told
from clusterbroker.cluster import commands as c
from clusterbroker.cluster.entities import Deserted, User, UserLimits
from clusterbroker.cluster.errors import (
    AccessRefused,
    InUse,
    LimitReached,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    WiringError,
)
from clusterbroker.cluster.ids import Epoch, LogIndex, NodeId, QueueId
from clusterbroker.cluster.snapshot import decode, encode
from clusterbroker.cluster.state import Applied, ClusterMap


class World:
    """A map and its log, one command per call."""

    def __init__(self) -> None:
        self.map = ClusterMap()
        self.last: Applied | None = None

    def do(self, command: c.AnyCommand) -> Any:
        before = self.map.digest()
        self.last = self.map.apply(LogIndex(self.map.applied + 1), command)
        assert (self.map.digest() != before) is bool(self.last.changes), "changes are told exactly when there are some"
        if isinstance(self.last.error, WiringError):
            raise self.last.error
        return self.last.result

    @property
    def told(self) -> list[str]:
        assert self.last is not None
        return [_words(change) for change in self.last.changes]

    def queue(self, name: str, **fields: Any) -> Any:
        return self.do(c.DeclareQueue(vhost="/", name=name, **{"durable": True, **fields}))

    def exchange(self, name: str, type_: str = "direct", **fields: Any) -> Any:
        return self.do(c.DeclareExchange(vhost="/", name=name, type=type_, **{"durable": True, **fields}))

    def bind(self, source: str, destination: str, key: str = "", kind: Any = "queue", **fields: Any) -> Any:
        return self.do(
            c.Bind(
                vhost="/",
                source=source,
                destination=destination,
                destination_kind=kind,
                routing_key=key,
                **fields,
            )
        )

    def unbind(self, source: str, destination: str, key: str = "", kind: Any = "queue", **fields: Any) -> Any:
        return self.do(
            c.Unbind(
                vhost="/",
                source=source,
                destination=destination,
                destination_kind=kind,
                routing_key=key,
                **fields,
            )
        )


def _words(change: Any) -> str:
    name = type(change).__name__
    match change:
        case told.QueueDeclared(queue=entity) | told.QueueDeleted(queue=entity):
            return f"{name} {entity.name}"
        case told.ExchangeDeclared(exchange=entity) | told.ExchangeDeleted(exchange=entity):
            return f"{name} {entity.name}"
        case told.Bound(binding=b) | told.Unbound(binding=b):
            return f"{name} {b.source}->{b.destination}"
        case _:
            return name


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    restored = ClusterMap.restored(world.map.snapshot())
    assert restored.digest() == world.map.digest()


def test_a_new_map_has_the_default_vhost(world: World) -> None:
    assert [v.name for v in world.map.vhosts()] == ["/"]
    exchanges = {x.name: (x.type, x.durable, x.internal) for x in world.map.exchanges("/")}
    assert exchanges == {
        "amq.direct": ("direct", True, False),
        "amq.fanout": ("fanout", True, False),
        "amq.headers": ("headers", True, False),
        "amq.match": ("headers", True, False),
        "amq.topic": ("topic", True, False),
        "amq.rabbitmq.trace": ("topic", True, True),
    }
    assert world.map.exchange("/", "") is None
    assert world.map.users() == ()


def test_declare_a_queue(world: World) -> None:
    queue = world.queue("q", arguments={"x-max-length": 5}, owner=NodeId("n1"))
    assert (queue.queue_id, queue.epoch, queue.owner, queue.in_sync) == (1, 1, "n1", ("n1",))
    assert world.told == ["QueueDeclared q"]
    assert world.map.queue("/", "q") is queue
    assert world.map.queue_by_id(queue.queue_id) is queue
    assert world.map.effective(queue).max_length == 5
    assert world.queue("q", arguments={"x-max-length": 5}) is queue
    assert world.told == []
    with pytest.raises(PreconditionFailed):
        world.queue("q", durable=False)


def test_a_pause_is_told_once_and_lasts_until_it_ends(world: World) -> None:
    queue = world.queue("q")
    world.do(c.PauseQueue(vhost="/", name="q"))
    paused = world.queue("q")
    world.do(c.PauseQueue(vhost="/", name="q", paused=False))
    world.do(c.PauseQueue(vhost="/", name="q"))
    assert (paused.paused, paused.queue_id, paused.version) == (True, queue.queue_id, queue.version)
    assert world.told == ["QueuePaused"]
    assert world.map.queue("/", "q") is world.map.queue_by_id(queue.queue_id)
    assert world.map.queue("/", "q") == paused
    world.do(c.PauseQueue(vhost="/", name="q"))
    assert world.told == []
    assert world.queue("q") == paused, "a declaration does not end it"
    assert ClusterMap.restored(world.map.snapshot()).queue("/", "q") == paused
    world.do(c.PauseQueue(vhost="/", name="q", paused=False))
    assert world.queue("q") == queue
    with pytest.raises(NotFound, match="no queue 'none'"):
        world.do(c.PauseQueue(vhost="/", name="none"))


def test_a_redeclared_queue_has_another_id_and_is_not_hit_by_an_old_delete(world: World) -> None:
    first = world.queue("q")
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=first.queue_id)) is True
    second = world.queue("q")
    assert second.queue_id != first.queue_id
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=first.queue_id)) is False
    assert world.map.queue("/", "q") is second


def test_a_deletion_that_an_owner_decided_is_void_in_another_epoch(world: World) -> None:
    queue = world.queue("q")
    for epoch in (queue.epoch + 1, queue.epoch - 1 or 99):
        late = c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id, epoch=Epoch(epoch))
        assert world.do(late) is False
    assert world.told == []
    assert world.map.queue("/", "q") is queue
    assert world.do(c.DeleteQueue(vhost="/", name="q", queue_id=queue.queue_id, epoch=queue.epoch)) is True


def test_names_of_the_server(world: World) -> None:
    with pytest.raises(AccessRefused):
        world.queue("amq.mine")
    world.queue("amq.gen-1", server_named=True)
    world.queue("amq.gen-1")
    with pytest.raises(AccessRefused) as caught:
        world.exchange("amq.mine")
    assert caught.value.text == "exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    world.exchange("amq.direct", "direct")
    assert world.told == []


def test_exclusive_queues_belong_to_a_connection(world: World) -> None:
    queue = world.queue("q", exclusive=True, connection="c1")
    assert (queue.exclusive_owner, queue.durable, queue.transient) == ("c1", False, True)
    assert world.queue("q", exclusive=True, connection="c1", durable=False) is queue
    with pytest.raises(ResourceLocked):
        world.queue("q", exclusive=True, connection="c2")
    with pytest.raises(ResourceLocked):
        world.bind("amq.direct", "q", connection="c2")
    world.bind("amq.direct", "q", connection="c1")
    with pytest.raises(ResourceLocked):
        world.unbind("amq.direct", "q", connection=None)
    world.queue("other", exclusive=True, connection="c2")
    assert world.map.exclusive_queues("c1") == (queue,)
    world.do(c.RemoveConnection(connection="c1"))
    assert world.told == ["Unbound amq.direct->q", "QueueDeleted q"]
    assert world.map.exclusive_queues("c1") == ()
    assert [q.name for q in world.map.queues("/")] == ["other"]
    assert world.do(c.RemoveConnection(connection="c1")) is False


def test_exclusive_queues_keep_their_order_through_a_snapshot(world: World) -> None:
    world.do(c.AddVhost(name="v"))
    for vhost in ("v", "/", "v"):
        name = f"q{world.map.applied}"
        world.do(c.DeclareQueue(vhost=vhost, name=name, exclusive=True, connection="c1"))
    end = c.RemoveConnection(connection="c1")
    restored = ClusterMap.restored(world.map.snapshot())
    assert restored.exclusive_queues("c1") == world.map.exclusive_queues("c1")
    index = LogIndex(restored.applied + 1)
    assert restored.apply(index, end).changes == world.map.apply(index, end).changes


def test_missing_vhosts(world: World) -> None:
    with pytest.raises(NotFound, match="vhost 'v' not found"):
        world.do(c.DeclareQueue(vhost="v", name="q"))
    assert world.do(c.DeleteExchange(vhost="v", name="x")) is False
    assert world.do(c.Unbind(vhost="v", source="x", destination="q")) is False


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


def test_forget_transient(world: World) -> None:
    world.exchange("x", durable=False)
    world.exchange("auto", auto_delete=True)
    world.queue("kept")
    world.queue("t", durable=False)
    world.queue("e", exclusive=True, connection="c1")
    world.queue("far", durable=False, owner=NodeId("n2"))
    world.bind("auto", "t")
    world.bind("x", "kept")
    world.do(c.ForgetTransient(node=NodeId("n2"), alone=False))
    assert world.told == ["QueueDeleted far"]
    world.do(c.ForgetTransient(node=NodeId("local")))
    assert world.told == [
        "Unbound auto->t",
        "ExchangeDeleted auto",
        "QueueDeleted t",
        "QueueDeleted e",
        "Unbound x->kept",
        "ExchangeDeleted x",
    ]
    assert [q.name for q in world.map.queues()] == ["kept"]


def test_vhosts(world: World) -> None:
    world.do(c.AddVhost(name="v", default_queue_type="quorum"))
    assert len(world.told) == 7
    assert world.told[0] == "VhostAdded"
    world.do(c.AddVhost(name="v", default_queue_type="quorum"))
    assert world.told == []
    world.do(c.AddVhost(name="v", description="d", default_queue_type="quorum"))
    assert world.told == ["VhostChanged"]
    world.do(c.AddVhost(name="v", description="d", default_queue_type="quorum", tracing=True))
    assert world.told == ["VhostChanged"]
    world.do(c.AddVhost(name="v", description="e", default_queue_type="quorum"))
    assert world.map.vhost("v").tracing, "who says nothing of it leaves it on"
    world.do(c.AddVhost(name="v", default_queue_type="quorum", tracing=False))
    assert not world.map.vhost("v").tracing
    with pytest.raises(PreconditionFailed):
        world.do(c.AddVhost(name="w", default_queue_type="stream"))
    queue = world.do(c.DeclareQueue(vhost="v", name="q", durable=True))
    assert queue.arguments == {"x-queue-type": "quorum"}
    assert world.map.effective(queue).delivery_limit == 20
    assert world.do(c.DeclareQueue(vhost="v", name="q", durable=True)) is queue
    world.do(c.Bind(vhost="v", source="amq.direct", destination="q"))
    world.do(c.PutUser(name="u", password_hash="", hash_algorithm="scrypt"))
    world.do(c.SetPermission(user="u", vhost="v", configure="", write="", read=""))
    world.do(c.PutParameter(vhost="v", component="c", name="n", value=1))
    assert world.do(c.DeleteVhost(name="v")) is True
    assert world.told[:2] == ["Unbound amq.direct->q", "QueueDeleted q"]
    assert world.told[-3:] == ["PermissionChanged", "ParameterChanged", "VhostDeleted"]
    assert world.map.queue_by_id(queue.queue_id) is None
    assert world.map.permissions() == ()
    assert world.do(c.DeleteVhost(name="v")) is False


def test_queue_limits(world: World) -> None:
    world.do(c.SetVhostLimits(vhost="/", queues_max=1))
    world.queue("a")
    with pytest.raises(LimitReached) as caught:
        world.queue("b")
    assert caught.value.text == "cannot declare queue 'b': queue limit in vhost '/' (1) is reached"
    world.queue("a")
    world.do(c.SetVhostLimits(vhost="/", queues_max=-1))
    world.queue("b")
    assert world.do(c.ClearVhostLimits(vhost="/")) is True
    assert world.do(c.ClearVhostLimits(vhost="/")) is False
    assert world.map.vhost_limits("/").queues_max is None


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
    monkeypatch.setattr("clusterbroker.cluster.topology.BINDINGS_MAX", 3)
    bind("c")
    with pytest.raises(LimitReached):
        bind("d")


def test_policies_and_parameters_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(name: str, priority: int = 0) -> c.PutPolicy:
        return c.PutPolicy(vhost="/", name=name, pattern="", definition={"max-length": 1}, priority=priority)

    def parameter(name: str, vhost: str = "/", value: Any = 1) -> c.PutParameter:
        return c.PutParameter(vhost=vhost, component="shovel", name=name, value=value)

    world.do(c.SetVhostLimits(vhost="/", policies_max=2, parameters_max=1))
    world.do(policy("a"))
    world.do(c.PutOperatorPolicy(vhost="/", name="a", pattern="", definition={"max-length": 1}))
    with pytest.raises(LimitReached) as caught:
        world.do(policy("b"))
    assert caught.value.text == "cannot set policy 'b': policy limit in vhost '/' (2) is reached"
    with pytest.raises(LimitReached):
        world.do(c.PutOperatorPolicy(vhost="/", name="b", pattern="", definition={"max-length": 1}))
    world.do(policy("a", 7))
    world.do(parameter("a"))
    world.do(parameter("a", value=2))
    with pytest.raises(LimitReached):
        world.do(parameter("b"))
    world.do(c.ImportDefinitions(import_id="i", number=0, last=True, commands=[policy("b")], apply=9))
    assert len(world.map.policies("/")) == 2, "an import is an operator's"
    world.do(c.ClearVhostLimits(vhost="/"))
    monkeypatch.setattr("clusterbroker.cluster.parameters.POLICIES_MAX", 3)
    monkeypatch.setattr("clusterbroker.cluster.parameters.PARAMETERS_MAX", 1)
    with pytest.raises(LimitReached):
        world.do(policy("c"))
    world.do(parameter("a", ""))
    with pytest.raises(LimitReached, match=r"parameter limit of global parameters \(1\) is reached"):
        world.do(parameter("b", ""))
    world.do(c.SetVhostLimits(vhost="/", policies_max=-1, parameters_max=-1))
    world.do(policy("c"))
    world.do(parameter("b"))


def test_policies_change_settings(world: World) -> None:
    queue = world.queue("q")
    world.do(c.PutPolicy(vhost="/", name="p", pattern="^q", definition={"max-length": 7}))
    assert world.told == ["PolicyChanged"]
    assert world.map.effective(queue).max_length == 7
    world.do(c.PutPolicy(vhost="/", name="p", pattern="^q", definition={"max-length": 7}))
    assert world.told == []
    world.do(c.PutOperatorPolicy(vhost="/", name="p", pattern="", definition={"max-length": 3}))
    assert world.map.effective(queue).max_length == 3
    with pytest.raises(PreconditionFailed):
        world.do(c.PutPolicy(vhost="/", name="bad", pattern="(", definition={"max-length": 7}))
    assert world.do(c.DeletePolicy(vhost="/", name="p")) is True
    assert world.do(c.DeletePolicy(vhost="/", name="p")) is False
    assert world.do(c.DeleteOperatorPolicy(vhost="/", name="p")) is True
    assert world.map.effective(queue).max_length is None


def test_users_and_permissions(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("administrator",)))
    assert world.told == ["UserChanged"]
    with pytest.raises(NotFound, match="vhost 'v' not found"):
        world.do(c.SetPermission(user="u", vhost="v", configure="", write="", read=""))
    world.do(c.SetPermission(user="u", vhost="/", configure="", write=".*", read="^a"))
    assert world.told == ["PermissionChanged"]
    assert world.map.allowed("u", "/", "write", "q")
    assert not world.map.allowed("u", "/", "configure", "q")
    world.do(c.SetTopicPermission(user="u", vhost="/", exchange="x", write="^a", read=".*"))
    assert not world.map.topic_allowed("u", "/", "write", "x", "b")
    assert world.do(c.ClearTopicPermission(user="u", vhost="/", exchange="x")) is True
    assert world.do(c.DeleteUser(name="u")) is True
    assert world.told == ["PermissionChanged", "UserChanged"]
    assert world.do(c.DeleteUser(name="u")) is False
    assert world.do(c.ClearPermission(user="u", vhost="/")) is False
    with pytest.raises(PreconditionFailed):
        world.do(c.PutUser(name="", password_hash="h", hash_algorithm="scrypt"))


def test_a_hash_is_replaced_only_by_whoever_knows_it(world: World) -> None:
    made = c.PutUser(name="u", password_hash="old", hash_algorithm="sha256", tags=("monitoring",))
    better = c.PutUser(name="u", password_hash="new", hash_algorithm="scrypt", only_if_hash="old")
    with pytest.raises(PreconditionFailed, match="user 'u' was changed or deleted meanwhile"):
        world.do(better)
    assert world.map.user("u") is None, "a user that was deleted meanwhile does not come back"
    world.do(made)
    world.do(replace(made, tags=("administrator",), limits=UserLimits(3, 4)))
    world.do(better)
    assert world.told == ["UserChanged"]
    user = world.map.user("u")
    assert user == User("u", "new", "scrypt", ("administrator",), UserLimits(3, 4)), "tags and limits of now"
    with pytest.raises(PreconditionFailed, match="stays as it is"):
        world.do(better)
    assert world.map.user("u") == user
    world.do(replace(better, only_if_hash=None))
    assert world.map.user("u") == User("u", "new", "scrypt"), "without a condition it is what the command says"


def test_a_limit_of_a_user_is_set_and_nothing_else_of_it(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("t",), limits=UserLimits(1, 2)))
    world.do(c.SetUserLimits(name="u", limits=UserLimits(channels_max=9), only=("channels_max",)))
    assert world.told == ["UserChanged"]
    assert world.map.user("u") == User("u", "h", "scrypt", ("t",), UserLimits(1, 9))
    world.do(c.SetUserLimits(name="u", limits=UserLimits(channels_max=9), only=("channels_max",)))
    assert world.told == []
    world.do(c.SetUserLimits(name="u", limits=UserLimits(5)))
    assert world.map.user("u") == User("u", "h", "scrypt", ("t",), UserLimits(5))
    world.do(c.DeleteUser(name="u"))
    with pytest.raises(NotFound, match="user 'u' not found"):
        world.do(c.SetUserLimits(name="u", limits=UserLimits(5)))
    with pytest.raises(NotFound, match="user 'u' not found"):
        world.do(c.PutUser(name="u", tags=("t",), only=("tags",)))
    assert world.map.user("u") is None, "a part brings no user back"


def test_a_part_of_a_row_leaves_the_rest_as_it_is(world: World) -> None:
    world.do(c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("t",), limits=UserLimits(1, 2)))
    world.do(c.PutUser(name="u", tags=("x",), only=("tags",)))
    assert world.map.user("u") == User("u", "h", "scrypt", ("x",), UserLimits(1, 2))
    world.do(c.PutUser(name="u", password_hash="i", hash_algorithm="s", only=("password_hash", "hash_algorithm")))
    assert world.map.user("u") == User("u", "i", "s", ("x",), UserLimits(1, 2))
    world.do(c.PutUser(name="u", password_hash="j", hash_algorithm="s", limits=None))
    assert world.map.user("u") == User("u", "j", "s", (), UserLimits(1, 2)), "limits as they were"
    world.do(c.PutUser(name="new", password_hash="j", hash_algorithm="s", limits=None))
    assert world.map.user("new") == User("new", "j", "s")
    world.do(c.AddVhost(name="v", description="words", tags=("a",), default_queue_type="quorum"))
    world.do(c.AddVhost(name="v", tracing=True, only=("tracing",)))
    vhost = world.map.vhost("v")
    assert vhost is not None
    assert (vhost.description, vhost.tags, vhost.default_queue_type, vhost.tracing) == ("words", ("a",), "quorum", True)
    world.do(c.SetVhostLimits(vhost="v", queues_max=1, connections_max=2))
    world.do(c.SetVhostLimits(vhost="v", queues_max=7, only=("queues_max",)))
    assert (world.map.vhost_limits("v").queues_max, world.map.vhost_limits("v").connections_max) == (7, 2)
    with pytest.raises(NotFound):
        world.do(c.AddVhost(name="gone", tracing=True, only=("tracing",)))
    with pytest.raises(PreconditionFailed, match="no such field: 'nonsense'"):
        world.do(c.PutUser(name="u", only=("nonsense",)))


def test_parameters(world: World) -> None:
    world.do(c.PutParameter(vhost="", component="c", name="n", value=1))
    world.do(c.PutParameter(vhost="", component="c", name="n", value=True))
    assert world.told == ["ParameterChanged"]
    assert world.map.parameter("", "c", "n").value is True  # type: ignore[union-attr]
    assert world.do(c.DeleteParameter(vhost="", component="c", name="n")) is True
    assert world.do(c.DeleteParameter(vhost="", component="c", name="n")) is False


def test_an_index_is_applied_once() -> None:
    map_ = ClusterMap()
    map_.apply(LogIndex(5), c.RemoveConnection(connection="c"))
    with pytest.raises(AssertionError):
        map_.apply(LogIndex(5), c.RemoveConnection(connection="c"))
    assert map_.apply(LogIndex(9), c.DeclareQueue(vhost="/", name="q")).result.queue_id == QueueId(9)


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


def test_that_there_were_users_outlives_them(world: World) -> None:
    """Of a broker that never had one the first start makes somebody."""
    assert not world.map.had_users
    for _ in range(2):
        world.do(c.PutUser(name="guest", password_hash="", hash_algorithm=""))
        assert ClusterMap.restored(world.map.snapshot()).had_users
        world.do(c.DeleteUser(name="guest"))
        taken = world.map.snapshot()
        assert decode(taken.index, list(encode(taken))).deserted == [Deserted()]
        assert ClusterMap.restored(taken).had_users
    assert ClusterMap.restored(taken).digest() == world.map.digest()
