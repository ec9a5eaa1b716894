"""Each page for people who use a keyboard or a screen reader: axe finds nothing, in both colour schemes, and Tab
reaches whatever can be clicked.

axe-core comes with the page's packages (`web/package.json`). It looks at names, roles, contrast, landmarks and more:
https://github.com/dequelabs/axe-core/blob/develop/doc/rule-descriptions.md
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika
import pytest
from playwright.sync_api import Browser, Page

from clusterbroker import Broker
from tests.browser.visit import visiting

AXE: Final = Path(__file__).resolve().parents[2] / "web/node_modules/axe-core/axe.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PLACES: Final = (
    "overview", "connections", "channels", "exchanges", "exchanges/%2F/shop", "queues", "queues/%2F/orders", "cluster",
    "cluster/embedded", "vhosts", "policies", "parameters", "users", "definitions", "delayed", "delayed/%2F/later",
    "pools/%2F/tiles",
)  # fmt: skip
RUN: Final = """async rules => (await axe.run({runOnly: rules, resultTypes: ["violations"]})).violations
    .flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.target} ${node.failureSummary}`))"""
CLICKABLE: Final = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
    .filter(one => one.offsetParent !== null && !one.disabled && !one.closest("[inert]"))"""
NAMED: Final = "one => `${one.tagName} ${one.getAttribute('aria-label') ?? one.textContent.trim() ?? one.name}`"


@pytest.fixture(scope="module")
def connection(node: Broker, api: httpx.Client) -> Iterator[str]:
    """The name of a connection with a channel that consumes; there is one of all that pages show."""
    for path, body in (
        ("queues/%2F/orders", {"arguments": {"x-max-length": 1000, "x-queue-type": "quorum"}}),
        ("exchanges/%2F/shop", {"type": "topic"}),
        ("exchanges/%2F/later", {"type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}),
        ("pools/%2F/tiles", {}),
        ("policies/%2F/short", {"pattern": "^x", "definition": {"max-length": 10}, "apply-to": "queues"}),
        ("users/mona", {"password": "secret-pass", "tags": "monitoring"}),
        ("permissions/%2F/mona", {"configure": "", "write": "", "read": ".*"}),
        ("topic-permissions/%2F/mona", {"exchange": "shop", "write": "", "read": ".*"}),
    ):
        api.put(path, json=body).raise_for_status()
    api.post("bindings/%2F/e/shop/q/orders", json={"routing_key": "order.*"}).raise_for_status()
    parameters = pika.URLParameters(node.url)
    parameters.heartbeat = 0  # nobody serves it while pages are looked at
    with pika.BlockingConnection(parameters) as made:
        channel = made.channel()
        channel.basic_publish("", "orders", b"hello")
        channel.basic_consume("orders", lambda *_: None)
        while not (found := api.get("channels").json()):
            made.process_data_events(0.1)
        yield str(found[0]["connection_details"]["name"])


def violations(page: Page) -> list[str]:
    """What axe finds on the page as it is now."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(RUN, RULES)
    return found


def settled(page: Page) -> None:
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(node: Broker, browser: Browser, connection: str, scheme: Any) -> None:
    found: dict[str, list[str]] = {}
    with visiting(browser, node.http_url) as visit:
        page = visit.page
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.goto(visit.url)
        page.get_by_role("button", name="Sign in").wait_for()
        found["sign in"] = violations(page)
        visit.sign_in()
        for place in (*PLACES, f"connections/{quote(connection, safe='')}"):
            visit.go(place)
            settled(page)
            found[place] = violations(page)
            if shots := os.environ.get("ACCESSIBILITY_SHOTS"):
                page.screenshot(path=f"{shots}/{scheme}-{place.replace('/', '_')}.png", full_page=True)
        visit.go("queues/%2F/orders")
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").wait_for()
        found["dialog"] = violations(page)
    told = "\n".join(f"{place}: {one}" for place, ones in found.items() for one in ones)
    assert not told, told


def out_of_reach(page: Page) -> list[str]:
    """What can be clicked, and Tab does not come to."""
    page.evaluate(f"window.missed = new Set(({CLICKABLE})())")
    left = int(page.evaluate("window.missed.size"))
    for _ in range(2 * left + 20):  # rows that come meanwhile are on the way
        if not left:
            break
        page.keyboard.press("Tab")
        left = page.evaluate("window.missed.delete(document.activeElement), window.missed.size")
    found: list[str] = page.evaluate(f"[...window.missed].filter(one => one.isConnected).map({NAMED})")
    return found


@pytest.mark.parametrize("place", ["overview", "queues/%2F/orders", "policies", "users"])
def test_tab_reaches_what_can_be_clicked(node: Broker, browser: Browser, connection: str, place: str) -> None:
    with visiting(browser, node.http_url) as visit:
        page = visit.sign_in(at=f"#/{place}")
        settled(page)
        assert not out_of_reach(page)


def test_what_is_wrong_is_found(node: Broker, browser: Browser) -> None:
    """A button without a name, text that is hardly seen, a link that Tab passes over."""
    with visiting(browser, node.http_url) as visit:
        page = visit.sign_in()
        settled(page)
        wrong = "<button></button><p id='pale'>pale</p><a href='#/' tabindex='-1'>lost</a>"
        page.evaluate("wrong => document.querySelector('main').insertAdjacentHTML('beforeend', wrong)", wrong)
        page.evaluate("Object.assign(document.querySelector('#pale').style, {color: '#eee', background: '#fff'})")
        rules = {line.partition(":")[0] for line in violations(page)}
        assert {"button-name", "color-contrast"} <= rules
        assert out_of_reach(page) == ["A lost"]
