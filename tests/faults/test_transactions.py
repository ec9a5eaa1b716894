"""Transactions at three real nodes: somebody is killed while rows are staged, committed and moved."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from clusterbroker.pipeline import asking
from clusterbroker.pipeline.bulk import any_endpoint
from clusterbroker.pipeline.connection import ConnectionLost, PublisherError
from clusterbroker.pipeline.task import Written
from clusterbroker.pipeline.transactions import Transaction, abort, commit, status
from tests.faults.staging import Nodes, attempt, forget_connections, rows, twice_or_never
from tests.unit.pipeline.publisher_line import Line


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("cluster"))
    running.begin()
    yield running
    running.end()
    for node in running.nodes.values():
        assert "Traceback" not in node.log.read_text(errors="replace"), node.log


@pytest.fixture(autouse=True)
def all_alive(nodes: Nodes) -> Iterator[None]:
    for name in "abc":
        if name not in nodes.alive:
            nodes.revive(name)
    yield
    forget_connections()


def test_the_owner_of_a_segment_dies_while_rows_are_staged(nodes: Nodes) -> None:
    """Its client is connected to it, so the attempt fails; the next one is at another node."""
    nodes.declare("staged", "staged", "b")
    transaction = Transaction("staging", 0, "run")

    def dying() -> Iterator[object]:
        yield rows(range(1000), "staged")
        nodes.shoot("a")
        yield rows(range(1000, 2000), "staged")

    options = nodes.options("a")
    with pytest.raises(ConnectionLost):
        attempt(options, transaction, dying())
    second = attempt(options, transaction, [rows(range(2000), "staged")], number=1)
    assert nodes.drained("staged") == []
    assert commit(options, transaction, second.segments, 2000) == "committed"
    told = nodes.at_rest("staging")
    assert (told["epoch"], told["unroutable"]) == (0, 0)
    assert nodes.drained("staged") == [b"%d" % number for number in range(2000)], "in order, too"


def test_the_owner_of_a_segment_dies_before_the_commit(nodes: Nodes) -> None:
    nodes.declare("before", "before", "b")
    transaction = Transaction("before", 0, "run")
    written = attempt(nodes.options("a"), transaction, [rows(range(5000), "before")])
    nodes.shoot("a")
    assert commit(nodes.options("a"), transaction, written.segments, 5000) == "committed"
    nodes.at_rest("before")
    assert nodes.drained("before") == [b"%d" % number for number in range(5000)]


@pytest.mark.parametrize("whom", ["the owner of the segments", "the owner of the targets", "the leader"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_node_dies_in_the_middle_of_the_move(nodes: Nodes, whom: str, seed: int) -> None:
    """`whom` is killed when some of the 24,000 rows are still on their way to two queues."""
    chance = random.Random(f"{whom} {seed}")
    name = f"{whom.split()[-1]}{seed}"
    segments, targets = chance.sample("abc", 2)
    victim = {"segments": segments, "targets": targets}.get(whom.split()[-1]) or nodes.leader
    for queue in ("x", "y"):
        nodes.declare(f"{name}.{queue}", f"{name}.#" if queue == "x" else f"{name}.odd", targets)
    transaction, options = Transaction(name, 0, "run"), nodes.options(segments)
    written = []
    for partition in range(4):
        mine = range(partition * 6000, partition * 6000 + 6000)
        batches = [
            rows(mine[at : at + 500], f"{name}.{'odd' if at // 500 % 2 else 'even'}") for at in range(0, 6000, 500)
        ]
        written.append(attempt(options, transaction, batches, partition))
    names = [segment for one in written for segment in one.segments]
    outcome = commit(options, transaction, names, 24_000)
    assert outcome == "committed"
    some = chance.randrange(24_000)
    while (moving := status(options, name)["moving"]) > some:
        pass
    nodes.shoot(victim)
    assert commit(nodes.options(*nodes.alive), transaction, names, 24_000) == "already"
    nodes.at_rest(name)
    found = nodes.drained(f"{name}.x")
    print(f"{whom} {victim}: {moving} rows were on their way")
    assert twice_or_never(found, range(24_000)) == (0, 0)
    assert found == [b"%d" % number for number in range(24_000)], "in the order of the commit"
    odd = [number for number in range(24_000) if number // 500 % 2]
    assert [int(body) for body in nodes.drained(f"{name}.y")] == odd


def test_the_answer_of_a_commit_dies_with_its_node(nodes: Nodes) -> None:
    """The node that was asked is killed at once: the client asks another one, and the rows are there once."""
    nodes.declare("lost", "lost", "b")
    found = 0
    for epoch in range(3):
        transaction = Transaction("lost", epoch, "run")
        options = nodes.options("b")
        written = attempt(options, transaction, [rows(range(epoch * 100, epoch * 100 + 100), "lost")])
        assert commit(options, transaction, written.segments, 100) == "committed"
        assert commit(nodes.options("c"), transaction, written.segments, 100) == "already"
        found += 100
    nodes.at_rest("lost")
    assert twice_or_never(nodes.drained("lost"), range(found)) == (0, 0)


BATCHES, BATCH_ROWS = 4, 3000


class TaskDied(Exception):
    """Spark runs it again."""


class Job:
    """A streaming query: batches, their tasks and its commits. What happens in batch 1 is the fault."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self.nodes, self.name = nodes, name
        self.run, self.cores = "run 1", 2
        self.options = nodes.options()

    def transaction(self, epoch: int) -> Transaction:
        return Transaction(self.name, epoch, self.run)

    def numbers(self, epoch: int, partition: int) -> Sequence[int]:
        return range(epoch * BATCH_ROWS, epoch * BATCH_ROWS + BATCH_ROWS)[partition :: self.cores]

    def batches(self, numbers: Sequence[int]) -> Iterator[Any]:
        for at in range(0, len(numbers), 250):
            yield rows(numbers[at : at + 250], self.name)

    def task(self, epoch: int, partition: int, number: int = 0, numbers: Sequence[int] | None = None) -> Written:
        mine = self.numbers(epoch, partition) if numbers is None else numbers
        return attempt(self.options, self.transaction(epoch), self.batches(mine), partition, number)

    def dies_half_way(self, epoch: int, partition: int) -> None:
        def dying() -> Iterator[Any]:
            for place, batch in enumerate(self.batches(self.numbers(epoch, partition))):
                if place == 3:
                    raise TaskDied
                yield batch

        with pytest.raises(TaskDied):
            attempt(self.options, self.transaction(epoch), dying(), partition)

    def tasks(self, epoch: int) -> list[str]:
        return [name for partition in range(self.cores) for name in self.task(epoch, partition).segments]

    def commit(self, epoch: int, names: Sequence[str]) -> str:
        return commit(self.options, self.transaction(epoch), names, BATCH_ROWS)

    def batch(self, epoch: int) -> str:
        return self.commit(epoch, self.tasks(epoch))


