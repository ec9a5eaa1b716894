"""Delayed messages, as a person sees and changes them at a real node."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_accessibility import out_of_reach, settled, violations
from tests.browser.visit import Visit

HOUR_MS = 3_600_000


def declare(api: httpx.Client, exchange: str, queue: str) -> None:
    later = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "topic"}}
    api.put(f"exchanges/%2F/{exchange}", json=later).raise_for_status()
    api.put(f"queues/%2F/{queue}", json={"durable": True}).raise_for_status()
    api.post(f"bindings/%2F/e/{exchange}/q/{queue}", json={"routing_key": "#"}).raise_for_status()


def publish(api: httpx.Client, exchange: str, payload: str, hours: int, key: str = "") -> None:
    headers: dict[str, Any] = {"x-delay": hours * HOUR_MS, **({"x-delay-key": key} if key else {})}
    sent = {"properties": {"headers": headers}, "routing_key": f"r.{payload}", "payload": payload}
    published = api.post(f"exchanges/%2F/{exchange}/publish", json={**sent, "payload_encoding": "string"})
    assert published.json() == {"routed": True}


def waits(api: httpx.Client, exchange: str) -> list[str]:
    return [item["payload"] for item in api.get(f"exchanges/%2F/{exchange}/delayed").json()["items"]]


def local(ms: float) -> str:
    """As a field for a time takes it."""
    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%dT%H:%M:%S")


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Delayed messages").get_by_role("button", name=re.compile(r"^Message \d+$"))


def shot(page: Page, name: str) -> None:
    if where := os.environ.get("ACCESSIBILITY_SHOTS"):
        page.screenshot(path=f"{where}/{name}.png", full_page=True)


@pytest.mark.smoke
def test_what_waits_is_found_by_time_and_changed(visit: Visit, api: httpx.Client) -> None:
    declare(api, "later", "reached")
    for payload, hours, key in (("three", 3, ""), ("one", 1, "reminder-17"), ("two", 2, ""), ("four", 4, "")):
        publish(api, "later", payload, hours, key)
    began = time.time() * 1000
    page = visit.sign_in(at="#/delayed")
    row = visit.row("Delayed exchanges", "later")
    expect(row).to_contain_text("4")
    expect(row).to_contain_text(re.compile("in (59 min|1 h 0 min)"))
    shot(page, "delayed")
    row.get_by_role("link").click()
    expect(page.get_by_text(re.compile("in (59 min|1 h 0 min)"))).to_be_visible()
    form = page.get_by_role("form", name="Browse delayed messages")
    form.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(4)
    found = page.get_by_role("table", name="Delayed messages").get_by_role("row")
    for place, payload in enumerate(("one", "two", "three", "four"), 1):
        expect(found.nth(place)).to_contain_text(f"r.{payload}")
    expect(found.nth(1)).to_contain_text("reminder-17")
    expect(page.get_by_role("button", name="Send now")).to_be_disabled()
    settled(page)
    assert not out_of_reach(page)

    form.get_by_label("Due from").fill(local(began + 1.5 * HOUR_MS))
    form.get_by_label("Due until").fill(local(began + 3.5 * HOUR_MS))
    form.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(2)
    expect(page.get_by_text("also those not shown")).to_have_count(0)
    form.get_by_label("Due from").fill("")
    form.get_by_label("Due until").fill("")
    form.get_by_label("Key (x-delay-key)").fill("reminder-17")
    form.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(1)
    rows(page).click()
    whole = page.get_by_role("article")
    expect(whole).to_contain_text("x-delay-key")
    shot(page, "delayed-one")
    assert not violations(page)
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    page.set_viewport_size({"width": 1280, "height": 900})

    page.get_by_role("table", name="Delayed messages").get_by_label(re.compile(r"^Choose message")).check()
    page.get_by_role("button", name="Reschedule…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Reschedule 1 message")
    assert not violations(page)
    dialog.get_by_label("Due").fill(local(began + 5 * HOUR_MS))
    page.keyboard.press("Enter")
    visit.told("1 message rescheduled.")
    assert waits(api, "later") == ["two", "three", "four", "one"]
    (moved,) = api.get("exchanges/%2F/later/delayed?key=reminder-17").json()["items"]
    assert abs(moved["due_ms"] - began - 5 * HOUR_MS) < 2000, "in the browser's own zone"

    form.get_by_label("Key (x-delay-key)").fill("")
    form.get_by_label("Filter").fill("payload=three")
    form.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(1)
    page.get_by_label("All that match, also those not shown").check()
    page.get_by_role("button", name="Cancel messages").click()
    expect(dialog).to_contain_text("Cancel all messages that match payload=three?")
    expect(dialog.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    dialog.get_by_role("button", name="Cancel messages").click()
    visit.told("1 message cancelled.")
    assert waits(api, "later") == ["two", "four", "one"]

    form.get_by_label("Filter").fill("payload=two")
    form.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(1)
    page.get_by_label("Choose all that wait").check()
    page.get_by_role("button", name="Send now").click()
    visit.told("1 message sent.")
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    deadline = time.monotonic() + 10
    while not (came := api.post("queues/%2F/reached/get", json=got).json()):
        assert time.monotonic() < deadline
    assert came[0]["payload"] == "two"
    visit.go("exchanges/%2F/later")
    page.get_by_role("link", name="2 messages waiting").click()
    expect(page.get_by_role("heading", name="later", level=1)).to_be_visible()


def test_more_than_a_page_is_reached_by_due_time(visit: Visit, api: httpx.Client) -> None:
    declare(api, "many", "reached")
    for number in range(23):
        publish(api, "many", f"n{number}", 1 + number // 2)
    page = visit.sign_in(at="#/delayed/%2F/many")
    page.get_by_label("Page size").select_option("20")
    page.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(20)
    page.get_by_role("button", name="Look further").click()
    expect(rows(page)).to_have_count(23)
    expect(page.get_by_role("button", name="Look further")).to_have_count(0)


def test_who_may_only_read_changes_nothing(visit: Visit, api: httpx.Client) -> None:
    declare(api, "seen", "reached")
    publish(api, "seen", "x", 1)
    api.put("users/rita", json={"password": "secret-pass", "tags": "management"}).raise_for_status()
    api.put("permissions/%2F/rita", json={"configure": "", "write": "", "read": ".*"}).raise_for_status()
    page = visit.sign_in("rita", "secret-pass", at="#/delayed/%2F/seen")
    page.get_by_role("button", name="Browse").click()
    expect(rows(page)).to_have_count(1)
    page.get_by_label("Choose all that wait").check()
    for name in ("Send now", "Reschedule…", "Cancel messages"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    visit.go("delayed/%2F/amq.direct")
    expect(page.get_by_text("This exchange delays nothing")).to_be_visible()
