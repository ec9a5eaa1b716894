"""Rows travel: what is encoded comes back, and what is none of it is refused in one way."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.links import RecoverableRow, SuspendedRow

COUNT = st.integers(0, 2**63 - 1)
TOTALS = st.builds(rows.MessageTotals, **dict.fromkeys(rows.MessageTotals.__struct_fields__, COUNT))
EACH = (
    rows.NodeRow(
        name="a",
        listeners=(rows.Listener("amqp", "127.0.0.1", 5672),),
        links=(rows.LinkRow("b", True, 1, 2),),
        logins=(rows.LoginTotals("amqp", 3, 1),),
    ),
    rows.ConnectionRow(
        connection_id="a/1", tls=rows.TlsFacts("tlsv1.3"), client_properties={"bin": b"\xff", "list": [1, None, 2.5]}
    ),
    rows.ChannelRow(connection_id="a/1", number=1),
    rows.ConsumerRow(
        connection_id="a/1",
        channel=1,
        tag="t",
        queue_id=7,
        arguments={"when": datetime(2026, 1, 2, tzinfo=UTC)},
    ),
    rows.QueueRow(queue_id=7, copies=(rows.CopyLag("b", 3, 400, False),), head_timestamp_s=1),
    rows.ExchangeRow(vhost="/", name=""),
    rows.QueueFlowRow(vhost="/", exchange="amq.topic", queue_id=7, publish=4),
    rows.LoginSourceRow("amqp", "192.0.2.1", "ann", 3, 1),
    SuspendedRow(vhost="/", container="c", name="l", receives=True, user="ann", level="node", since_ms=5),
    RecoverableRow(link=7, queue_id=3, unsettled=2),
)


def batch_of(*told: rows.AnyRow) -> rows.Batch:
    return rows.Batch(node="a", life=1, number=9, sampled_at_ms=5, rows=told, gone=(("queue", 3),))


def test_there_is_a_sample_of_each_row() -> None:
    assert {type(row) for row in EACH} == set(get_args(rows.AnyRow))


def test_what_is_encoded_comes_back() -> None:
    assert rows.decode(rows.encode(batch_of(*EACH))) == batch_of(*EACH)


@given(TOTALS, COUNT, st.text())
def test_totals_of_any_size_come_back(totals: rows.MessageTotals, count: int, name: str) -> None:
    told = batch_of(
        rows.ChannelRow(connection_id=name, number=3, messages=totals),
        rows.QueueRow(queue_id=count, ready=count, messages=totals),
    )
    assert rows.decode(rows.encode(told)) == told


def test_whatever_a_client_sent_travels_as_a_text_like_it() -> None:
    sent = {"a\udcff": "\ud800", "deep": [{"\udc80": 2**70, "fine": b"\xff"}], "ä": -5}
    told = batch_of(rows.ConnectionRow(connection_id="a/1", client_properties=sent), rows.QueueRow(queue_id=3))
    (connection, queue) = rows.decode(rows.encode(told)).rows
    assert isinstance(connection, rows.ConnectionRow)
    assert connection.client_properties == {
        "a\ufffd": "?",
        "deep": [{"\ufffd": str(2**70), "fine": b"\xff"}],
        "ä": -5,
    }
    assert queue == rows.QueueRow(queue_id=3)


def test_a_key_begins_with_the_tag_of_its_row_and_is_the_rows_own() -> None:
    keys = [row.key for row in EACH]
    assert [key[0] for key in keys] == [type(row).__struct_config__.tag for row in EACH]
    assert len(set(keys)) == len(EACH)


@given(st.binary(max_size=60))
def test_other_bytes_are_a_value_error(damage: bytes) -> None:
    for stored in (damage, b"\x01" + damage, rows.encode(batch_of(*EACH))[:-1]):
        with pytest.raises(ValueError):
            rows.decode(stored)


def test_the_garbage_collector_does_not_look_at_rows() -> None:
    batch = rows.Batch(node="a", life=1, number=1, sampled_at_ms=1, leased=True, whole=True, rows=EACH, gone=())
    told = rows.decode(rows.encode(batch)).rows
    assert told == EACH
    assert [type(row).__name__ for row in told if gc.is_tracked(row)] == []
    assert not gc.is_tracked(rows.MessageTotals(1))
