"""What is in a queue, looked at and sorted out by hand, at a real node."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.visit import Visit


def publish(api: httpx.Client, queue: str, payload: str, **properties: Any) -> None:
    assert api.put(f"queues/%2F/{queue}", json={}).status_code in (201, 204)
    sent = {"properties": properties, "routing_key": queue, "payload": payload, "payload_encoding": "string"}
    assert api.post("exchanges/%2F/amq.default/publish", json=sent).json() == {"routed": True}


def payloads(api: httpx.Client, queue: str) -> list[str]:
    return [item["payload"] for item in api.get(f"queues/%2F/{queue}/messages").json()["items"]]


def browse(page: Page, wanted: str = "") -> None:
    form = page.get_by_role("form", name="Browse messages")
    form.get_by_label("Filter").fill(wanted)
    form.get_by_role("button", name="Browse").click()


def rows(page: Page) -> Locator:
    return page.get_by_role("button", name=re.compile(r"^Message \d+$"))


@pytest.mark.smoke
def test_messages_are_found_by_a_filter_and_shown_whole(visit: Visit, api: httpx.Client) -> None:
    for number in range(4):
        body = json.dumps({"number": number, "name": "<b>ü</b>"})
        publish(api, "looked", body, headers={"customer": number % 2}, message_id=f"m{number}")
    page = visit.sign_in(at="#/queues/%2F/looked")
    browse(page, "header.customer=1")
    expect(rows(page)).to_have_count(2)
    page.get_by_role("button", name="Message 2").click()
    whole = page.get_by_role("article", name="Message 2")
    expect(whole).to_contain_text("m1")
    expect(whole.get_by_label("Payload", exact=True)).to_contain_text('"name": "<b>ü</b>"')
    expect(whole.get_by_label("Payload", exact=True)).to_have_css("text-align", "left")
    whole.get_by_role("button", name="Hex").click()
    expect(whole.get_by_label("Payload", exact=True)).to_contain_text("7b 22 6e 75 6d 62 65 72")
    whole.get_by_role("button", name="Text").click()
    expect(whole.get_by_label("Payload", exact=True)).to_have_text('{"number": 1, "name": "<b>\\u00fc</b>"}')
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    browse(page, "no such field=1")
    expect(page.get_by_role("status").locator(".bad")).to_be_visible()
    state = api.get("queues/%2F/looked/messages").json()["items"][0]
    assert (state["redelivered"], state["delivery_count"]) == (False, 0), "looking disturbs nothing"


def test_messages_are_deleted_moved_and_sent_again(visit: Visit, api: httpx.Client) -> None:
    for letter in "abcd":
        publish(api, "sorted", letter)
    publish(api, "elsewhere", "first")
    page = visit.sign_in(at="#/queues/%2F/sorted")
    browse(page)
    expect(page.get_by_role("button", name="Delete messages").first).to_be_disabled()
    page.get_by_label("Choose message 2").check()
    page.get_by_role("button", name="Delete messages").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete 1 message?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Delete messages").click()
    visit.told("1 message deleted.")
    assert payloads(api, "sorted") == ["a", "c", "d"]

    page.get_by_label("Choose message 1").check()
    page.get_by_role("button", name="Move…").click()
    page.get_by_role("dialog").get_by_label("Queue", exact=True).fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    visit.told("1 message moved.")
    assert (payloads(api, "sorted"), payloads(api, "elsewhere")) == (["c", "d"], ["first", "a"])

    expect(rows(page)).to_have_count(2)
    page.get_by_label("All messages, also those not shown").check()
    page.get_by_role("button", name="Republish…").click()
    page.get_by_role("dialog").get_by_label("Queue", exact=True).fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Republish").click()
    visit.told("2 messages replayed.")
    assert (payloads(api, "sorted"), payloads(api, "elsewhere")) == (["c", "d"], ["first", "a", "c", "d"])


def test_a_queue_is_paused_and_resumed(visit: Visit, api: httpx.Client) -> None:
    publish(api, "held", "x")
    page = visit.sign_in(at="#/queues/%2F/held")
    page.get_by_role("button", name="Pause").click()
    visit.told("held is paused")
    expect(page.locator(".pill").filter(has_text="paused")).to_be_visible()
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert api.post("queues/%2F/held/get", json=got).json() == []
    page.get_by_role("button", name="Resume").click()
    visit.told("delivers messages again")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert [message["payload"] for message in api.post("queues/%2F/held/get", json=got).json()] == ["x"]
