"""`python -m tests.browser.screenshots`: the pictures in docs/images, of a cluster of three with something going on."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pika
from playwright.sync_api import expect

from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from tests.browser.visit import chromium, visiting
from tests.faults.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
NAMES = ("amsterdam", "berlin", "copenhagen")
LOAD_S = 120.0
QUEUES = {
    "orders": 40, "orders.express": 8, "orders.returns": 3, "invoices": 12, "mails": 60, "mails.bounced": 1,
    "stock.updates": 90, "stock.alerts": 2, "search.index": 25, "audit": 30,
}  # fmt: skip
"""Messages a second into each."""
BINDINGS = {
    "orders": ("order.created", "order.changed"), "orders.express": ("order.*.express",),
    "orders.returns": ("order.returned",), "invoices": ("order.created",), "search.index": ("order.#", "stock.#"),
    "audit": ("#",),
}  # fmt: skip


def declare(api: httpx.Client) -> None:
    for queue in QUEUES:
        api.put(f"queues/%2F/{queue}", json={}).raise_for_status()
    for exchange, kind in (("shop", "topic"), ("site", "topic"), ("mirror", "fanout")):
        api.put(f"exchanges/%2F/{exchange}", json={"type": kind}).raise_for_status()
    for queue, keys in BINDINGS.items():
        for key in keys:
            api.post(f"bindings/%2F/e/shop/q/{queue}", json={"routing_key": key}).raise_for_status()
    api.post("bindings/%2F/e/site/e/shop", json={"routing_key": "order.#"}).raise_for_status()
    api.post("bindings/%2F/e/shop/e/mirror", json={"routing_key": "#"}).raise_for_status()
    limits = {"pattern": "^orders", "apply-to": "queues", "definition": {"max-length": 100_000}}
    api.put("policies/%2F/order-limits", json=limits).raise_for_status()


def told(api: httpx.Client) -> None:
    """Messages worth reading, in a queue that nobody consumes."""
    for number, city in enumerate(("Porto", "Lisbon", "Ghent", "Lisbon", "Bergen", "Lisbon")):
        order = {
            "order": 4711 + number,
            "city": city,
            "items": [{"article": "A-17", "count": number + 1}],
            "express": number % 2 == 1,
        }
        sent = {
            "routing_key": "order.created",
            "payload": json.dumps(order),
            "payload_encoding": "string",
            "properties": {"type": "order.created", "delivery_mode": 2, "headers": {"customer": 100 + number}},
        }
        api.post("exchanges/%2F/shop/publish", json=sent).raise_for_status()


def publishing(url: str, stop: threading.Event) -> None:
    parameters = pika.URLParameters(url)
    parameters.client_properties = {"connection_name": "web shop"}
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        turn = 0
        while not stop.is_set():
            turn += 1
            for place, (queue, pace) in enumerate(QUEUES.items()):
                wave = 1 + ((turn + 7 * place) % 40) / 40
                for _ in range(int(pace * wave / 10) or (turn % 10 == place)):
                    channel.basic_publish("", queue, b"x" * 300)
            connection.process_data_events(time_limit=0.1)


def consuming(url: str, queue: str, idle_s: float, stop: threading.Event) -> None:
    parameters = pika.URLParameters(url)
    parameters.client_properties = {"connection_name": f"worker for {queue}"}
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        for method, _, _ in channel.consume(queue, inactivity_timeout=0.5):
            if stop.is_set():
                return
            if method is not None:
                channel.basic_ack(method.delivery_tag)
                connection.sleep(idle_s)


async def started(directory: Path, ports: dict[str, int]) -> Fleet:
    fleet = Fleet(directory)
    for name in NAMES:
        fleet.launch(name, "--peers", fleet.peers(*NAMES), "--http", f"{LOOPBACK}:{ports[name]}")
    await fleet.ready(*NAMES)
    return fleet


def main() -> None:
    directory = Path(tempfile.mkdtemp())
    ports = {name: free_port() for name in NAMES}
    stop = threading.Event()
    with asyncio.Runner() as runner:
        fleet = runner.run(started(directory, ports))
        try:
            http = f"http://{LOOPBACK}:{ports[NAMES[0]]}"
            with httpx.Client(base_url=f"{http}/api/", auth=("guest", "guest"), timeout=20, verify=False) as api:
                declare(api)
                told(api)
                urls = [f"amqp://guest:guest@{LOOPBACK}:{fleet.node(name).amqp_port}/" for name in NAMES]
                work = [threading.Thread(target=publishing, args=(urls[0], stop))]
                for place, (queue, pace) in enumerate(QUEUES.items()):
                    if queue not in ("audit", "mails.bounced"):
                        asked = (urls[place % 2], queue, 0.6 / pace, stop)
                        work.append(threading.Thread(target=consuming, args=asked))
                for thread in work:
                    thread.start()
                watched(api, LOAD_S / 3)
                operated(runner, fleet, api, ports)
                watched(api, LOAD_S * 2 / 3)
                shoot(http)
        finally:
            stop.set()
            time.sleep(1)
            runner.run(fleet.kill_all())
            shutil.rmtree(directory, ignore_errors=True)


def watched(api: httpx.Client, for_s: float) -> None:
    """Whoever looks keeps the curves of single queues."""
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        api.get("queues/%2F/orders?lengths_age=600&lengths_incr=5&msg_rates_age=600&msg_rates_incr=5")
        time.sleep(2)


def operated(runner: asyncio.Runner, fleet: Fleet, api: httpx.Client, ports: dict[str, int]) -> None:
    """What a time line has to tell: a member without clients dies and comes back, a drain, a queue moved."""
    *_, last = NAMES
    runner.run(fleet.kill(last))
    watched(api, 12)
    fleet.launch(last, "--peers", fleet.peers(*NAMES), "--http", f"{LOOPBACK}:{ports[last]}")
    runner.run(fleet.ready(last))
    watched(api, 10)
    api.post("rebalance/queues", json={}).raise_for_status()
    watched(api, 10)
    to = next(name for name in NAMES if name != api.get("queues/%2F/orders").json()["owner"])
    api.post("queues/%2F/orders/move", json={"to": to}).raise_for_status()
    watched(api, 10)
    drain = f"http://{LOOPBACK}:{ports[last]}/api/nodes/{last}/drain"
    for body in ({}, {"undo": True}):
        httpx.post(drain, json=body, auth=("guest", "guest"), timeout=90, verify=False).raise_for_status()
        watched(api, 12)
    api.post("rebalance/queues", json={}).raise_for_status()


def shoot(http: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    with chromium() as browser, visiting(browser, http, 1180, 900) as visit:
        page = visit.sign_in()
        for name, place in (
            ("overview", "overview"),
            ("queue", "queues/%2F/orders"),
            ("exchange", "exchanges/%2F/shop"),
            ("cluster", "cluster"),
        ):
            visit.go(place)
            expect(page.locator(".panel").first).to_be_visible()
            page.wait_for_load_state("networkidle")
            page.evaluate("document.activeElement.blur()")
            page.mouse.move(0, 0)
            page.screenshot(path=IMAGES / f"web-{name}.png")
            if name == "cluster":
                page.locator(".timeline").focus()
                page.keyboard.press("End")
                page.keyboard.press("ArrowLeft")
                page.locator(".panel").filter(has=page.locator(".timeline")).screenshot(
                    path=IMAGES / "web-timeline.png"
                )
        visit.go("queues/%2F/audit")
        page.set_viewport_size({"width": 1180, "height": 1600})  # the panel stands below the bar, whole
        form = page.get_by_role("form", name="Browse messages")
        form.get_by_label("Filter").fill('type=order.created AND payload~"Lisbon"')
        form.get_by_label("Page size").select_option("20")
        form.get_by_role("button", name="Browse").click()
        page.locator(".seq").first.click()
        page.get_by_label("Choose message").nth(1).check()
        panel = page.locator(".panel").filter(has=form)
        expect(panel.get_by_role("article")).to_be_visible()
        panel.screenshot(path=IMAGES / "web-browse.png")
        visit.assert_quiet()
    if shutil.which("pngquant"):
        images = sorted(IMAGES.glob("web-*.png"))
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", "64", *images], check=True)


if __name__ == "__main__":
    main()
