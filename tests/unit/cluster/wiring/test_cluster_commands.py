"""Commands survive being stored, old bytes and foreign bytes are told apart, secrets stay out of texts."""

import msgspec
import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import PoolSettings

EVERY = [
    c.AddVhost(name="v", description="d", tags=("a",), metadata={"k": [1]}, default_queue_type="quorum"),
    c.DeleteVhost(name="v"),
    c.DeclareExchange(vhost="v", name="x", type="topic", durable=True, arguments={"alternate-exchange": "y"}),
    c.DeleteExchange(vhost="v", name="x", if_unused=True),
    c.DeclareQueue(
        at_ms=1_700_000_000_000,
        vhost="v",
        name="q",
        exclusive=True,
        connection="c1",
        arguments={"a": 1, "b": b"\xff", "c": None, "d": 1.5, "e": [True]},
        owner=NodeId("n1"),
        incarnation=Incarnation(3),
        replicas=(NodeId("n1"), NodeId("n2")),
    ),
    c.DeleteQueue(vhost="v", name="q", queue_id=QueueId(7)),
    c.PauseQueue(vhost="v", name="q"),
    c.Bind(vhost="v", source="x", destination="q", routing_key="k", connection="c1"),
    c.Unbind(vhost="v", source="x", destination="y", destination_kind="exchange"),
    c.RemoveConnection(connection="c1"),
    c.Loosen(ending=c.Unbind(vhost="v", source="x", destination="q", arguments={"a": 1})),
    c.Loosen(ending=c.DeleteVhost(name="v")),
    c.Loosen(ending=c.DeleteQueue(vhost="v", name="q", queue_id=QueueId(7), epoch=Epoch(2))),
    c.ForgetTransient(node=NodeId("n1"), alone=False),
    c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", tags=("t",), limits=UserLimits(1, 2)),
    c.PutUser(name="u", password_hash="h", hash_algorithm="scrypt", only_if_hash="g"),
    c.PutUser(name="u", tags=("t",), limits=None, only=("tags",)),
    c.SetUserLimits(name="u", limits=UserLimits(1, 2), only=("channels_max",)),
    c.DeleteUser(name="u"),
    c.SetPermission(user="u", vhost="v", configure="a", write="b", read="c"),
    c.ClearPermission(user="u", vhost="v"),
    c.SetTopicPermission(user="u", vhost="v", exchange="x", write="a", read="b"),
    c.ClearTopicPermission(user="u", vhost="v"),
    c.PutPolicy(vhost="v", name="p", pattern="^a", definition={"expires": 1}, priority=3),
    c.DeletePolicy(vhost="v", name="p"),
    c.PutOperatorPolicy(vhost="v", name="p", pattern="^a", definition={"expires": 1}),
    c.DeleteOperatorPolicy(vhost="v", name="p"),
    c.PutParameter(vhost="", component="c", name="n", value={"a": [1]}),
    c.DeleteParameter(vhost="", component="c", name="n"),
    c.SetVhostLimits(vhost="v", queues_max=1),
    c.ClearVhostLimits(vhost="v"),
    c.AddMember(name=NodeId("n1"), address="h:1", witness=True),
    c.RegisterNode(
        node=NodeId("n1"),
        disk_id="d",
        incarnation=Incarnation(3),
        address="h:1",
        amqp=("amqp://h:5672", "amqps://h:5671"),
        damaged=(QueueId(7),),
        level=2,
    ),
    c.RaiseLevel(level=2, members=((NodeId("n1"), Incarnation(3)),)),
    c.FailNode(node=NodeId("n1"), incarnation=Incarnation(3)),
    c.DrainNode(node=NodeId("n1"), draining=False),
    c.DrainNode(node=NodeId("n1"), leaving=True),
    c.ForgetNode(node=NodeId("n1"), accept_loss=True),
    c.ForgetNode(node=NodeId("n1"), leaves=True, accept_fewer=True),
    c.SetVoters(voters=(NodeId("n1"), NodeId("n2"))),
    c.ChangeInSync(
        node=NodeId("n1"),
        incarnation=Incarnation(3),
        changes=(
            c.InSyncProposal(QueueId(7), Epoch(2), 5, (NodeId("n1"), NodeId("n2")), (Incarnation(3), Incarnation(1))),
        ),
    ),
    c.TransferOwner(
        node=NodeId("n1"),
        incarnation=Incarnation(3),
        queue_id=QueueId(7),
        epoch=Epoch(2),
        version=5,
        to=NodeId("n2"),
    ),
    c.GiveUpCopy(node=NodeId("n1"), incarnation=Incarnation(3), queue_id=QueueId(7), epoch=Epoch(2), heir=NodeId("n2")),
    c.ForceOwner(queue_id=QueueId(7), node=NodeId("n1")),
    c.MoveReplica(queue_id=QueueId(7), add=(NodeId("n3"),), remove=(NodeId("n2"),)),
    c.ImportDefinitions(
        import_id="i",
        number=0,
        commands=(
            c.AddVhost(name="v"),
            c.DeclareQueue(vhost="v", name="q", durable=True, arguments={"a": 1}),
            c.Bind(vhost="v", source="amq.topic", destination="q", routing_key="#"),
        ),
        apply=3,
    ),
    c.ApplyImport(import_id="i", start=100, count=50),
    c.DropImport(import_id="i"),
    c.DeclareExchange(
        vhost="v", name="txn.a", type="x-staging", durable=True, owner=NodeId("n1"), user="u", is_administrator=True
    ),
    c.DeclareChoosingExchange(vhost="v", name="one", type="x-random", owner=NodeId("n1")),
    c.DeclareDelayedExchange(
        vhost="v", name="later", type="x-delayed-message", arguments={"x-delayed-type": "topic"}, owner=NodeId("n1")
    ),
    c.DeclareHistoryExchange(
        vhost="v", name="news", type="x-recent-history", arguments={"x-recent-history-length": 3}, owner=NodeId("n1")
    ),
    c.DeclareDeduplicatingExchange(
        vhost="v", name="once", type="x-message-deduplication", arguments={"x-cache-size": 3}, owner=NodeId("n1")
    ),
    c.CommitTransaction(vhost="v", producer="p", epoch=2**62, run="r", transactions=("txn.a",), rows=3, user="u"),
    c.AbortTransaction(vhost="v", producer="p", epoch=0, run="r", transactions=("txn.a", "txn.b")),
    c.ExpireTransactions(at_ms=5, vhost="v", names=("txn.a",), lived_ms=2**53),
    c.ForgetProducers(at_ms=5, vhost="v", names=("p",)),
    c.PassTime(at_ms=5, after_ms=0, lived_ms=60_000, wall_ms=2**53),
    c.AttachLink(
        node=NodeId("n1"),
        incarnation=Incarnation(3),
        vhost="v",
        container="c",
        name="l",
        role="sender",
        terminus="/queues/q",
        user="u",
        is_administrator=True,
        timeout_ms=2**40,
        resumes=True,
    ),
    c.SuspendLink(link=LogIndex(7), attach=2),
    c.ExpireLink(link=LogIndex(7), attach=2),
    c.ForgetLink(link=LogIndex(7), attach=2),
    c.HoldContainer(
        node=NodeId("n1"),
        incarnation=Incarnation(3),
        vhost="v",
        container="c",
        user="u",
        connection="n1.3.9",
        gives_way=True,
    ),
    c.ReleaseContainer(vhost="v", container="c", user="u", connection="n1.3.9"),
    c.DeclarePool(vhost="v", name="core", template="t", settings=PoolSettings(request_ttl_ms=5, keys="^a")),
    c.SetPool(vhost="v", name="core", settings=PoolSettings(max=3), only=("max",)),
    c.PausePool(vhost="v", name="core"),
    c.DirectGroup(vhost="v", name="core", key="42", word="pin"),
    c.DeletePool(vhost="v", name="core", force=True, delayed=True),
    c.RequireGroups(pool_id=LogIndex(7), epoch=Epoch(2), keys=("", "42", "\U0001f600")),
    c.SettleGroups(pool_id=LogIndex(7), epoch=Epoch(2), keys=("", "42")),
    c.UnbindGroup(pool_id=LogIndex(7), key="42", queue_id=QueueId(8), epoch=Epoch(1), generation=LogIndex(9)),
    c.BindGroup(pool_id=LogIndex(7), key="42", queue_id=QueueId(8), epoch=Epoch(1), generation=LogIndex(9)),
    c.DropGroup(pool_id=LogIndex(7), key="42", queue_id=QueueId(8), epoch=Epoch(1), generation=LogIndex(9)),
    c.EndPoolQueue(pool_id=LogIndex(7), queue_id=QueueId(8), epoch=Epoch(1)),
    c.LaunchWorkers(pool_id=LogIndex(7), epoch=Epoch(2), workers=(("42", "n1", "v1"),)),
    c.KeepDelays(vhost="v", exchange="x", owner=NodeId("n1"), incarnation=Incarnation(3)),
    c.EndDelays(queue_id=QueueId(7), epoch=Epoch(2)),
    c.AssignWorkers(pool_id=LogIndex(7), epoch=Epoch(2), workers=(("w7-0", "42"),)),
    c.RetireKeys(pool_id=LogIndex(7), epoch=Epoch(2), keys=(("w7-0", "42"),), why="room"),
    c.RevokeKeys(pool_id=LogIndex(7), epoch=Epoch(2), keys=(("w7-0", "42"),)),
    c.RetireWorkers(pool_id=LogIndex(7), epoch=Epoch(2), launches=("w7-0",), why="idle"),
    c.RevokeWorkers(pool_id=LogIndex(7), epoch=Epoch(2), launches=("w7-0",), why="idle"),
    c.WorkersGone(node=NodeId("n1"), incarnation=Incarnation(3), ended=(Ended("w7-0", 70, 1 << 30, True),)),
    c.FinishSegments(node=NodeId("n1"), incarnation=Incarnation(3), segments=((QueueId(7), Epoch(2), 1),)),
]


