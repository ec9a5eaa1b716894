"""One connection and one channel, as a client of a real node has them."""

from __future__ import annotations

import httpx
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from playwright.sync_api import expect

from clusterbroker import Broker
from tests.browser.visit import Visit


@pytest.mark.smoke
def test_a_channel_is_found_by_its_connection_and_its_queue(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("queues/%2F/jobs", json={})
    parameters = pika.URLParameters(node.url)
    parameters.client_properties = {"connection_name": "worker"}
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel(7)
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=20)
        for _ in range(3):
            channel.basic_publish("", "jobs", b"work")
        channel.basic_consume("jobs", lambda *_: None, consumer_tag="mine")
        connection.process_data_events(time_limit=0)

        page = visit.sign_in(at="#/connections")
        visit.row("Connections", "worker").get_by_role("link", name="worker").click()
        expect(page.get_by_text("connection_name")).to_be_visible()
        row = visit.row("Channels", "Channel 7")
        expect(row).to_contain_text("publishes are confirmed")
        row.get_by_role("link", name="Channel 7").click()
        expect(page.get_by_role("heading", name="Channel 7", level=1)).to_be_visible()
        expect(page.get_by_text("3 unacknowledged")).to_be_visible()
        expect(page.get_by_text("3 published, 3 delivered, 0 acknowledged")).to_be_visible()
        expect(visit.row("Consumers", "mine")).to_contain_text("20")
        channel.basic_publish("amq.fanout", "", b"to nobody")
        expect(visit.row("Publishes to", "amq.fanout")).to_contain_text("1", timeout=15_000)
        visit.row("Publishes to", "amq.fanout").get_by_role("link").click()
        expect(visit.row("Publishers", "(7)")).to_contain_text("guest")
        visit.row("Publishers", "(7)").get_by_role("link").click()
        expect(page.get_by_role("heading", name="Channel 7", level=1)).to_be_visible()
        page.set_viewport_size({"width": 360, "height": 740})
        visit.fits()

        visit.row("Consumers", "mine").get_by_role("link", name="jobs").click()
        expect(page.get_by_role("heading", name="jobs", level=1)).to_be_visible()
        visit.row("Consumers", "mine").get_by_role("link").click()
        expect(page.get_by_role("heading", name="Channel 7", level=1)).to_be_visible()
        page.get_by_role("navigation", name="Where this is").get_by_role("link", name="->").click()
        expect(visit.row("Channels", "Channel 7")).to_be_visible()
        visit.fits()
        page.go_back()
        expect(page.get_by_role("heading", name="Channel 7", level=1)).to_be_visible()
    expect(page.get_by_text("There is no such channel (any more)")).to_be_visible()


def test_a_connection_is_closed_from_its_own_page(visit: Visit, node: Broker) -> None:
    parameters = pika.URLParameters(node.url)
    parameters.client_properties = {"connection_name": "leaver"}
    connection = pika.BlockingConnection(parameters)
    page = visit.sign_in(at="#/connections")
    visit.row("Connections", "leaver").get_by_role("link").click()
    expect(page.get_by_text("No channel is open")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    visit.told("The connection is closed")
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(time_limit=10)
    expect(page.get_by_role("heading", name="Connections", level=1)).to_be_visible()
