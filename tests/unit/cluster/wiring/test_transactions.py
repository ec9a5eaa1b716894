"""Single answers of the fold about transactions; tests.property.test_transaction_fold.py has the whole."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.raft.raft_log import COMMAND_BYTES_MAX
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import transactions
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.property.test_cluster_map import through_bytes
from tests.property.test_transaction_fold import staging


def apply(map_: ClusterMap, command: c.AnyCommand) -> Applied:
    return map_.apply(LogIndex(map_.applied + 1), command)


def commit(*names: str, epoch: int = 0, run: str = "r1", **more: Any) -> c.CommitTransaction:
    fields: dict[str, Any] = {"user": "u", "vhost": "/"} | more
    return c.CommitTransaction(producer="p", epoch=epoch, run=run, transactions=names, **fields)


@pytest.mark.parametrize(
    "words, text",
    [
        ({"x-producer": ""}, "invalid arg 'x-producer' for exchange 'txn.a' in vhost '/': expected 1 to 255 bytes"),
        ({"x-producer": "\0a"}, "invalid arg 'x-producer' for exchange 'txn.a' in vhost '/': the first character "),
        (
            {"x-producer": None},
            "'x-producer' for exchange 'txn.a' in vhost '/': unacceptable type 'void', expected a s",
        ),
        ({"x-epoch": -1}, "expected an integer of 0 to 4611686018427387904"),
        ({"x-epoch": True}, "unacceptable type 'bool', expected an integer"),
        ({"x-run": "r" * 65}, "expected 1 to 64 bytes"),
        ({"x-target": 5}, "unacceptable type 'signedint', expected a string"),
        ({"x-target": "nope"}, "no exchange 'nope' in vhost '/'"),
        ({"x-target": "amq.rabbitmq.trace"}, "exchange 'amq.rabbitmq.trace' in vhost '/' is internal"),
        ({"x-expires": 9_999}, "expected an integer of 10000 to 86400000"),
        ({"x-max-staged-bytes": 0}, "expected an integer of 1 to 9223372036854775807"),
        ({"x-partition": "1"}, "invalid arg 'x-partition'"),
    ],
)
def test_a_bad_argument_is_named(words: dict[str, Any], text: str) -> None:
    assert text in str(apply(ClusterMap(), staging("txn.a", **words)).error)


def test_names_and_kinds_of_staging_exchanges() -> None:
    map_ = ClusterMap()
    for name in ("a", "txn.", "txn.a b", "txn." + "a" * 201):
        assert "cannot stage: its name must be" in str(apply(map_, staging(name)).error)
    good = staging("txn.a")
    for flag in ({"durable": False}, {"auto_delete": True}, {"internal": True}):
        command = c.DeclareExchange(vhost="/", name="txn.a", type="x-staging", arguments=good.arguments, durable=True)
        bad = c.DeclareExchange(**{f: getattr(command, f) for f in command.__struct_fields__} | flag)
        assert "cannot stage: it must be durable" in str(apply(map_, bad).error)
    assert apply(map_, good).ok
    assert "is a staging exchange itself" in str(apply(map_, staging("txn.b", **{"x-target": "txn.a"})).error)
    assert "inequivalent arg 'type'" in str(apply(map_, c.DeclareExchange(vhost="/", name="txn.a", type="topic")).error)


def test_a_queue_of_the_same_name_is_another_one() -> None:
    map_ = ClusterMap()
    apply(map_, staging("txn.a"))
    (staged,) = map_.staging_queues("/")
    assert map_.queue("/", "txn.a") is None
    assert apply(map_, c.DeclareQueue(vhost="/", name="txn.a", durable=True)).ok
    apply(map_, c.PutPolicy(vhost="/", name="all", pattern=".*", definition={"message-ttl": 1, "max-length": 1}))
    assert map_.effective(staged).message_ttl_ms is None
    assert map_.effective(staged).max_length_bytes == transactions.STAGED_BYTES_DEFAULT
    assert apply(map_, c.DeleteQueue(vhost="/", name="txn.a", queue_id=staged.queue_id)).result is False
    assert apply(map_, c.DeleteExchange(vhost="/", name="txn.a")).ok
    assert (map_.staging_queues("/"), len(map_.queues("/"))) == ((), 1)


def test_a_commit_is_once_and_its_answer_may_be_lost() -> None:
    map_ = ClusterMap()
    for name in ("txn.a", "txn.b", "txn.c"):
        apply(map_, staging(name))
    assert apply(map_, commit("txn.b", "txn.a")).result.outcome == "committed"
    assert [(s.name, s.place) for s in map_.segments("/")] == [("txn.a", 1), ("txn.b", 0)], "the loser is dropped"
    again = apply(map_, commit("txn.b", "txn.a"))
    assert (again.result.outcome, again.changes) == ("already", ())
    for ended in (c.DeleteExchange(vhost="/", name="txn.a"),):
        assert "is committed" in str(apply(map_, ended).error)
    apply(map_, c.AbortTransaction(vhost="/", producer="p", epoch=0, run="r1", transactions=("txn.a",), user="u"))
    assert len(map_.segments("/")) == 2, "what is committed is never dropped"
    replay = apply(map_, staging("txn.d"))
    assert replay.ok
    segment = map_.segment("/", "txn.d")
    assert segment is not None
    assert segment.discards


def test_rows_that_may_be_lost_are_not_committed() -> None:
    map_ = ClusterMap()
    nodes = [NodeId(name) for name in "ab"]
    for node in nodes:
        apply(map_, c.AddMember(name=node, address=f"{node}:1"))
        apply(map_, c.RegisterNode(node=node, disk_id=node, incarnation=Incarnation(1), address=f"{node}:1"))
    opened = staging("txn.a")
    fields = {field: getattr(opened, field) for field in opened.__struct_fields__}
    apply(map_, c.DeclareExchange(**fields | {"owner": nodes[1]}))
    (queue,) = map_.staging_queues("/")
    assert (queue.owner, queue.replicas) == ("b", ("a", "b")), "the rows are where the client is, and a copy"
    apply(map_, c.FailNode(node=nodes[0], incarnation=Incarnation(1)))
    apply(map_, c.FailNode(node=nodes[1], incarnation=Incarnation(1)))
    apply(map_, c.RegisterNode(node=nodes[0], disk_id="a", incarnation=Incarnation(2), address="a:1"))
    apply(map_, c.ForceOwner(queue_id=queue.queue_id, node=nodes[0]))
    refused = apply(map_, commit("txn.a")).result
    assert (refused.outcome, refused.code) == ("refused", 410)


def test_the_owner_of_before_finishes_nothing() -> None:
    map_ = ClusterMap()
    apply(map_, staging("txn.a"))
    (queue,) = map_.staging_queues("/")
    apply(map_, commit("txn.a"))
    for epoch, left in ((2, 1), (1, 0)):
        ended = c.FinishSegments(
            node=NodeId("local"), incarnation=Incarnation(1), segments=((queue.queue_id, Epoch(epoch), 3),) * 2
        )
        assert apply(map_, ended).ok
        assert len(map_.segments("/")) == left
    assert map_.segment_of_queue(QueueId(queue.queue_id)) is None
    assert [producer.unroutable for producer in map_.producers("/")] == [3]


def test_an_epoch_waits_for_all_of_those_before() -> None:
    """Also in a map that comes from a snapshot, and that of other producers says nothing."""
    map_ = ClusterMap()
    names = ("txn.0a", "txn.0b", "txn.2", "txn.3")
    for name in names:
        apply(map_, staging(name, epoch=int(name[4])))
        if name != "txn.0a":
            own = tuple(other for other in names if other[4] == name[4])
            assert apply(map_, commit(*own, epoch=int(name[4]))).result.outcome == "committed"
    apply(map_, staging("txn.q", "q", epoch=9))

    def waiting(map_: ClusterMap) -> str:
        return " ".join(one.name[4:] for one in map_.segments("/") if map_.moves_before("/", one.producer, one.epoch))

    for name, left in (("", "2 3"), ("txn.0b", "2 3"), ("txn.0a", "3"), ("txn.2", ""), ("txn.3", "")):
        segment = map_.segment("/", name)
        ended = ((segment.queue_id, Epoch(1), 0),) if segment is not None else ()
        apply(map_, c.FinishSegments(node=NodeId("local"), incarnation=Incarnation(1), segments=ended))
        assert (waiting(map_), waiting(through_bytes(map_))) == (left, left)
    assert [one.name for one in map_.segments("/")] == ["txn.q"]


def test_a_producer_is_its_first_users(monkeypatch: pytest.MonkeyPatch) -> None:
    map_ = ClusterMap()
    apply(map_, staging("txn.a"))
    assert "belongs to user 'u'" in str(apply(map_, staging("txn.b", user="v")).error)
    assert apply(map_, commit(epoch=5, user="v")).result.code == 403
    assert apply(map_, commit(epoch=5, user="v", is_administrator=True)).result.outcome == "committed"
    monkeypatch.setattr(transactions, "PRODUCERS_MAX", 1)
    assert apply(map_, staging("txn.q", "q")).error is not None
    monkeypatch.setattr(transactions, "SEGMENTS_MAX", 0)
    assert "has 0 open transactions" in str(apply(map_, staging("txn.c", epoch=6)).error)


def beginning(producer: str, user: str = "u", **more: Any) -> c.CommitTransaction:
    """A commit of nothing."""
    return c.CommitTransaction(vhost="/", producer=producer, epoch=0, run="r1", transactions=(), user=user, **more)


def test_a_user_has_half_of_the_producers_that_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PRODUCERS_MAX", 12)
    map_ = ClusterMap()

    def begun(user: str, **more: Any) -> int:
        """How many producers of its own a user may begin now."""
        for number in range(20):
            command = beginning(f"{user}{number}", user=user, **more)
            result = apply(map_, command).result
            if result.outcome == "refused":
                refused = apply(map_, staging(f"txn.{user}", f"{user}{number}", user=user, **more)).error
                assert (result.code, result.reason) == (406, str(refused).partition(" - ")[2] or str(refused))
                return number
        raise AssertionError("there is an end to it")

    assert (begun("u"), begun("v"), begun("w")) == (6, 3, 1), "some is always left"
    assert begun("u") == 6, "what is there goes on"
    reason = "user 'u' has 6 producers of transactions in vhost '/', half of what others leave"
    assert apply(map_, beginning("u9")).result.reason == reason
    assert begun("a", is_administrator=True) == 2, "administrators have what is left"
    assert apply(map_, beginning("x", user="x")).result.reason.startswith("vhost '/' has 12")


def test_the_end_of_a_vhost_is_the_end_of_its_transactions() -> None:
    map_ = ClusterMap()
    apply(map_, staging("txn.a"))
    apply(map_, c.DeleteVhost(name="/"))
    assert (map_.segments("/"), map_.producers("/"), map_.lasting_queues()) == ((), (), ())


def test_an_import_opens_no_segment() -> None:
    applied = apply(ClusterMap(), c.ImportDefinitions(import_id="i", number=0, commands=(staging("txn.a"),)))
    assert "a staging exchange belongs to a transaction" in str(applied.error)


def test_what_commands_name_fits_into_the_wiring_log() -> None:
    """All of a vhost's transactions and producers may be over at once, and have the longest of names."""
    map_ = ClusterMap()
    many = 2 * transactions.DUE_MAX + 1
    for number in range(many):
        producer = f"{number:04}" + "p" * (transactions.PRODUCER_BYTES_MAX - 4)
        assert apply(map_, staging(f"txn.{number:04}" + "x" * 196, **{"x-producer": producer})).ok
    later = 2**50
    assert apply(map_, c.PassTime(after_ms=0, lived_ms=later, wall_ms=1)).ok
    ended = 0
    for _ in range(2):
        for found in map_.due(later):
            for command in (
                c.ExpireTransactions(lived_ms=later, vhost=found.vhost, names=found.segments),
                c.ForgetProducers(lived_ms=later, vhost=found.vhost, names=found.producers),
            ):
                assert len(c.encode(command)) <= COMMAND_BYTES_MAX
                assert apply(map_, command).ok
            ended += len(found.segments) + len(found.producers)
    assert (ended, map_.segments("/"), map_.producers("/")) == (2 * many, (), ())


def test_the_longest_commit_fits_into_the_wiring_log() -> None:
    name = "x" * (transactions.NAMES_BYTES_MAX // transactions.TRANSACTIONS_MAX)
    command = commit(*[name] * transactions.TRANSACTIONS_MAX, run="r" * 64, user="u" * 255, vhost="v" * 255)
    assert len(c.encode(command)) + transactions.PRODUCER_BYTES_MAX <= COMMAND_BYTES_MAX
