"""Links of AMQP 1.0 whose clients are away."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from clusterbroker import Broker
from clusterbroker.broker.wire.amqp10.performatives import Target
from tests.browser.visit import Visit
from tests.conformance.amqp10.wire import Peer


def test_a_suspended_link_is_shown_and_ended(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("queues/%2F/linked", json={})
    page = visit.sign_in(at="#/connections")
    expect(page.get_by_text("Suspended links")).to_have_count(0)
    peer = Peer(node.url, container="away")
    target = Target(address="/queues/linked", durable=2, timeout=7200)
    desired = ("clusterbroker:link-recovery",)
    link = peer.session().sender("/queues/linked", name="outward", target=target, desired_capabilities=desired)
    link.send(b"x")
    link.detach(closed=False)
    row = visit.row("Suspended links", "outward")
    for text in ("away", "sender, user guest", "/queues/linked", "queue logs"):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text("h ")
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    page.set_viewport_size({"width": 1280, "height": 900})
    row.get_by_role("button", name="End outward").click()
    page.get_by_role("dialog").get_by_role("button", name="End").click()
    expect(page.get_by_text("The link has ended.")).to_be_visible()
    expect(page.get_by_text("Suspended links")).to_have_count(0)
    assert api.get("links/away/outward").status_code == 404
    peer.close()
