"""What consumers were handed, in the documents of their queue and of their channel."""

from __future__ import annotations

from broker.census import rows
from broker.management import connections, queues
from broker.management.reading import Reading
from tests.unit.broker.management.set_up import NOW_MS, recorded_place


def test_deliveries_are_told_by_channel_and_by_queue() -> None:
    place = recorded_place()
    busy = place.queue_id("busy")
    place.tell(
        rows.ConsumerRow(connection_id="c1", channel=1, tag="slow", queue_id=busy, delivered=7),
        rows.ConsumerRow(connection_id="c1", channel=1, tag="fast", queue_id=busy, ack_required=False, delivered=5),
        at_ms=NOW_MS + 1000,
    )
    reading = Reading(place.mirror, place.seer(), NOW_MS + 1000)
    (of_queue,) = queues.full(reading, "/", "busy")["deliveries"]
    stats = {name: value for name, value in of_queue["stats"].items() if not name.endswith("_details")}
    assert stats == {"deliver": 7, "deliver_get": 12, "deliver_no_ack": 5}
    assert of_queue["stats"]["deliver_details"]["rate"] > 0
    name = of_queue["channel_details"]["name"]
    (of_channel,) = connections.channel_full(reading, name)["deliveries"]
    assert of_channel["queue"] == {"name": "busy", "vhost": "/"}
    assert of_channel["stats"] == of_queue["stats"]