def nothing(job: Job) -> None:
    assert job.batch(1) == "committed"


def a_task_dies_half_way(job: Job) -> None:
    job.dies_half_way(1, 0)
    assert job.batch(1) == "committed"


def a_task_dies_after_all_its_confirms(job: Job) -> None:
    job.task(1, 0)
    assert job.batch(1) == "committed"


def half_way_and_the_order_differs(job: Job) -> None:
    job.dies_half_way(1, 0)
    again = list(job.numbers(1, 0))
    random.Random(1).shuffle(again)
    names = [*job.task(1, 0, 1, again).segments, *job.task(1, 1).segments]
    assert job.commit(1, names) == "committed"


def the_answer_of_a_commit_is_lost(job: Job) -> None:
    """Spark aborts what was committed, and does the batch again at its next start."""
    names, transaction = job.tasks(1), job.transaction(1)
    line = Line(job.nodes.node("a").amqp_port)
    connection, _ = any_endpoint(job.nodes.options(endpoints=f"127.0.0.1:{line.port}"), "a driver", 0, 0)
    asking.hear_replies(connection, 10)
    line.swallow_answers()
    with pytest.raises(ConnectionLost):
        asking.ask(connection, "amq.txn", "commit", {**transaction.fields(), "transactions": names}, 1)
    line.close()
    assert status(job.options, job.name)["epoch"] == 1
    abort(job.options, transaction, names)
    job.run = "run 2"
    assert job.batch(1) == "already"


def the_driver_dies_before_the_commit(job: Job) -> None:
    job.tasks(1)
    job.run = "run 2"
    assert job.batch(1) == "committed"


def and_comes_back_with_more_cores(job: Job) -> None:
    job.tasks(1)
    job.run, job.cores = "run 2", 3
    assert job.batch(1) == "committed"


def and_comes_back_with_fewer_cores_when_a_part_was_done(job: Job) -> None:
    job.cores = 3
    job.task(1, 0)
    job.run, job.cores = "run 2", 2
    assert job.batch(1) == "committed"


def a_task_goes_on_after_its_query_was_stopped(job: Job) -> None:
    """Its next query has done the batch, and another one, before it is finished."""

    def undead() -> Iterator[Any]:
        for place, batch in enumerate(job.batches(job.numbers(1, 0))):
            if place == 3:
                job.run = "run 2"
                assert job.batch(1) == "committed"
            yield batch

    with pytest.raises(PublisherError):
        attempt(job.options, job.transaction(1), undead())


@pytest.mark.parametrize(
    "fault",
    [
        nothing, a_task_dies_half_way, a_task_dies_after_all_its_confirms, half_way_and_the_order_differs,
        the_answer_of_a_commit_is_lost, the_driver_dies_before_the_commit, and_comes_back_with_more_cores,
        and_comes_back_with_fewer_cores_when_a_part_was_done, a_task_goes_on_after_its_query_was_stopped,
    ],
)  # fmt: skip
def test_the_nine_faults_of_a_query(nodes: Nodes, fault: Any) -> None:
    """Of the design's table; each made any other way of publishing lose or double rows."""
    job = Job(nodes, fault.__name__)
    nodes.declare(job.name, job.name, "b")
    assert job.batch(0) == "committed"
    fault(job)
    for epoch in range(2, BATCHES):
        assert job.batch(epoch) == "committed"
    told = nodes.at_rest(job.name)
    assert (told["epoch"], told["unroutable"]) == (BATCHES - 1, 0)
    assert twice_or_never(nodes.drained(job.name), range(BATCHES * BATCH_ROWS)) == (0, 0)
