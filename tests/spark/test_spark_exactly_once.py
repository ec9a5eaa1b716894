"""Exactly-once in a real Spark, at a real node: what fails, and what consumers see of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.pipeline.options import parse
from clusterbroker.pipeline.transactions import status
from tests.conftest import RunningNode
from tests.spark.stream_of_files import Stream
from tests.support import processes
from tests.unit.pipeline.transaction_broker import TransactionBroker
from tests.unit.pipeline.transaction_node import TransactionNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, str]]:
    running = RunningNode(tmp_path_factory.mktemp("node"))
    running.start("--http", "127.0.0.1:0")
    yield running, "http://" + next(line.split()[1] for line in running.said if line.startswith("http "))
    running.stop()


@pytest.fixture
def broker(node: tuple[RunningNode, str]) -> TransactionNode:
    return TransactionNode(*node)


@pytest.fixture
def model() -> Iterator[TransactionBroker]:
    """For what a node cannot be made to do: to be silent about what it has done."""
    running = TransactionBroker()
    yield running
    running.close()


def options_for(broker: TransactionNode | TransactionBroker, **more: str) -> dict[str, str]:
    return {**broker.options, "deliveryGuarantee": "exactly-once", "routingKey": "q", **more}


def seen(broker: TransactionNode | TransactionBroker) -> Counter[int]:
    return Counter(int(body) for _, _, body in broker.messages)


def test_each_batch_is_seen_once_also_when_it_comes_again(spark: Any, broker: TransactionNode, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, options_for(broker))
    stream.add(0, 100)
    stream.add(100, 100)
    stream.run()
    [(query, epoch)] = broker.ledger.items()
    assert (len(query), epoch) == (36, 1), "a query is known by its id"
    stream.forget_last_commit()
    stream.add(200, 100)
    stream.run()
    assert seen(broker) == Counter(range(300))
    assert broker.ledger == {query: 2}


@pytest.mark.smoke
def test_a_task_that_dies_half_way_leaves_nothing(spark: Any, broker: TransactionNode, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    marker = str(tmp_path / "died")

    def die_once(value: str) -> str:
        if value == "20000" and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("more than half way")
        return value

    stream = Stream(spark, tmp_path, options_for(broker))
    stream.add(0, 25_000)
    stream.run(lambda frame: frame.select(udf(die_once, "string", useArrow=False)("value").alias("value")))
    assert os.path.exists(marker)
    assert seen(broker) == Counter(range(25_000))
    [query] = broker.producers
    assert status(parse(options_for(broker)), query)["open"] == []


def test_a_commit_that_nobody_confirms_is_done_once(spark: Any, model: TransactionBroker, tmp_path: Path) -> None:
    """Spark sees it fail, aborts what is committed already, and does the batch again at the next start."""
    stream = Stream(spark, tmp_path, options_for(model, publisherConfirmTimeoutMs="500", reconnectAttempts="0"))
    stream.add(0, 100)
    model.answers_lost = 10**9
    with pytest.raises(Exception) as error:
        stream.run()
    assert "amq.txn 'commit' of producer" in str(error.value)
    assert "abort" in [key for key, _ in model.asked]
    model.answers_lost = 0
    stream.options = options_for(model)
    stream.add(100, 100)
    stream.run()
    assert seen(model) == Counter(range(200))


def test_a_checkpoint_that_was_reset_is_noticed(spark: Any, broker: TransactionNode, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    stream = Stream(spark, tmp_path / "first", options_for(broker, txnAppId="orders"))
    stream.add(0, 10)
    stream.add(10, 10)
    stream.run()
    again = Stream(spark, tmp_path / "second", options_for(broker, txnAppId="orders"))
    again.add(20, 10)
    with pytest.raises(Exception) as error:
        again.run()
    assert "fenced: producer 'orders' has committed epoch 1, and 0 is over. Is another query running" in str(
        error.value
    )
    assert seen(broker) == Counter(range(20))


def test_a_batch_is_all_or_nothing_and_may_be_run_again(spark: Any, broker: TransactionNode) -> None:
    from clusterbroker.pipeline.foreach_batch import publish

    def write(frame: Any, **more: str) -> None:
        frame.write.format("clusterbroker").options(**options_for(broker, **more)).mode("append").save()

    with pytest.raises(Exception) as error:
        write(
            spark.sql(
                "SELECT CASE WHEN id = 99 THEN NULL ELSE cast(id AS string) END AS value FROM range(0, 100, 1, 2)"
            )
        )
    assert "column 'value' is null" in str(error.value)
    assert broker.messages == []
    frame = spark.range(100, numPartitions=2).selectExpr("cast(id AS string) AS value")
    for _ in range(2):
        write(frame, txnAppId="nightly", txnVersion="7")
    assert seen(broker) == Counter(range(100))
    for batch in (8, 8, 9):
        publish(frame, options_for(broker, txnAppId="nightly"), batch)
    assert seen(broker) == Counter(dict.fromkeys(range(100), 3))


def test_a_batch_that_is_published_to_two_places_has_two_writers(
    spark: Any, broker: TransactionNode, tmp_path: Path
) -> None:
    """With one, the second would be taken for a replay of the first, and its rows be lost silently."""
    from clusterbroker.pipeline.foreach_batch import publish
    from clusterbroker.pipeline.options import BadOption

    spark.range(10).selectExpr("cast(id AS string) AS value").write.json(str(tmp_path / "source"))
    said: list[str] = []

    def both(frame: Any, batch_id: int) -> None:
        publish(frame, options_for(broker, txnAppId="one", exchange="a"), batch_id)
        with pytest.raises(BadOption) as error:
            publish(frame, options_for(broker, txnAppId="one", exchange="b"), batch_id)
        said.append(str(error.value))
        publish(frame, options_for(broker, txnAppId="two", exchange="b"), batch_id)

    for checkpoint in ("first", "again"):  # the same batch in another run is a replay
        query = spark.readStream.schema("value string").json(str(tmp_path / "source")).writeStream.foreachBatch(both)
        query = query.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
    assert len(said) == 2
    assert "give each `publish` of a batch a txnAppId of its own" in said[0]
    assert seen(broker) == Counter(dict.fromkeys(range(10), 2))


def test_a_batch_has_a_version_of_its_own(spark: Any, broker: TransactionNode) -> None:
    """Without it the next one would be taken for this one."""
    with pytest.raises(Exception, match="option 'txnAppId' needs option 'txnVersion' in a batch"):
        spark.range(1).selectExpr("cast(id AS string) AS value").write.format("clusterbroker").options(
            **options_for(broker, txnAppId="nightly")
        ).mode("append").save()


@pytest.mark.parametrize("option", ["txnVersion", "persistent"])
def test_options_that_would_lose_rows(spark: Any, broker: TransactionNode, tmp_path: Path, option: str) -> None:
    more = {"txnVersion": {"txnAppId": "a", "txnVersion": "1"}, "persistent": {"persistent": "false"}}[option]
    stream = Stream(spark, tmp_path, options_for(broker, **more))
    stream.add(0, 1)
    with pytest.raises(Exception) as error:
        stream.run()
    assert f"option '{option}' is" in str(error.value)


DRIVER = Path(__file__).with_name("killed_driver.py")


def test_a_driver_that_is_killed_and_comes_back_with_more_cores(broker: TransactionNode, tmp_path: Path) -> None:
    """One of its tasks was done, the other half way; its batch comes again, otherwise divided."""
    (tmp_path / "source").mkdir()
    for name, first in (("0", 0), ("1", 10_000)):
        lines = "".join(json.dumps({"value": str(n)}) + "\n" for n in range(first, first + 10_000))
        (tmp_path / "source" / f"{name}.json").write_text(lines)
    asking, options = parse(options_for(broker)), broker.options
    words = [sys.executable, str(DRIVER), str(tmp_path), options["endpoints"], options["vhost"]]
    root = str(DRIVER.parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    killed = processes.popen([*words, "2"], env=environment, start_new_session=True)
    end_s = time.monotonic() + 240
    try:
        while not any(
            (one["rows"] or 0) >= 10_000 for name in broker.producers for one in status(asking, name)["open"]
        ):
            assert killed.poll() is None, "it hangs until it is killed"
            assert time.monotonic() < end_s, "a task is done"
            time.sleep(0.1)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert seen(broker) == Counter()
    (tmp_path / "go").touch()
    processes.run([*words, "3"], env=environment, check=True, timeout=300)
    assert seen(broker) == Counter(range(20_000))
    [query] = broker.producers
    told = status(asking, query)
    assert (told["epoch"], told["open"], told["moving"]) == (0, [], 0), "what the killed one staged is dropped"
