"""Transactions in the fold, against a model of what docs/design/005-spark.md says, over random logs."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.ids import LOCAL_NODE, Epoch, Incarnation, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from clusterbroker.cluster.wiring.transactions import FENCED_RUNS_MAX
from tests.budget import examples
from tests.property.test_cluster_map import through_bytes

NAMES = st.sampled_from(["txn.a", "txn.b", "txn.c", "txn.d"])
PRODUCERS = st.sampled_from(["p", "q"])
EPOCHS = st.integers(0, 3)
RUNS = st.sampled_from(["r1", "r2", "r3"])
USERS = st.sampled_from(["u", "u", "v"])
TIMES = st.integers(0, 40_000)
AGES = st.sampled_from([0, 0, 1_000, 12_000, 30_000, 90_000])


def staging(
    name: str,
    producer: str = "p",
    epoch: int = 0,
    run: str = "r1",
    user: str = "u",
    at_ms: int = 0,
    lived_ms: int = 0,
    **more: Any,
) -> c.DeclareExchange:
    words = {"x-producer": producer, "x-epoch": epoch, "x-run": run, "x-target": "amq.topic", "x-expires": 10_000}
    return c.DeclareExchange(
        at_ms=at_ms,
        vhost="/",
        name=name,
        type="x-staging",
        durable=True,
        arguments=words | more,
        user=user,
        lived_ms=lived_ms,
    )


COMMANDS: st.SearchStrategy[c.AnyCommand] = st.one_of(
    st.builds(staging, NAMES, PRODUCERS, EPOCHS, RUNS, USERS, TIMES, AGES),
    st.builds(staging, NAMES, PRODUCERS, EPOCHS, RUNS, USERS, TIMES, AGES),
    st.builds(
        c.CommitTransaction,
        at_ms=TIMES,
        vhost=st.just("/"),
        producer=PRODUCERS,
        epoch=EPOCHS,
        run=RUNS,
        transactions=st.lists(NAMES, max_size=3, unique=True).map(tuple),
        rows=st.integers(0, 9),
        ttl_ms=st.sampled_from([None, 3_600_000, 20_000]),
        lived_ms=AGES,
        user=USERS,
        is_administrator=st.sampled_from([False, False, True]),
    ),
    st.builds(
        c.AbortTransaction, vhost=st.just("/"), producer=PRODUCERS, epoch=EPOCHS, run=RUNS,
        transactions=st.lists(NAMES, max_size=3).map(tuple), user=USERS, is_administrator=st.booleans(),
    ),
    st.builds(
        c.ExpireTransactions, at_ms=TIMES, vhost=st.just("/"), names=st.lists(NAMES, max_size=4).map(tuple),
        lived_ms=AGES,
    ),
    st.builds(
        c.ForgetProducers, at_ms=TIMES, vhost=st.just("/"), names=st.lists(PRODUCERS, max_size=2).map(tuple),
        lived_ms=AGES,
    ),
    st.builds(c.PassTime, at_ms=TIMES, after_ms=AGES, lived_ms=AGES, wall_ms=TIMES),
    st.builds(
        c.FinishSegments,
        node=st.sampled_from([LOCAL_NODE, LOCAL_NODE, NodeId("other")]),
        incarnation=st.just(Incarnation(1)),
        segments=st.lists(
            st.tuples(st.integers(0, 30).map(QueueId), st.sampled_from([1, 1, 2]).map(Epoch), st.integers(0, 2)),
            max_size=8,
        ).map(tuple),
    ),
    st.builds(c.DeleteExchange, vhost=st.just("/"), name=NAMES),
    st.builds(c.DeleteQueue, vhost=st.just("/"), name=NAMES, queue_id=st.integers(1, 30).map(QueueId)),
    st.builds(c.DeclareQueue, vhost=st.just("/"), name=NAMES, durable=st.just(True)),
    st.builds(c.Bind, vhost=st.just("/"), source=st.just("amq.topic"), destination=NAMES,
              destination_kind=st.sampled_from(["queue", "exchange"])),
)  # fmt: skip
LOGS = st.lists(COMMANDS, max_size=40)


class Model:
    """Segments and ledger as plain dictionaries; what `expects` says of a command before it is applied."""

    def __init__(self) -> None:
        self.ledger: dict[str, dict[str, Any]] = {}
        self.segments: dict[str, dict[str, Any]] = {}
        self.lived = 0

    def expects(self, command: Any, index: int) -> str:
        """ "" or what stands in the error or in the reason of the refusal."""
        name = {
            "DeclareExchange": "declare", "CommitTransaction": "commit", "AbortTransaction": "abort",
            "ExpireTransactions": "expire", "ForgetProducers": "forget", "FinishSegments": "finish",
            "DeleteExchange": "delete", "Bind": "bind", "PassTime": "pass_time",
        }.get(type(command).__name__)  # fmt: skip
        return getattr(self, name)(command, index) if name else ""

    def drop(self, which: Any) -> None:
        self.segments = {
            name: segment
            for name, segment in self.segments.items()
            if segment["place"] is not None or not which(segment)
        }

    def fence(self, producer: str, run: str) -> None:
        entry = self.ledger[producer]
        if entry["run"] != run:
            self.drop(lambda s: s["producer"] == producer and s["run"] != run)
            entry["fenced"] = ([*entry["fenced"], entry["run"]] if entry["run"] else [])[-FENCED_RUNS_MAX:]
            entry["run"] = run

    def declare(self, command: c.DeclareExchange, index: int) -> str:
        words = command.arguments
        producer, epoch, run = words["x-producer"], words["x-epoch"], words["x-run"]
        if (there := self.segments.get(command.name)) is not None:
            same = (there["producer"], there["epoch"], there["run"]) == (producer, epoch, run)
            return "" if same else "inequivalent arg"
        entry = self.ledger.get(producer)
        if entry is not None:
            if entry["user"] != command.user:
                return "belongs to user"
            if entry["epoch"] > epoch:
                return f"has committed epoch {entry['epoch']}, and {epoch} is over"
            if run in entry["fenced"]:
                return f"was replaced by run {entry['run']}"
        else:
            entry = {"epoch": -1, "run": run, "fenced": [], "user": command.user, "at": 0, "ttl": 30 * 24 * 3_600_000}
            self.ledger[producer] = entry
        self.fence(producer, run)
        if entry["epoch"] < 0:
            entry["at"] = max(entry["at"], command.at_ms)
            entry["lived"] = max(entry.get("lived", 0), command.lived_ms, self.lived)
        self.segments[command.name] = {
            "producer": producer, "epoch": epoch, "run": run, "place": None, "user": command.user,
            "queue": 0 if entry["epoch"] == epoch else index, "ends": command.at_ms + 10_000,
            "over": max(command.lived_ms, self.lived) + 10_000,
        }  # fmt: skip
        return ""

    def commit(self, command: c.CommitTransaction, _: int) -> str:
        entry = self.ledger.get(command.producer)
        others = not command.is_administrator
        if entry is not None:
            if others and entry["user"] != command.user:
                return "403 belongs to user"
            if entry["epoch"] == command.epoch:
                self.drop(lambda s: s["producer"] == command.producer and s["epoch"] <= command.epoch)
                return "already"
            if entry["epoch"] > command.epoch:
                return "409 has committed"
            if command.run in entry["fenced"]:
                return "409 was replaced"
        for name in command.transactions:
            segment = self.segments.get(name)
            if segment is None:
                return "404 is not there"
            if (segment["producer"], segment["epoch"], segment["run"]) != (
                command.producer,
                command.epoch,
                command.run,
            ):
                return "409 is of producer"
            if others and segment["user"] != command.user:
                return "403 belongs to user"
        for place, name in enumerate(command.transactions):
            self.segments[name]["place"] = place
        if entry is None:
            entry = {"run": command.run, "fenced": [], "user": command.user, "ttl": 30 * 24 * 3_600_000}
            self.ledger[command.producer] = entry
        self.fence(command.producer, command.run)
        entry |= {"epoch": command.epoch, "at": command.at_ms, "ttl": command.ttl_ms or entry["ttl"]}
        entry["lived"] = max(command.lived_ms, self.lived)
        self.drop(lambda s: s["producer"] == command.producer and s["epoch"] <= command.epoch)
        return "committed"

    def abort(self, command: c.AbortTransaction, _: int) -> str:
        entry = self.ledger.get(command.producer)
        if entry is not None and not command.is_administrator and entry["user"] != command.user:
            return "403 belongs to user"
        listed = {name: self.segments.get(name) for name in command.transactions}
        whose = (command.producer, command.epoch, command.run)
        self.drop(lambda s: s in listed.values() and (s["producer"], s["epoch"], s["run"]) == whose)
        return "aborted"

    def expire(self, command: c.ExpireTransactions, _: int) -> str:
        listed = {name: self.segments.get(name) for name in command.names}
        if command.lived_ms:
            self.drop(lambda s: s in listed.values() and s["over"] <= min(command.lived_ms, self.lived))
        else:
            self.drop(lambda s: s in listed.values() and s["ends"] <= command.at_ms)
        return ""

    def forget(self, command: c.ForgetProducers, _: int) -> str:
        used = {segment["producer"] for segment in self.segments.values()}
        for name in command.names:
            entry = self.ledger.get(name)
            if entry is None or name in used:
                continue
            by_age = entry["lived"] + entry["ttl"] <= min(command.lived_ms, self.lived)
            if by_age if command.lived_ms else entry["at"] + entry["ttl"] <= command.at_ms:
                del self.ledger[name]
        return ""

    def pass_time(self, command: c.PassTime, _: int) -> str:
        if command.after_ms == self.lived < command.lived_ms:
            self.lived = command.lived_ms
        return ""

    def finish(self, command: c.FinishSegments, _: int) -> str:
        ended = {queue for queue, epoch, _ in command.segments if epoch == 1 and command.node == LOCAL_NODE}
        self.segments = {n: s for n, s in self.segments.items() if s["place"] is None or s["queue"] not in ended}
        return ""

    def delete(self, command: c.DeleteExchange, _: int) -> str:
        segment = self.segments.get(command.name)
        if segment is not None and segment["place"] is not None:
            return "is committed"
        self.segments.pop(command.name, None)
        return ""

    def bind(self, command: c.Bind, _: int) -> str:
        staged = command.destination_kind == "exchange" and command.destination in self.segments
        return "has no bindings" if staged else "|no queue|no exchange"


def agrees(expected: str, applied: Applied) -> bool:
    result = applied.result
    if isinstance(applied.command, c.CommitTransaction | c.AbortTransaction):
        assert applied.ok, "a refusal is a result"
        said = f"{result.code} {result.reason}" if result.outcome == "refused" else result.outcome
        code, *words = expected.split(" ", 1)
        return said.startswith(code) and all(word in said for word in words)
    if expected == "" or (expected.startswith("|") and applied.ok):
        return applied.ok
    return re.search(expected.strip("|"), str(applied.error)) is not None


def seen(segment: Segment) -> tuple[Any, ...]:
    return segment.producer, segment.epoch, segment.run, segment.place, segment.user, segment.queue_id


def check(map_: ClusterMap, model: Model) -> None:
    assert {s.name: seen(s) for s in map_.segments("/")} == {
        name: (s["producer"], s["epoch"], s["run"], s["place"], s["user"], s["queue"])
        for name, s in model.segments.items()
    }
    assert {p.name: (-1 if p.epoch is None else p.epoch, p.run, list(p.fenced_runs)) for p in map_.producers("/")} == {
        name: (entry["epoch"], entry["run"], entry["fenced"]) for name, entry in model.ledger.items()
    }
    staged = {q.queue_id for q in map_.staging_queues("/")}
    assert staged == {s["queue"] for s in model.segments.values() if s["queue"]}
    assert all(map_.exchange("/", name) is not None for name in model.segments)
    assert not {x.name for x in map_.exchanges("/") if x.type == "x-staging"} - model.segments.keys()
    assert not any(queue.staging for queue in map_.queues())
    for segment in map_.segments("/"):
        of = map_.segments_of("/", segment.producer)
        assert segment in of
        before = any(other.epoch < segment.epoch and other.place is not None for other in of)
        assert map_.moves_before("/", segment.producer, segment.epoch) is before
        if segment.queue_id:
            assert map_.segment_of_queue(segment.queue_id) == segment


@given(LOGS)
@settings(max_examples=examples(600), deadline=None)
def test_the_fold_does_what_the_contract_says(commands: list[c.AnyCommand]) -> None:
    map_, model = ClusterMap(), Model()
    digest = map_.digest()
    for index, command in enumerate(commands, 1):
        expected = model.expects(command, index)
        applied = map_.apply(LogIndex(index), command)
        assert agrees(expected, applied), (expected, applied)
        check(map_, model)
        now = map_.digest()
        assert (now != digest) is bool(applied.changes), "every change is told, and nothing else"
        digest = now


@given(LOGS, LOGS)
@settings(max_examples=examples(150), deadline=None)
def test_snapshot_and_tail_are_the_whole_log(head: list[c.AnyCommand], tail: list[c.AnyCommand]) -> None:
    whole = ClusterMap()
    for command in head:
        whole.apply(LogIndex(whole.applied + 1), c.decode(c.encode(command)))
    restored = through_bytes(whole)
    assert restored.digest() == whole.digest()
    assert [restored.moves_before("/", one.producer, one.epoch) for one in restored.segments("/")] == [
        whole.moves_before("/", one.producer, one.epoch) for one in whole.segments("/")
    ]
    for command in tail:
        index = LogIndex(whole.applied + 1)
        assert whole.apply(index, command) == restored.apply(index, command)
    assert restored.digest() == whole.digest()


@given(LOGS, AGES)
@settings(max_examples=examples(150), deadline=None)
def test_what_is_due_is_over_when_it_is_ordered(commands: list[c.AnyCommand], lived_ms: int) -> None:
    map_ = ClusterMap()
    for command in commands:
        map_.apply(LogIndex(map_.applied + 1), command)
    committed = [segment for segment in map_.segments("/") if segment.place is not None]
    lived_ms += map_.time.lived_ms + 1
    passed = c.PassTime(after_ms=map_.time.lived_ms, lived_ms=lived_ms, wall_ms=1)
    assert map_.apply(LogIndex(map_.applied + 1), passed).changes
    for _ in range(2):  # a producer whose last segment has expired is next
        for found in map_.due(lived_ms):
            for command in (
                c.ExpireTransactions(lived_ms=lived_ms, vhost=found.vhost, names=found.segments),
                c.ForgetProducers(lived_ms=lived_ms, vhost=found.vhost, names=found.producers),
            ):
                map_.apply(LogIndex(map_.applied + 1), command)
    assert not list(map_.due(lived_ms))
    assert [segment for segment in map_.segments("/") if segment.place is not None] == committed
