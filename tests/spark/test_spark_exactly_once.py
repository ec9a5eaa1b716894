"""Exactly-once in a real Spark, at the model of the broker's half: what fails, and what consumers see of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stream_of_files import Stream
from tests.unit.pipeline.transaction_broker import TransactionBroker


@pytest.fixture
def model() -> Iterator[TransactionBroker]:
    running = TransactionBroker()
    yield running
    running.close()


def options_for(model: TransactionBroker, **more: str) -> dict[str, str]:
    endpoint = f"127.0.0.1:{model.port}"
    return {"endpoints": endpoint, "deliveryGuarantee": "exactly-once", "routingKey": "q", **more}


def seen(model: TransactionBroker) -> Counter[int]:
    return Counter(int(body) for _, _, body in model.messages)


def test_each_batch_is_seen_once_also_when_it_comes_again(spark: Any, model: TransactionBroker, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, options_for(model))
    stream.add(0, 100)
    stream.add(100, 100)
    stream.run()
    [(query, epoch)] = model.ledger.items()
    assert (len(query), epoch) == (36, 1), "a query is known by its id"
    stream.forget_last_commit()
    stream.add(200, 100)
    stream.run()
    assert seen(model) == Counter(range(300))
    assert model.ledger == {query: 2}


def test_a_task_that_dies_half_way_leaves_nothing(spark: Any, model: TransactionBroker, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    marker = str(tmp_path / "died")

    def die_once(value: str) -> str:
        if value == "20000" and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("more than half way")
        return value

    stream = Stream(spark, tmp_path, options_for(model))
    stream.add(0, 25_000)
    stream.run(lambda frame: frame.select(udf(die_once, "string", useArrow=False)("value").alias("value")))
    assert os.path.exists(marker)
    assert seen(model) == Counter(range(25_000))
    assert model.segments == {}


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


def test_a_checkpoint_that_was_reset_is_noticed(spark: Any, model: TransactionBroker, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    stream = Stream(spark, tmp_path / "first", options_for(model, txnAppId="orders"))
    stream.add(0, 10)
    stream.add(10, 10)
    stream.run()
    again = Stream(spark, tmp_path / "second", options_for(model, txnAppId="orders"))
    again.add(20, 10)
    with pytest.raises(Exception) as error:
        again.run()
    assert "fenced: producer 'orders' has committed epoch 1, and 0 is over. Is another query running" in str(
        error.value
    )
    assert seen(model) == Counter(range(20))


def test_a_batch_is_all_or_nothing_and_may_be_run_again(spark: Any, model: TransactionBroker) -> None:
    from pipeline.foreach_batch import publish

    def write(frame: Any, **more: str) -> None:
        frame.write.format("clusterbroker").options(**options_for(model, **more)).mode("append").save()

    with pytest.raises(Exception) as error:
        write(
            spark.sql(
                "SELECT CASE WHEN id = 99 THEN NULL ELSE cast(id AS string) END AS value FROM range(0, 100, 1, 2)"
            )
        )
    assert "column 'value' is null" in str(error.value)
    assert model.messages == []
    frame = spark.range(100, numPartitions=2).selectExpr("cast(id AS string) AS value")
    for _ in range(2):
        write(frame, txnAppId="nightly", txnVersion="7")
    assert seen(model) == Counter(range(100))
    for batch in (8, 8, 9):
        publish(frame, options_for(model, txnAppId="nightly"), batch)
    assert seen(model) == Counter(dict.fromkeys(range(100), 3))


@pytest.mark.parametrize("option", ["txnVersion", "persistent"])
def test_options_that_would_lose_rows(spark: Any, model: TransactionBroker, tmp_path: Path, option: str) -> None:
    more = {"txnVersion": {"txnAppId": "a", "txnVersion": "1"}, "persistent": {"persistent": "false"}}[option]
    stream = Stream(spark, tmp_path, options_for(model, **more))
    stream.add(0, 1)
    with pytest.raises(Exception) as error:
        stream.run()
    assert f"option '{option}' is" in str(error.value)
