"""The table of statistics: every number that a row has is in it, and nothing else."""

from __future__ import annotations

from itertools import chain
from typing import Any, get_type_hints

import pytest

from clusterbroker.broker.management import statistics as s
from clusterbroker.broker.stats import rows

KINDS = (
    (rows.NodeRow(name="n"), (s.NODE, s.NODE_COARSE, s.NODE_DISK, s.OWN_NODE, s.CHURN, s.ALARMS, s.STARTED)),
    (rows.QueueRow(queue_id=1), (s.QUEUE_COARSE, s.QUEUE_CONSUMERS, s.QUEUE_FINE, s.QUEUE_DISK, s.QUEUE_SHOWN)),
    (rows.ChannelRow(connection_id="c", number=1), (s.CHANNEL,)),
    (rows.ConnectionRow(connection_id="c"), (s.CONNECTION, s.CONNECTION_COARSE)),
    (rows.ExchangeRow(vhost="/", name="x"), (s.EXCHANGE, s.EXCHANGE_SHOWN)),
    (rows.MessageTotals(), (s.MESSAGES,)),
    (rows.LinkRow(peer="b", up=True), (s.LINK,)),
    (rows.LoginTotals("amqp"), (s.LOGINS,)),
)
NO_STATISTICS = {
    "incarnation", "os_pid", "processors",  # facts of a node
    "queue_id", "epoch", "number", "peer_port", "port",
    "frame_max_bytes", "channel_max", "heartbeat_s", "connected_at_ms", "pending_send_bytes",  # facts of a connection
    "disk_reads", "disk_writes",  # of queues
    "link_count", "receiver_count",  # of a session: the metric `clusterbroker_links` has their sums
}  # fmt: skip
NUMBER = 1234567


@pytest.mark.parametrize(("row", "groups"), KINDS)
def test_each_number_of_a_row_is_a_statistic(row: Any, groups: tuple[tuple[s.Of, ...], ...]) -> None:
    table = list(chain(*groups))
    assert all(isinstance(one.get(row), int | float) for one in table), "each source is there"
    for name in row.__struct_fields__:
        if type(getattr(row, name)) in (int, float) and name not in NO_STATISTICS:
            changed = type(row)(**{field: getattr(row, field) for field in row.__struct_fields__} | {name: NUMBER})
            assert any(one.get(changed) != one.get(row) for one in table), f"{name} is not in the table"


@pytest.mark.parametrize(("row", "groups"), KINDS)
def test_a_total_is_a_counter(row: Any, groups: tuple[tuple[s.Of, ...], ...]) -> None:
    hints = get_type_hints(type(row), include_extras=True)
    for one in chain(*groups):
        if one.name and one.source in hints:
            assert (hints[one.source] == rows.Total) is (one.kind == s.COUNTER), one.name


def test_a_name_and_a_field_mean_one_thing() -> None:
    shared = [*s.NODE, *s.NODE_COARSE, *s.NODE_DISK, *s.CHURN, *s.ALARMS, *s.CHANNEL, *s.CONNECTION, *s.QUEUE_FINE]
    for table in (shared, s.OWN_NODE, s.MESSAGES, (*s.GLOBAL, *s.GLOBAL_OUT)):
        names = [one.name for one in table]
        assert len(names) == len(set(names))
    assert not s.NODE_FACTS.keys() & (s.NODE_GAUGES.keys() | s.NODE_TOTALS.keys())


def test_a_metric_has_the_unit_of_its_name() -> None:
    row = rows.NodeRow(name="n", uptime_ms=1500, journal_flush_us=2_500_000)
    uptime = next(one for one in s.NODE if one.field == "uptime")
    assert (uptime.get(row), uptime.value(row)) == (1500, 1.5)
    flush = next(one for one in s.OWN_NODE if one.name == "journal_flush_seconds_total")
    assert flush.value(row) == 2.5
