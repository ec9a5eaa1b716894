"""Links of a connection of AMQP 1.0, as a client of a real node has them."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from clusterbroker import Broker
from tests.browser.visit import Visit
from tests.conformance.amqp10.wire import Peer


def test_a_connections_links(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("queues/%2F/linked", json={})
    peer = Peer(node.url, container="the-container")
    session = peer.session()
    sender = session.sender("/queues/linked", name="outward")
    session.receiver("/queues/linked", name="inward", credit=7)
    sender.send(b"x")
    page = visit.sign_in(at="#/connections")
    visit.row("Connections", "running").get_by_role("link").first.click()
    expect(page.get_by_text("the-container").first).to_be_visible()
    row = visit.row("Links", "inward")
    expect(row).to_contain_text("receiver, session 0")
    expect(row).to_contain_text("/queues/linked")
    expect(row).to_contain_text("6")
    expect(visit.row("Links", "outward")).to_contain_text("sender, session 0")
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    peer.close()
