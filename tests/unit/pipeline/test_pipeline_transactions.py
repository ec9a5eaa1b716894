"""The client's half of exactly-once, at a real node; and at a model of one where that has to misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clusterbroker.pipeline import task, transactions
from clusterbroker.pipeline.bulk import Publisher
from clusterbroker.pipeline.connection import ConnectionLost, PublisherError, Refused
from clusterbroker.pipeline.options import BadOption, parse
from clusterbroker.pipeline.task import Identity, Written
from clusterbroker.pipeline.transactions import (
    Fenced,
    NotStaged,
    Transaction,
    TransactionRefused,
    abort,
    commit,
    status,
)
from tests.conftest import RunningNode
from tests.unit.pipeline.publisher_line import Line
from tests.unit.pipeline.transaction_broker import TransactionBroker
from tests.unit.pipeline.transaction_node import TransactionNode

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, str]]:
    running = RunningNode(tmp_path_factory.mktemp("node"))
    running.start("--http", "127.0.0.1:0")
    http = next(line.split()[1] for line in running.said if line.startswith("http "))
    yield running, f"http://{http}"
    running.stop()


@pytest.fixture
def broker(node: tuple[RunningNode, str]) -> Iterator[TransactionNode]:
    made = TransactionNode(*node)
    yield made
    forget_connections()
    made.close()


@pytest.fixture
def model() -> Iterator[TransactionBroker]:
    running = TransactionBroker()
    yield running
    running.close()
    forget_connections()


def forget_connections() -> None:
    for publishers in task._kept.values():
        for publisher in publishers:
            publisher.abandon()
    task._kept.clear()


def options_for(broker: TransactionNode | TransactionBroker, **more: str) -> Any:
    return parse({**broker.options, "deliveryGuarantee": "exactly-once", "routingKey": "q", **more})


def batch(*numbers: int, **columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % n for n in numbers], pa.binary()), **columns})


def stage(options: Any, transaction: Transaction, *batches: Any, partition: int = 0, attempt: int = 0) -> Written:
    identity = Identity(transaction.producer, transaction.epoch, partition, attempt)
    return task.write(batches, batches[0].schema.names, options, identity, transaction)


FIRST = Transaction("query", 0, "run")


def test_rows_are_seen_when_they_are_committed_and_not_before(broker: TransactionNode) -> None:
    options = options_for(broker, exchange="target")
    one = stage(options, FIRST, batch(1, 2), batch(3), partition=1)
    other = stage(options, FIRST, batch(4), partition=0)
    failed = stage(options, FIRST, batch(1, 2), partition=1, attempt=1)
    assert (one.rows, other.rows) == (3, 1)
    assert len({*one.segments, *other.segments, *failed.segments}) == 3
    assert broker.messages == []
    assert commit(options, FIRST, [*other.segments, *one.segments], 4) == "committed"
    assert broker.messages == [("target", "q", b"%d" % n) for n in (4, 1, 2, 3)]
    names = [*other.segments, *one.segments, *failed.segments]
    assert not any(map(broker.is_staged, names)), "what the batch left elsewhere is dropped"
    told = status(options, "query")
    assert (told["epoch"], told["run"], told["rows"]) == (0, "run", 4)
    assert told["expires_at_ms"] - told["committed_at_ms"] == 2_592_000_000


def test_a_commit_whose_answer_is_lost_is_asked_for_again(model: TransactionBroker) -> None:
    options = options_for(model)
    written = stage(options, FIRST, batch(1))
    model.answers_lost = 2
    assert commit(options, FIRST, written.segments, 1) == "already"
    assert [key for key, _ in model.asked] == ["commit"] * 3
    assert len(model.messages) == 1
    abort(options, FIRST, written.segments)  # what Spark does when it saw a commit fail
    assert len(model.messages) == 1


def test_a_batch_that_comes_again_is_not_written_again(broker: TransactionNode) -> None:
    options = options_for(broker)
    for run in ("run", "run", "after a restart"):
        again = Transaction("query", 0, run)
        commit(options, again, stage(options, again, batch(1, 2)).segments, 2)
    assert len(broker.messages) == 2


def test_a_batch_of_long_ago_is_refused(broker: TransactionNode) -> None:
    options = options_for(broker)
    later = Transaction("query", 5, "run")
    commit(options, later, stage(options, later, batch(1)).segments, 1)
    with pytest.raises(
        Fenced, match=r"fenced: producer 'query' has committed epoch 5, and 0 is over\. Is another query"
    ):
        stage(options, FIRST, batch(1))
    with pytest.raises(Fenced, match="has committed epoch 5"):
        commit(options, FIRST, [], 0)


def test_a_run_that_was_replaced_is_refused(broker: TransactionNode) -> None:
    options = options_for(broker)
    old = stage(options, FIRST, batch(1))
    new = Transaction("query", 0, "next run")
    written = stage(options, new, batch(1))
    with pytest.raises(Fenced, match=r"run run of producer 'query' was replaced by run next run"):
        stage(options, FIRST, batch(1))
    with pytest.raises(Fenced, match="was replaced by run next run"):
        commit(options, FIRST, old.segments, 1)
    with pytest.raises(
        TransactionRefused, match=r"does not commit: transaction 'txn\.\w+' of producer .* is not there"
    ):
        commit(options, new, old.segments, 1)
    assert commit(options, new, written.segments, 1) == "committed"
    assert len(broker.messages) == 1


def test_a_zombie_writes_into_nothing(broker: TransactionNode) -> None:
    options = options_for(broker)

    def batches() -> Iterator[Any]:
        yield batch(*range(10))
        (open_one,) = status(options, "query")["open"]
        broker.drop(open_one["transaction"])  # committed without it, meanwhile
        yield batch(*range(10))

    with pytest.raises(NotStaged, match="another query has begun with this txnAppId"):
        task.write(batches(), ["value"], options, Identity("query", 0, 0), FIRST)
    assert broker.messages == []


def test_an_attempt_is_not_continued_on_another_connection(broker: TransactionNode) -> None:
    line = Line(broker.port)
    options = options_for(broker, endpoints=f"127.0.0.1:{line.port}")

    def batches() -> Iterator[Any]:
        yield batch(*range(10))
        line.cut()
        yield batch(*range(10))

    with pytest.raises(ConnectionLost):
        task.write(batches(), ["value"], options, Identity("query", 0, 0), FIRST)
    again = stage(options, FIRST, batch(*range(20)), attempt=1)
    commit(options, FIRST, again.segments, 20)
    assert len(broker.messages) == 20
    line.close()


@pytest.mark.parametrize(
    "more, said",
    [
        ({"maxStagedBytes": "300"}, r"more than maxStagedBytes \(300\)"),
        ({"exchange": "", "routingKey": "nowhere"}, "no queue takes rows for exchange '' with routing key 'nowhere'"),
        ({"exchange": "nowhere"}, "no exchange 'nowhere' in vhost .*: declare it, or look at the options exchange"),
    ],
)
def test_what_is_wrong_is_told_without_segments(broker: TransactionNode, more: dict[str, str], said: str) -> None:
    with pytest.raises(PublisherError, match=said) as error:
        stage(options_for(broker, **more), FIRST, batch(*[10**99] * 10))
    assert "txn." not in str(error.value)
    assert broker.messages == []


def test_a_query_that_is_fenced_amid_a_batch_is_told_why(broker: TransactionNode) -> None:
    def batches() -> Iterator[Any]:
        yield batch(1)
        stage(options_for(broker), Transaction("query", 0, "another run"), batch(2))
        yield from (batch(3) for _ in range(1000))

    with pytest.raises(PublisherError, match="another query has begun with this txnAppId or checkpoint"):
        task.write(batches(), ["value"], options_for(broker), Identity("query", 0, 0, 0), FIRST)


def test_each_target_has_its_segment(broker: TransactionNode) -> None:
    options = options_for(broker, exchange="usual")
    written = stage(options, FIRST, batch(1, 2, 3, exchange=["a", None, "a"]), batch(4, exchange=["b"]))
    assert len(written.segments) == 3
    commit(options, FIRST, written.segments, 4)
    assert sorted(broker.messages) == [("a", "q", b"1"), ("a", "q", b"3"), ("b", "q", b"4"), ("usual", "q", b"2")]


def test_so_many_targets_and_no_more(broker: TransactionNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "SEGMENTS_MAX", 2)
    with pytest.raises(NotStaged, match="more than 2 exchanges: partition the frame by exchange"):
        stage(options_for(broker), FIRST, batch(1, 2, 3, exchange=["a", "b", "c"]))


def test_dead_letters_are_staged_as_well(broker: TransactionNode) -> None:
    options = options_for(broker, onRowError="deadLetter", deadLetterExchange="graves")
    bad = pa.RecordBatch.from_pydict({"value": pa.array([b"1", None], pa.binary())})
    written = stage(options, FIRST, bad)
    assert (written.rows, written.dead_lettered, broker.messages) == (1, 1, [])
    commit(options, FIRST, written.segments, 1)
    assert sorted(broker.messages) == [("", "q", b"1"), ("graves", "q", b"")]


def test_a_task_without_rows_opens_nothing(broker: TransactionNode) -> None:
    options = options_for(broker)
    written = stage(options, FIRST, batch())
    assert written.segments == ()
    assert commit(options, FIRST, [], 0) == "committed", "the epoch is over all the same"


def test_what_is_unavailable_for_a_moment(model: TransactionBroker) -> None:
    options = options_for(model)
    model.refuse = (503, "unavailable, may be repeated")
    assert commit(options, FIRST, [], 0) == "committed"
    assert status(options, "query")["epoch"] == 0


@pytest.mark.long
def test_a_commit_whose_answer_waits_for_a_full_queue_is_patient(broker: TransactionNode) -> None:
    """The broker holds the answer back while rows of an earlier batch are on their way, whatever a confirm may take."""
    options = options_for(broker, exchange="full", publisherConfirmTimeoutMs="1000")
    with broker._channel() as channel:
        channel.exchange_declare("full", "fanout", durable=True)
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.queue_bind("full", "full")
    assert commit(options, FIRST, stage(options, FIRST, batch(1, 2, 3)).segments, 3) == "committed"
    second = Transaction("query", 1, "run")
    assert commit(options, second, stage(options, second, batch(4)).segments, 1) == "committed"


def test_nobody_answers(model: TransactionBroker) -> None:
    model.close()
    options = options_for(model, publisherConfirmTimeoutMs="200", reconnectAttempts="0")
    with pytest.raises(ConnectionLost, match=r"amq.txn 'commit' of producer 'query' was not answered: no endpoint"):
        commit(options, FIRST, [], 0)
    abort(options, FIRST, [])  # never fails


def test_a_broker_without_transactions(model: TransactionBroker) -> None:
    model.knows_transactions = False
    with pytest.raises(Refused, match="has no transactions: set deliveryGuarantee to at-least-once"):
        stage(options_for(model), FIRST, batch(1))


def test_more_tasks_than_a_commit_names() -> None:
    with pytest.raises(TransactionRefused, match="use fewer partitions"):
        commit(parse({"deliveryGuarantee": "exactly-once"}), FIRST, ["txn.x"] * 10_001, 0)


def test_a_publisher_repeats_again_after_a_staged_task(broker: TransactionNode) -> None:
    options = options_for(broker)
    stage(options, FIRST, batch(1))
    [[publisher]] = task._kept.values()
    assert isinstance(publisher, Publisher)
    assert publisher.repeats


@pytest.mark.parametrize(
    "given, said",
    [
        ({"txnAppId": "a"}, "option 'txnAppId' is used with 'deliveryGuarantee' = 'exactly-once' only"),
        ({"deliveryGuarantee": "exactly-once", "txnVersion": "1"}, "option 'txnVersion' needs option 'txnAppId'"),
        ({"deliveryGuarantee": "exactly-once", "persistent": "false"}, "exactly-once needs messages that survive"),
        ({"deliveryGuarantee": "twice"}, "expected at-least-once or exactly-once"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as error:
        parse(given)
    assert said in str(error.value)
