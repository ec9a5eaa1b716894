"""Readers of a stream that have told how far they are, in its document, in `explain queue` and in the metrics."""

from __future__ import annotations

from clusterbroker.broker.cli.explain import story
from clusterbroker.broker.management import metrics, queues
from clusterbroker.broker.stats import rows
from tests.unit.broker.management.set_up import NOW_MS, recorded_place
from tests.unit.broker.management.test_metrics import parsed, value


def test_a_stream_says_how_far_its_readers_are() -> None:
    place = recorded_place()
    readers = (rows.StoredOffset("nightly", 5, 1200), rows.StoredOffset("totals", 1205, 0))
    place.tell(rows.QueueRow(queue_id=place.queue_id("busy"), epoch=1, ready=1205, readers=readers))
    found = queues.full(place.reading(), "/", "busy")
    assert found["stored_offsets"] == [
        {"name": "nightly", "offset": 5, "lag": 1200}, {"name": "totals", "offset": 1205, "lag": 0},
    ]  # fmt: skip
    said = "its reader 'nightly' says that it goes on with offset 5: 1,200 messages from the end"
    assert said in list(story(found))
    told = parsed(metrics.per_object(place.replica, NOW_MS))
    assert value(told, "clusterbroker_queue_reader_lag", queue="busy", reader="nightly") == 1200
    place.tell(rows.QueueRow(queue_id=place.queue_id("busy"), epoch=1))
    assert "stored_offsets" not in queues.full(place.reading(), "/", "busy")
