"""The local log over a real directory: order, durability, restart, snapshots, a full disk, a failing one."""

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.cluster.errors import DamagedLog, DiskFailed, DiskFull, LogFailure, PreconditionFailed, Unavailable
from clusterbroker.cluster.local_log import LocalLog
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring_log import WiringLog


class Node:
    """The thread that owns the log, without an event loop: what the writer calls back is run by `until`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "wiring"
        self._soon: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.failures: list[LogFailure] = []
        self.log: LocalLog

    def start(self, **options: Any) -> LocalLog:
        self.log = LocalLog(self.directory, call_soon=self._soon.put, on_failure=self.failures.append, **options)
        return self.log

    def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            assert left_s > 0, "waited too long"
            try:
                self._soon.get(timeout=min(left_s, 0.05))()
            except queue.Empty:
                continue

    def do(self, command: c.AnyCommand) -> Applied:
        outcome: list[Applied] = []
        self.log.propose(command, outcome.append)
        self.until(lambda: outcome)
        return outcome[0]

    def settle(self) -> None:
        self.until(lambda: self.log.pending == 0 and not self.log._busy)

    def crashed(self, elsewhere: Path) -> Path:
        """The directory as a crash would leave it now, in another place: without what close would write."""
        directory = elsewhere / "wiring"
        directory.mkdir(parents=True)
        (directory / "data.mdb").write_bytes((self.directory / "data.mdb").read_bytes())
        return directory

    def restart(self, **options: Any) -> LocalLog:
        self.log.close()
        return self.start(**options)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.start()
    yield node
    node.log.close()


def durable(name: str, **fields: Any) -> c.DeclareQueue:
    return c.DeclareQueue(vhost="/", name=name, durable=True, **fields)


def names(log: WiringLog) -> list[str]:
    return [q.name for q in log.map.queues("/")]


def test_a_durable_command_is_told_after_its_commit(node: Node) -> None:
    outcome: list[Applied] = []
    node.log.propose(durable("q"), outcome.append)
    assert outcome == []
    assert node.log.map.queue("/", "q") is None, "nobody sees it before it is durable"
    node.until(lambda: outcome)
    assert outcome[0].result is node.log.map.queue("/", "q")
    digest = node.log.map.digest()
    assert node.restart().map.digest() == digest


def test_the_last_committed_state_survives_without_close(node: Node, tmp_path: Path) -> None:
    node.do(durable("q"))
    node.do(c.Bind(vhost="/", source="amq.topic", destination="q", routing_key="a"))
    stored = LogStore(node.crashed(tmp_path / "crash"))
    assert [type(command).__name__ for _, command in stored.load().entries] == ["DeclareQueue", "Bind"]
    stored.close()


def test_many_pipelined_are_told_in_order(node: Node) -> None:
    told: list[int] = []
    heard: list[int] = []
    node.log.listen(lambda applied: heard.append(applied.index))
    count = 3000
    for n in range(count):
        node.log.propose(durable(f"q{n}"), lambda applied: told.append(applied.index))
    node.until(lambda: len(told) == count)
    assert told == sorted(told)
    assert heard == told
    assert names(node.restart()) == [f"q{n}" for n in range(count)]


def test_what_promises_nothing_is_told_at_once(node: Node) -> None:
    node.do(durable("q"))
    told: list[bool] = []
    node.log.propose(c.DeclareQueue(vhost="/", name="t"), lambda applied: told.append(applied.ok))
    node.log.propose(durable("q"), lambda applied: told.append(applied.ok))
    node.log.propose(durable("q", auto_delete=True), lambda applied: told.append(applied.ok))
    assert told == [True, True, False]


def test_but_waits_behind_what_waits(node: Node) -> None:
    node.do(durable("q"))
    told: list[str] = []
    node.log.propose(durable("r"), lambda applied: told.append("r"))
    node.log.propose(c.DeclareQueue(vhost="/", name="t"), lambda applied: told.append("t"))
    assert told == []
    node.until(lambda: len(told) == 2)
    assert told == ["r", "t"]


def test_transient_things_end_with_a_restart(node: Node) -> None:
    node.do(durable("kept"))
    node.do(c.DeclareQueue(vhost="/", name="t"))
    node.do(durable("e", exclusive=True, connection="c1"))
    node.do(c.DeclareExchange(vhost="/", name="x", type="fanout"))
    node.do(c.Bind(vhost="/", source="x", destination="kept"))
    node.do(c.Bind(vhost="/", source="amq.fanout", destination="t"))
    node.do(durable("later"))
    log = node.restart()
    assert names(log) == ["kept", "later"]
    assert log.map.exchange("/", "x") is None
    assert log.map.bindings("/") == ()


def test_a_refusal_that_a_transient_queue_caused_is_replayed_as_a_refusal(node: Node) -> None:
    node.do(durable("first"))
    node.do(c.DeclareQueue(vhost="/", name="name"))
    outcomes: list[Applied] = []
    node.log.propose(durable("other"), outcomes.append)
    node.log.propose(durable("name"), outcomes.append)
    node.until(lambda: len(outcomes) == 2)
    assert isinstance(outcomes[1].error, PreconditionFailed)
    assert names(node.restart()) == ["first", "other"], "the refused declare did not come true by the restart"


def test_an_index_is_never_given_twice(node: Node) -> None:
    given: list[int] = []
    for _ in range(4):
        given.append(node.do(c.DeclareQueue(vhost="/", name="t")).result.queue_id)
        given.append(node.do(durable(f"q{len(given)}")).result.queue_id)
        given.append(node.do(c.DeclareQueue(vhost="/", name="u")).result.queue_id)
        node.restart()
    assert len(set(given)) == len(given)


def test_nor_after_a_crash(tmp_path: Path) -> None:
    crashed = Node(tmp_path / "a")
    crashed.start()
    given = [crashed.do(c.DeclareQueue(vhost="/", name=name)).result.queue_id for name in "abc"]
    crashed.crashed(tmp_path / "b")
    again = Node(tmp_path / "b")
    again.start()
    assert again.do(c.DeclareQueue(vhost="/", name="a")).result.queue_id > max(given)
    again.log.close()
    crashed.log.close()


def test_snapshots_trim_the_log_and_keep_the_state(node: Node) -> None:
    node.restart(snapshot_every=50)
    for n in range(400):
        node.do(durable(f"q{n % 40}"))
        queue_ = node.log.map.queue("/", f"q{n % 40}")
        assert queue_ is not None
        if n % 3 == 0:
            node.do(c.DeleteQueue(vhost="/", name=queue_.name, queue_id=queue_.queue_id))
        if n % 5 == 0:
            node.log.propose(c.DeclareQueue(vhost="/", name=f"t{n}"))
    node.settle()
    assert node.log._tail_length < 300
    expected = [q.name for q in node.log.map.queues("/") if q.durable]
    node.restart()
    stored = names(node.log)
    assert stored == expected
    assert node.restart().map.queues("/") is not None


def test_a_snapshot_includes_what_was_not_written_yet(node: Node, tmp_path: Path) -> None:
    node.restart(snapshot_every=2)
    node.do(durable("a"))
    ids = [node.do(c.DeclareQueue(vhost="/", name=f"t{n}")).result.queue_id for n in range(30)]
    node.do(durable("b"))
    for n in range(20):
        node.log.propose(c.DeleteQueue(vhost="/", name=f"t{n}", queue_id=ids[n]))
    assert node.log._lazy, "the deletions are applied and not written"
    # the log is longer than the state now, so the next commit comes behind a snapshot
    node.do(durable("c"))
    store = LogStore(node.crashed(tmp_path / "crash"))
    stored = store.load()
    store.close()
    assert stored.snapshot is not None
    assert [q.name for q in stored.snapshot.queues] == ["a", *(f"t{n}" for n in range(20, 30)), "b"]
    assert [type(command).__name__ for _, command in stored.entries] == ["DeclareQueue"]


def test_a_snapshot_that_finds_no_room_loses_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.restart(snapshot_every=2)
    written = LogStore.write_snapshot
    attempts: list[int] = []

    def full(store: LogStore, index: Any, chunks: Any) -> None:
        attempts.append(index)
        if len(attempts) == 1:
            raise DiskFull("no room")
        written(store, index, chunks)

    monkeypatch.setattr(LogStore, "write_snapshot", full)
    node.do(durable("a"))
    ids = [node.do(c.DeclareQueue(vhost="/", name=f"t{n}")).result.queue_id for n in range(30)]
    node.do(durable("b"))
    for n in range(20):
        node.log.propose(c.DeleteQueue(vhost="/", name=f"t{n}", queue_id=ids[n]))
    node.do(durable("t3"))
    assert len(attempts) == 1
    assert names(node.restart()) == ["a", "b", "t3"], "the deletion of the transient t3 was kept for the next commit"


def test_what_is_proposed_while_told_comes_after_the_batch(node: Node) -> None:
    order: list[str] = []

    def again(applied: Applied) -> None:
        name = applied.result.name
        order.append(name)
        if name in {"b", "c"}:
            node.log.propose(c.DeclareQueue(vhost="/", name=f"after-{name}"), again)

    for name in ("a", "b", "c", "d"):
        node.log.propose(durable(name), again)
    node.until(lambda: len(order) == 6)
    assert order == ["a", "b", "c", "d", "after-b", "after-c"]


def test_a_failing_listener_stops_no_command(node: Node) -> None:
    def fail(applied: Applied) -> None:
        raise RuntimeError("listener")

    node.log.listen(fail)
    for name in ("a", "b", "c"):
        node.log.propose(durable(name))
    raised = 0
    while len(names(node.log)) < 3 or node.log.pending:
        try:
            node.until(lambda: len(names(node.log)) == 3 and node.log.pending == 0)
        except RuntimeError:
            raised += 1
    assert raised == 2, "one for each batch"
    with pytest.raises(RuntimeError, match="listener"):
        node.log.propose(c.DeclareQueue(vhost="/", name="t"))
    assert names(node.log) == ["a", "b", "c", "t"]
    assert names(node.restart()) == ["a", "b", "c"]


def test_after_close_one_may_try_another_node(node: Node) -> None:
    outcomes: list[Applied] = []
    node.log.propose(durable("a"), outcomes.append)
    node.log.propose(durable("b"), outcomes.append)
    node.log.close()
    node.log.propose(durable("c"), outcomes.append)
    assert [o.command.name for o in outcomes if o.ok] == ["a"]  # type: ignore[union-attr]
    refused = [o for o in outcomes if not o.ok]
    assert [o.command.name for o in refused] == ["b", "c"]  # type: ignore[union-attr]
    assert all(isinstance(o.error, Unavailable) and o.error.retriable and o.index == 0 for o in refused)
    assert names(node.start()) == ["a"]


def test_a_full_disk_refuses_and_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    node.log._store.close()
    node.log._store = LogStore(node.directory, map_bytes=1 << 17)
    node.do(durable("a"))
    outcomes: list[Applied] = []
    for n in range(900):
        node.log.propose(durable(f"{n}-{'x' * 200}"), outcomes.append)
    node.until(lambda: len(outcomes) == 900)
    refused = [o for o in outcomes if isinstance(o.error, DiskFull)]
    assert refused
    assert all(o.index == 0 for o in refused)
    assert node.failures == []
    assert node.do(durable("b")).ok
    kept = names(node.log)
    assert names(node.restart()) == kept
    node.log.close()


def test_a_failed_disk_stops_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise DiskFailed("input/output error")

    monkeypatch.setattr(LogStore, "append", fail)
    outcomes: list[Applied] = []
    node.log.propose(durable("a"), outcomes.append)
    node.log.propose(durable("b"), outcomes.append)
    node.until(lambda: len(outcomes) == 2)
    assert all(isinstance(o.error, Unavailable) for o in outcomes)
    assert [str(failure) for failure in node.failures] == ["input/output error"]
    node.log.propose(durable("c"), outcomes.append)
    assert isinstance(outcomes[2].error, Unavailable)
    assert names(node.log) == []


def test_a_damaged_log_stops_the_start(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.do(durable("a"))
    node.log.close()
    path = node.directory / "data.mdb"
    stored = path.read_bytes()
    place = stored.rindex(b"declare_queue")
    path.write_bytes(stored[:place] + b"X" + stored[place + 1 :])
    with pytest.raises(DamagedLog, match="does not match its checksum"):
        node.start()
    assert path.read_bytes()[place : place + 1] == b"X", "nothing is repaired silently"


def test_ten_thousand_queues_open_quickly(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(sync=False)
    told: list[int] = []
    for n in range(10_000):
        node.log.propose(durable(f"q{n}"), lambda applied: told.append(applied.index))
    node.until(lambda: len(told) == 10_000)
    node.log.close()
    began = time.thread_time()
    node.start()
    assert time.thread_time() - began < 2.0
    assert len(node.log.map.queues("/")) == 10_000
    node.log.close()
