"""A queue that a reader leases, as its document and `explain queue` tell it."""

from __future__ import annotations

from clusterbroker.broker.cli.explain import story
from clusterbroker.broker.management import queues
from clusterbroker.broker.stats import rows
from tests.unit.broker.management.set_up import recorded_place


def test_a_leased_queue_says_who_reads_it() -> None:
    place = recorded_place()
    queue_id = place.queue_id("agreed")
    lease = rows.LeaseRow("nightly", "run-1", 5, 9, 3, 1_700_000_000_000)
    place.tell(rows.QueueRow(queue_id=queue_id, ready=1, unacknowledged=3, lease=lease))
    found = queues.full(place.reading(), "/", "agreed")
    assert found["lease"] == {
        "name": "nightly", "run": "run-1", "start": 5, "end": 9, "rows": 3, "until": "2023-11-14T22:13:20.000+00:00"
    }  # fmt: skip
    assert found["explain"]["leased"].startswith("True, 'nightly' reads it by a lease")
    told = "\n".join(story(found))
    assert "it is leased by 'nightly': 3 messages from number 5 to 8; no other consumer" in told
    place.tell(rows.QueueRow(queue_id=queue_id))
    assert "lease" not in queues.full(place.reading(), "/", "agreed")
