"""Programs that poll the management API, with the requests that they make: Flower's broker view, KEDA's scaler.

Flower runs as it is installed. KEDA runs in a cluster only, so its scaler's requests are made here: the address from
its `host`, `vhostName` and `queueName`, percent-encoded as Go does it, Basic, and the fields that it reads.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import pika
import pytest

from clusterbroker import Broker
from clusterbroker.broker.trial.nodes import free_port
from tests.faults.node import wait_for
from tests.support import processes

READY = 5
HELD = 2


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    """With queues in two vhosts; of `work` some messages are held by a consumer."""
    with Broker(http=True) as broker:
        with httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=20, verify=False) as api:
            api.put("/api/vhosts/orders%2Feu").raise_for_status()
            every = {"configure": ".*", "write": ".*", "read": ".*"}
            api.put("/api/permissions/orders%2Feu/guest", json=every).raise_for_status()
        url = pika.URLParameters(broker.url)
        there = pika.URLParameters(broker.url)
        there.virtual_host = "orders/eu"
        with pika.BlockingConnection(url) as connection, pika.BlockingConnection(there) as elsewhere:
            channel = connection.channel()
            channel.confirm_delivery()
            for queue in ("celery", "work", "work.slow", "a queue/with everything?"):
                channel.queue_declare(queue, durable=True)
            for _ in range(READY + HELD):
                channel.basic_publish("", "work", b"x" * 100)
                channel.basic_publish("", "celery", b"x")
            holding = connection.channel()
            for _ in range(HELD):
                holding.basic_get("work")
            elsewhere.channel().queue_declare("work", durable=True)
            wait_for(lambda: counted(broker), "a sample that has it all")
            yield broker


def counted(node: Broker) -> bool:
    queues = (
        httpx.get(f"{node.http_url}/api/queues", auth=("guest", "guest"), timeout=20, verify=False)
        .raise_for_status()
        .json()
    )
    found = {(queue["vhost"], queue["name"]): queue.get("messages_unacknowledged") for queue in queues}
    return found.get(("/", "work")) == HELD and ("orders/eu", "work") in found


# -- Flower -----------------------------------------------------------------------------------------------------------


@contextmanager
def flower(node: Broker, directory: Path) -> Iterator[str]:
    """The address of its page."""
    port = free_port()
    words = [sys.executable, "-m", "celery", "--broker", node.url, "flower", "--address=127.0.0.1", f"--port={port}"]
    words += [f"--broker-api={node.http_url.replace('://', '://guest:guest@')}/api/", "--enable-events=False"]
    environment = os.environ | {"FLOWER_UNAUTHENTICATED_API": "true"}
    with open(directory / "flower.log", "wb") as log:
        process = processes.popen(words, stdout=log, stderr=log, cwd=directory, env=environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def page(url: str) -> str:
    """Empty while nobody answers."""
    try:
        return httpx.get(url, timeout=20, verify=False).raise_for_status().text
    except httpx.TransportError:
        return ""


@pytest.mark.skipif(find_spec("flower") is None, reason="flower is not installed")
def test_flower_shows_its_queues(node: Broker, tmp_path: Path) -> None:
    with flower(node, tmp_path) as url:
        try:
            shown = wait_for(lambda: page(f"{url}/broker"), "Flower answers", 120)
        except TimeoutError:
            pytest.fail((tmp_path / "flower.log").read_text()[-3000:])
        rows = re.findall(r"<tr.*?</tr>", shown, re.DOTALL)
        cells = [re.findall(r"<td[^>]*>\s*(.*?)\s*</td>", row, re.DOTALL)[:4] for row in rows]
        assert ["celery", "7", "0", "7"] in cells, shown[-3000:]
        active = (
            httpx.get(f"{url}/api/queues/length", timeout=20, verify=False).raise_for_status().json()["active_queues"]
        )
        assert [(queue["name"], queue["messages"]) for queue in active] == [("celery", READY + HELD)]


# -- KEDA -------------------------------------------------------------------------------------------------------------


def scaled_by(node: Broker, vhost: str, queue: str) -> dict[str, Any]:
    """What the scaler reads of one queue: `host` with a user in it, the vhost `/` as %2F."""
    host = node.http_url.replace("://", "://guest:guest@")
    answer = httpx.get(
        f"{host}/api/queues/{quote_plus(vhost)}/{quote_plus(queue).replace('+', '%20')}", timeout=20, verify=False
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by_pattern(node: Broker, vhost: str, pattern: str) -> dict[str, Any]:
    """`useRegex`: one page of what matches."""
    where = f"/{quote_plus(vhost)}" if vhost else ""
    asked = f"page=1&use_regex=true&pagination=false&name={quote_plus(pattern)}&page_size=100"
    answer = httpx.get(f"{node.http_url}/api/queues{where}?{asked}", auth=("guest", "guest"), timeout=20, verify=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_keda_scales_by_the_length_of_a_queue(node: Broker) -> None:
    found = scaled_by(node, "/", "work")
    assert (found["name"], found["messages"], found["messages_ready"]) == ("work", READY + HELD, READY)
    assert found["messages_unacknowledged"] == HELD
    assert scaled_by(node, "orders/eu", "work")["messages"] == 0
    assert scaled_by(node, "/", "a queue/with everything?")["vhost"] == "/"


def test_keda_scales_by_the_rate_of_publishes(node: Broker) -> None:
    """It takes a queue without statistics for one without publishes."""
    stats = scaled_by(node, "/", "work").get("message_stats", {})
    assert isinstance(stats["publish_details"]["rate"], int | float)
    assert scaled_by(node, "orders/eu", "work").get("message_stats", {}).get("publish", 0) == 0


@pytest.mark.parametrize(
    ("vhost", "pattern", "names"),
    [
        ("/", "^work", ["work", "work.slow"]),
        ("/", "work", ["work", "work.slow"]),
        ("/", "^work$", ["work"]),
        ("", "^work$", ["work", "work"]),
        ("orders/eu", "^work", ["work"]),
        ("/", "nothing", []),
    ],
)
def test_keda_sums_over_queues_that_match(node: Broker, vhost: str, pattern: str, names: list[str]) -> None:
    found = by_pattern(node, vhost, pattern)
    assert sorted(item["name"] for item in found["items"]) == names
    assert found["page_count"] <= 1, "it gives up when there is a second page"
    for item in found["items"]:
        assert {"messages", "messages_ready", "name", "vhost"} <= item.keys()


def test_keda_is_told_what_is_not_there(node: Broker) -> None:
    url = f"{node.http_url}/api/queues/%2F/gone"
    assert httpx.get(url, auth=("guest", "guest"), timeout=20, verify=False).status_code == 404
    assert httpx.get(url, auth=("guest", "wrong"), timeout=20, verify=False).status_code == 401
