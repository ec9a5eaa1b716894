"""Worker pools, as a person sees them at a real node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pika
import pytest
from playwright.sync_api import Browser, expect

from clusterbroker import Broker
from tests.browser.test_accessibility import out_of_reach, violations
from tests.browser.visit import Visit, visiting
from tests.faults.pools import PoolNodes, eventually, running

STATES = ["delayed", "held", "waiting"]


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
    expect(row).to_contain_text("1 consumer", timeout=15_000)
    expect(row).to_contain_text("/s")
    row.get_by_role("link").click()
    totals = page.get_by_role("list", name="Requests and workers")
    expect(totals).to_contain_text("Waiting2")
    expect(totals).to_contain_text("come by themselves")
    expect(page.get_by_role("img", name=re.compile("^Requests, last 10 minutes"))).to_be_visible()
    expect(visit.row("Keys", "42")).to_contain_text("waiting", timeout=15_000)
    expect(visit.row("Keys", "42")).to_contain_text("2")
    expect(visit.row("Keys", "a/b")).to_contain_text("busy", timeout=15_000)
    visit.sure("Pause pool tiles", "Pause")
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


def test_a_request_is_found_in_its_states_and_cancelled(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/sought", json={}).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("sought-req-a", lambda *_: None)
    answers = channel.queue_declare("", exclusive=True).method.queue
    later = {"x-delay": 3_600_000}
    for exchange, message_id, headers in (("sought", "m1", {}), ("sought", "m2", {}), ("sought-delayed", "m3", later)):
        about = pika.BasicProperties(correlation_id="c/1", message_id=message_id, reply_to=answers, headers=headers)
        channel.basic_publish(exchange, "a", b"x", about)
    page = visit.sign_in(at="#/pools/%2F/sought")
    form = page.get_by_role("form", name="Find a request")
    form.get_by_label("Id", exact=True).fill("c/1")
    # a request is on its way for a moment
    while sorted(one["state"] for one in api.get("pools/%2F/sought/requests/c%2F1").json()["items"]) != STATES:
        connection.process_data_events(0.05)
    page.keyboard.press("Enter")
    found = page.get_by_role("table", name="Requests").locator("tbody tr")
    expect(found).to_have_count(3)
    expect(visit.row("Requests", "delayed")).to_contain_text("due")
    expect(visit.row("Requests", "waiting")).to_contain_text("for a worker of its key, as the next one")
    expect(visit.row("Requests", "held")).to_contain_text("a")
    if where := os.environ.get("ACCESSIBILITY_SHOTS"):
        page.screenshot(path=f"{where}/pool-requests.png", full_page=True)
    assert not violations(page)
    assert not out_of_reach(page)
    form.get_by_label("Id", exact=True).fill("m1")
    form.get_by_label("It is a").select_option("message id")
    form.get_by_role("button", name="Find").click()
    expect(found).to_have_count(1)
    expect(visit.row("Requests", "held")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel request c/1")).to_have_count(0)
    form.get_by_label("Id", exact=True).fill("c/1")
    form.get_by_label("It is a").select_option("correlation id")
    form.get_by_label("Only key").fill("a")
    form.get_by_role("button", name="Find").click()
    page.get_by_role("button", name="Cancel request c/1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 2 requests with id c/1?")
    expect(dialog.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    dialog.get_by_role("button", name="Cancel request").click()
    visit.told("2 requests cancelled.")
    expect(found).to_have_count(1)
    assert [one["state"] for one in api.get("pools/%2F/sought/requests/c%2F1").json()["items"]] == ["held"]
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    form.get_by_label("Id", exact=True).fill("never")
    form.get_by_role("button", name="Find").click()
    expect(page.get_by_text("No such request is here")).to_be_visible()
    connection.close()


def test_requests_are_listed_without_an_id(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/listed", json={}).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("listed-req-a", lambda *_: None)
    for number in range(60):
        channel.basic_publish("listed", "a", b"x", pika.BasicProperties(correlation_id=str(number)))
    told = {"x-event": "progress", "x-progress": "0.25", "x-correlation-id": "0"}
    channel.basic_publish("listed-activity-xchg", "a", b"", pika.BasicProperties(headers=told))
    eventually("one is held", lambda: api.get("pools/%2F/listed/requests?state=held").json()["items"])
    page = visit.sign_in(at="#/pools/%2F/listed")
    page.get_by_role("form", name="Find a request").get_by_role("button", name="Find").click()
    found = page.get_by_role("table", name="Requests").locator("tbody tr")
    expect(found).to_have_count(60)
    expect(found.first).to_contain_text("25 % done")
    expect(found.nth(1)).to_contain_text("as the next one")
    expect(found.nth(59)).to_contain_text("58 before it")
    expect(page.get_by_role("button", name="Cancel request")).to_have_count(0)
    for number in range(60, 110):
        channel.basic_publish("listed", "a", b"x", pika.BasicProperties(correlation_id=str(number)))
    page.get_by_role("form", name="Find a request").get_by_role("button", name="Find").click()
    expect(found).to_have_count(100)
    page.get_by_role("button", name="Show more").click()
    expect(found).to_have_count(110)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    connection.close()


def test_words_about_keys(visit: Visit, api: httpx.Client) -> None:
    api.put("pools/%2F/worded", json={}).raise_for_status()
    page = visit.sign_in(at="#/pools/%2F/worded")
    form = page.get_by_role("form", name="Start a key")
    form.get_by_label("Key").fill("a/b")
    form.get_by_role("button", name="Start").click()
    expect(visit.row("Keys", "a/b")).to_be_visible()
    visit.sure("Pin key a/b", "Pin")
    visit.told("Key a/b is pinned.")
    assert api.get("pools/%2F/worded/groups/a%2Fb").json()["pinned"]
    expect(page.get_by_role("button", name="Stop key a/b")).to_have_count(0)
    visit.sure("Unpin key a/b", "Unpin")
    visit.told("Key a/b is not pinned.")
    visit.sure("Stop key a/b", "Stop")
    visit.told("The workers of key a/b end.")
    expect(visit.row("Keys", "a/b")).to_contain_text("idle")
    page.evaluate("scrollTo(0, 0)")  # the bar above lies over nothing
    assert not violations(page)
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()


def test_poison_is_looked_at_replayed_and_dropped(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/poisoned", json={"delivery_limit": 0}).raise_for_status()
    caller = pika.BlockingConnection(pika.URLParameters(node.url))
    for number in (1, 2):
        about = pika.BasicProperties(correlation_id=f"c{number}")
        caller.channel().basic_publish("poisoned", "42", b"deadly", about)
        worker = pika.BlockingConnection(pika.URLParameters(node.url))
        next(worker.channel().consume("poisoned-req-42"))
        worker.close()
        eventually("it is kept", lambda number=number: _poison(api) == number)  # type: ignore[misc]
    page = visit.sign_in(at="#/pools/%2F/poisoned")
    page.get_by_role("button", name="Look at poison").click()
    rows = page.get_by_role("table", name="Poison").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("c1")
    rows.first.get_by_role("button", name="Poison 1", exact=True).click()
    expect(page.get_by_role("article", name="Message 1")).to_contain_text("deadly")
    assert not violations(page)
    visit.sure("Replay poison 1", "Replay")
    visit.told("1 message given to their keys.")
    expect(rows).to_have_count(1)
    assert [one["state"] for one in api.get("pools/%2F/poisoned/requests/c1").json()["items"]] == ["waiting"]
    visit.sure("Drop poison 2", "Drop")
    visit.told("1 message dropped.")
    expect(page.get_by_text("No poison", exact=True)).to_be_visible()
    assert _poison(api) == 0
    caller.close()


def _poison(api: httpx.Client) -> int:
    return len(api.get("pools/%2F/poisoned/requests?state=poison").json()["items"])


def test_who_may_only_look_has_no_buttons(visit: Visit, api: httpx.Client) -> None:
    api.put("pools/%2F/looked", json={}).raise_for_status()
    api.post("pools/%2F/looked/groups/42/start", json={}).raise_for_status()
    api.put("users/eye", json={"password": "eye", "tags": "monitoring"}).raise_for_status()
    rights = {"configure": "", "write": "", "read": "looked.*"}
    api.put("permissions/%2F/eye", json=rights).raise_for_status()
    page = visit.sign_in("eye", "eye", at="#/pools/%2F/looked")
    expect(visit.row("Keys", "42")).to_be_visible()
    expect(page.get_by_role("button", name="Look at poison")).to_be_visible()
    for name in ("Pause", "Delete", "Pin", "Stop", "Start"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_a_worker_is_stopped(built: None, browser: Browser, tmp_path: Path) -> None:
    with running(PoolNodes(tmp_path, "a")) as nodes, ThreadPoolExecutor(1) as threads, nodes.caller() as caller:
        nodes.declare()
        call = threads.submit(caller.call, "42", str(tmp_path).encode(), path="hold", timeout_s=60)
        eventually("a worker holds it", lambda: nodes.workers() and nodes.workers()[0]["held"])
        (worker,) = (row["id"] for row in nodes.workers())
        with visiting(browser, f"http://127.0.0.1:{nodes.ports['a']}") as visit:
            visit.sign_in(at="#/pools/%2F/core")
            visit.sure(f"Stop worker {worker}", "Stop")
            visit.told(f"Worker {worker} ends.")
            expect(visit.row("Workers", worker)).to_contain_text("retiring")
            expect(visit.row("Workers", worker).get_by_role("button", name="Stop")).to_have_count(0)
            (tmp_path / "go").touch()
            call.result()
            expect(visit.row("Workers", worker)).to_have_count(0)
            visit.assert_quiet()


@pytest.fixture(scope="module")
def started(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    """A node whose pools start workers, one at most."""
    with running(PoolNodes(tmp_path_factory.mktemp("node"), "a", memory_bytes=1 << 20, max_workers=1)) as nodes:
        yield nodes


def test_places_with_their_room(started: PoolNodes, browser: Browser) -> None:
    started.declare()
    with started.caller() as caller:
        caller.call("42", timeout_s=60)
    with visiting(browser, f"http://127.0.0.1:{started.ports['a']}") as visit:
        page = visit.sign_in(at="#/pools/%2F/core")
        place = visit.row("Places", "full")
        expect(place).to_contain_text("it has max_workers = 1 workers")
        expect(place).to_contain_text("1 of 1")
        expect(place).to_contain_text(re.compile(r"MiB of [\d.]+ [GM]iB"))  # what its worker has, as was measured
        expect(place).to_contain_text("subprocess")
        assert int(page.get_by_label("Memory promised at a").get_attribute("value") or 0) >= 1 << 20
        assert not violations(page)
        assert not out_of_reach(page)
        page.set_viewport_size({"width": 360, "height": 740})
        visit.fits()
        place.get_by_role("link").click()
        expect(page.get_by_role("heading", name="a", exact=True)).to_be_visible()
        visit.assert_quiet()


def test_keys_as_a_strip(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/striped", json={}).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    for number in range(12):
        channel.basic_publish("striped", f"key{number:02}", b"x")
    channel.basic_publish("striped", "key07", b"x")
    channel.basic_consume("striped-req-key03", lambda *_: None)
    eventually(
        "all is told", lambda: api.get("pools/%2F/striped/keys").json()["by_state"] == {"waiting": 11, "busy": 1}
    )
    page = visit.sign_in(at="#/pools/%2F/striped")
    strip = page.get_by_role("group", name=re.compile("^12 keys, the largest first"))
    expect(strip.locator(".bar")).to_have_count(12)
    expect(strip.locator(".bar.busy")).to_have_attribute("title", "key03: busy, 1 consumer, 0 waiting, 1 held")
    expect(strip.locator(".bar").first).to_have_attribute("title", "key07: waiting, 0 consumers, 2 waiting, 0 held")
    panel = page.locator("section").filter(has=page.get_by_role("heading", name="Keys at a glance"))
    expect(panel).to_contain_text("busy 1")
    expect(panel).to_contain_text("waiting 11")
    assert not violations(page)
    strip.focus()
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text("key07 waiting")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="striped-req-key07")).to_be_visible()
    page.go_back()
    strip.locator(".bar.busy").click()
    expect(page.get_by_role("heading", name="striped-req-key03")).to_be_visible()
    connection.close()


def test_a_strip_of_many_keys_has_few_bars(visit: Visit, node: Broker, api: httpx.Client) -> None:
    api.put("pools/%2F/crowded", json={}).raise_for_status()
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    for number in range(450):
        channel.basic_publish("crowded", str(number), b"x")
    eventually("all is told", lambda: api.get("pools/%2F/crowded/keys").json()["by_state"].get("waiting") == 450)
    page = visit.sign_in(at="#/pools/%2F/crowded")
    strip = page.get_by_role("group", name=re.compile("^450 keys"))
    bars = strip.locator(".bar")
    expect(strip.locator(".bar.rest")).to_be_visible()
    shown = bars.count() - 1
    assert 100 <= shown <= 200
    expect(strip.locator(".bar.rest")).to_have_text(f"+{450 - shown}")
    page.set_viewport_size({"width": 360, "height": 740})
    visit.fits()
    page.wait_for_function("() => document.querySelectorAll('.strip .bar').length < 60")
    expect(strip.locator(".bar.rest")).to_have_text(f"+{450 - (bars.count() - 1)}")
    connection.close()


def test_starts_and_ends_are_drawn_with_their_reasons(built: None, browser: Browser, tmp_path: Path) -> None:
    with running(PoolNodes(tmp_path, "a")) as nodes, nodes.caller() as caller:
        nodes.declare()
        caller.call("42", timeout_s=60)
        (worker,) = nodes.processes()

        def told(event: str) -> bool:
            return event in [one["event"] for one in nodes.api("GET", "pools/%2F/core/history").json()]

        eventually("its controller has heard that it is ready", lambda: told("ready"))
        nodes.processes()[worker].kill()
        eventually("it is gone", lambda: told("exited"))
        with visiting(browser, f"http://127.0.0.1:{nodes.ports['a']}") as visit:
            page = visit.sign_in(at="#/pools/%2F/core")
            line = page.get_by_role("group", name=re.compile("starts? (or|and) ends? of [12] workers?"))
            expect(line).to_be_visible()
            line.focus()
            page.keyboard.press("Home")
            panel = page.locator("section").filter(has=page.get_by_role("heading", name="Starts and ends of workers"))
            expect(panel).to_contain_text(f"{worker} (key 42) at a was ordered")
            page.keyboard.press("ArrowRight")
            expect(panel).to_contain_text(f"{worker} (key 42) at a is ready, ")
            page.keyboard.press("ArrowRight")
            expect(panel).to_contain_text(f"{worker} (key 42) at a is gone: it ended by itself, exit status ")
            panel.get_by_text("As a table").click()
            expect(visit.row("Starts and ends", "it ended by itself")).to_contain_text(worker)
            expect(page.get_by_role("list", name="Requests and workers")).to_contain_text("Workers")
            assert not violations(page)
            page.emulate_media(color_scheme="dark")
            assert not violations(page)
            assert not out_of_reach(page)
            page.set_viewport_size({"width": 360, "height": 740})
            visit.fits()
            visit.assert_quiet()
