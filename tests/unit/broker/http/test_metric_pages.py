"""Who may scrape, and what comes back."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clusterbroker.broker.stats import rows
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import Place, queue, recorded_place

PATHS = ("/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_coarse_metrics")


@pytest.fixture(scope="module")
def place() -> Place:
    return recorded_place()


@pytest.mark.parametrize("path", PATHS)
async def test_from_this_machine_nobody_signs_in(place: Place, path: str) -> None:
    answer = await Client(place).http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert "rabbitmq_identity_info" in names
    assert {"rabbitmq_queue_messages", "rabbitmq_detailed_queue_messages"} & names


@pytest.mark.parametrize("path", PATHS)
async def test_from_elsewhere_who_monitors_signs_in(place: Place, path: str) -> None:
    far = Client(place, address="192.0.2.1")
    assert (await far.http.get(path)).status_code == 401
    assert (await far.get(path, "mon")).status_code == 200
    assert (await far.get(path, "man")).status_code == 401, "without the tag"
    assert (await far.get(path, "guest")).status_code == 401, "guest is for this machine"


async def test_a_wrong_password_is_refused_here_too(place: Place) -> None:
    assert (await Client(place).ask("GET", "/metrics", "mon", password="wrong")).status_code == 401


async def test_families_and_vhosts_may_be_many(place: Place) -> None:
    path = "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count&vhost=/&vhost=none"
    found = {
        family.name: family for family in text_string_to_metric_families((await Client(place).http.get(path)).text)
    }
    assert len(found["rabbitmq_detailed_queue_messages"].samples) == 4
    assert len(found["rabbitmq_detailed_queue_consumers"].samples) == 4


async def test_long_answers_come_whole() -> None:
    place = Place()
    place.must(*(queue(f"q{number:04}") for number in range(1500)))
    place.tell(*(rows.QueueRow(queue_id=place.queue_id(f"q{number:04}"), ready=number) for number in range(1500)))
    text = (await Client(place).http.get("/metrics/per-object")).text
    assert len(text) > 1 << 20
    (ready,) = (f for f in text_string_to_metric_families(text) if f.name == "rabbitmq_queue_messages_ready")
    assert sum(sample.value for sample in ready.samples) == sum(range(1500))