def test_the_list_above_is_every_command() -> None:
    kinds = {type(command) for command in EVERY}
    assert kinds == set(c.AnyCommand.__args__)
    below = [c.Command]
    for kind in below:
        below += kind.__subclasses__()
    assert kinds == {kind for kind in below if not kind.__subclasses__()}


@pytest.mark.parametrize("command", EVERY, ids=lambda command: type(command).__name__)
def test_stored_and_back(command: c.AnyCommand) -> None:
    assert c.decode(c.encode(command)) == command


def test_shorter_bytes_of_an_older_release_get_defaults() -> None:
    older = bytes((c.VERSION,)) + msgspec.msgpack.encode(["set_vhost_limits", 5, "v"])
    assert c.decode(older) == c.SetVhostLimits(at_ms=5, vhost="v")
    older = bytes((c.VERSION,)) + msgspec.msgpack.encode(["put_user", 5, "u", "h", "scrypt", [], [1, 2]])
    assert c.decode(older) == c.PutUser(
        at_ms=5, name="u", password_hash="h", hash_algorithm="scrypt", limits=UserLimits(1, 2)
    )


@pytest.mark.parametrize("stored", [b"", b"\x01", b"\x02\x90", b"\x01\x91\xa4nope", b"\x01\xc1"])
def test_foreign_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(ValueError):
        c.decode(stored)


def test_what_cannot_be_stored_is_the_clients_fault() -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    for value in (2**64, deep, object(), "\ud800"):
        with pytest.raises(PreconditionFailed):
            c.encode(c.DeclareQueue(vhost="/", name="q", arguments={"a": value}))


def test_a_password_hash_is_not_in_texts() -> None:
    assert "secret" not in repr(c.PutUser(name="u", password_hash="secret", hash_algorithm="scrypt"))


def test_the_end_of_a_worker_is_read_by_releases_of_either_side() -> None:
    """The last field came after the first release."""

    class Before(msgspec.Struct, array_like=True):
        launch_id: str
        exit_status: int | None = None
        peak_bytes: int = 0

    new = msgspec.msgpack.encode(Ended("w7-0", 137, 5, True))
    assert msgspec.msgpack.decode(new, type=Before) == Before("w7-0", 137, 5)
    old = msgspec.msgpack.encode(Before("w7-0", 137, 5))
    assert msgspec.msgpack.decode(old, type=Ended) == Ended("w7-0", 137, 5)
