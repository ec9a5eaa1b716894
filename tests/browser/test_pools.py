"""Worker pools, as a person sees them at a real node."""

from __future__ import annotations

import httpx
import pika
from playwright.sync_api import expect

from clusterbroker import Broker
from tests.browser.visit import Visit


def test_a_pool_with_its_keys(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/tiles", json={"keys": "^[0-9a]"}).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    for key in ("42", "42", "a/b"):
        channel.basic_publish("tiles", key, b"x")
    channel.basic_consume("tiles-req-a%2Fb", lambda *_: None)
    connection.process_data_events()
    page = visit.sign_in(at="#/pools")
    row = visit.row("Pools", "tiles")
    expect(row).to_contain_text("running")
    row.get_by_role("link").click()
    expect(visit.row("Keys", "42")).to_contain_text("waiting", timeout=15_000)
    expect(visit.row("Keys", "42")).to_contain_text("2")
    expect(visit.row("Keys", "a/b")).to_contain_text("busy", timeout=15_000)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("tiles is paused").first).to_be_visible()
    assert api.get("pools/%2F/tiles").json()["state"] == "paused"
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    visit.row("Keys", "42").get_by_role("link").click()
    expect(page.get_by_role("heading", name="tiles-req-42")).to_be_visible()
    connection.close()
