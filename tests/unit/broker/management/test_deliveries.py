"""What consumers were handed, in the documents of their queue and of their channel."""

from __future__ import annotations

from clusterbroker.broker.management import connections, exchanges, queues
from clusterbroker.broker.management.reading import Reading
from clusterbroker.broker.stats import rows
from tests.unit.broker.management.set_up import NOW_MS, recorded_place


def test_deliveries_are_told_by_channel_and_by_queue() -> None:
    place = recorded_place()
    busy = place.queue_id("busy")
    place.tell(
        rows.ConsumerRow(connection_id="c1", channel=1, tag="slow", queue_id=busy, delivered=7),
        rows.ConsumerRow(connection_id="c1", channel=1, tag="fast", queue_id=busy, ack_required=False, delivered=5),
        at_ms=NOW_MS + 1000,
    )
    reading = Reading(place.replica, place.principal(), NOW_MS + 1000)
    (of_queue,) = queues.full(reading, "/", "busy")["deliveries"]
    stats = {name: value for name, value in of_queue["stats"].items() if not name.endswith("_details")}
    assert stats == {"deliver": 7, "deliver_get": 12, "deliver_no_ack": 5}
    assert of_queue["stats"]["deliver_details"]["rate"] > 0
    name = of_queue["channel_details"]["name"]
    (of_channel,) = connections.channel_full(reading, name)["deliveries"]
    assert of_channel["queue"] == {"name": "busy", "vhost": "/"}
    assert of_channel["stats"] == of_queue["stats"]


def test_publishes_are_told_by_channel_and_by_exchange() -> None:
    place = recorded_place()
    for times in (1, 2):
        publishes = (("events", 4 * times), ("", 3))
        place.tell(
            rows.ChannelRow(connection_id="c1", number=1, publishes=publishes),
            rows.ChannelRow(connection_id="c1", number=2, publishes=(("events", 1),)),
            at_ms=NOW_MS + 1000 * times,
        )
    reading = place.reading(now_ms=NOW_MS + 2000)
    of_exchange = exchanges.full(reading, "/", "events")["incoming"]
    assert [(one["channel_details"]["number"], one["stats"]["publish"]) for one in of_exchange] == [(1, 8), (2, 1)]
    assert of_exchange[0]["stats"]["publish_details"]["rate"] == 4.0
    name = of_exchange[0]["channel_details"]["name"]
    of_default, of_events = connections.channel_full(reading, name)["publishes"]
    assert of_default == {
        "exchange": {"name": "", "vhost": "/"}, "stats": {"publish": 3, "publish_details": {"rate": 0.0}},
    }  # fmt: skip
    assert (of_events["exchange"]["name"], of_events["stats"]) == ("events", of_exchange[0]["stats"])
    assert exchanges.full(reading, "a/b", "amq.topic")["incoming"] == []
    assert exchanges.full(place.reading("man", NOW_MS + 2000), "/", "events")["incoming"] == [], "others' channels"
