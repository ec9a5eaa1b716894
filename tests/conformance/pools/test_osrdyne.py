"""What osrdyne's clients ask (rule 70)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.faults.pools import LOOPBACK, PoolNodes, eventually

from ..marks import rule
from .conftest import PoolOfTest
from .started import StartedNodes

ODD = "a,b +%/\u00e9"


def asked(nodes: PoolNodes, query: str, user: str = "guest") -> dict[str, Any]:
    port = nodes.ports[nodes.living[-1]]
    url = f"http://{user}:{user}@{LOOPBACK}:{port}/status{query}"
    answer: dict[str, Any] = httpx.get(url, timeout=60, verify=False).raise_for_status().json()
    assert list(answer) == ["workers"]
    workers: dict[str, Any] = answer["workers"]
    return workers


def keys(*some: str) -> str:
    """As editoast's client writes them."""
    return "?keys=" + ",".join(quote(key, safe="") for key in some)


@pytest.fixture
def two_pools(nodes: StartedNodes) -> Iterator[StartedNodes]:
    """With `core` and `slow`, and no worker that is not of these, but for HOPELESS."""
    eventually("those of other pools are gone", lambda: not asked(nodes, keys("42", ODD, "7")))
    for name in ("core", "slow"):
        nodes.declare(name, name)
    yield nodes
    for name in ("core", "slow"):
        nodes.api("DELETE", f"pools/%2F/{name}?force=true")


@rule("70")
@pytest.mark.processes
def test_status_of_started_workers(two_pools: StartedNodes) -> None:
    nodes = two_pools
    assert asked(nodes, keys("42", ODD)) == {}
    for pool, key in (("core", "42"), ("core", ODD), ("slow", "7")):
        path = f"pools/%2F/{pool}/groups/{quote(key, safe='')}/start"
        nodes.api("POST", path, {}, at=nodes.living[-1]).raise_for_status()
    found = eventually(
        "both are ready",
        lambda: (
            (found := asked(nodes, keys("42", ODD, "no")))
            and [one["status"] for one in found.values()] == ["Ready", "Ready"]
            and found
        ),
    )
    assert set(found) == {"42", ODD}
    (launch,) = [row["id"] for row in nodes.workers("core") if row["key"] == ODD]
    assert found[ODD]["worker_metadata"] == {"external_id": launch, "worker_id": launch, "worker_key": ODD}
    (slow,) = eventually("it was launched", lambda: asked(nodes, keys("7"))).values()
    assert slow["status"] == "Loading"
    assert asked(nodes, f"?keys=42&keys={quote(ODD, safe='')}") == found
    assert set(asked(nodes, "")) >= {one["worker_metadata"]["worker_id"] for one in (*found.values(), slow)}
    nodes.api("PUT", "users/other", {"password": "other", "tags": "management"}).raise_for_status()
    nodes.api("PUT", "permissions/%2F/other", {"configure": "", "write": "", "read": "slow.*"}).raise_for_status()
    assert set(eventually("the user is known", lambda: asked(nodes, keys("42", "7"), "other"))) == {"7"}


@rule("70")
def test_workers_that_come_by_themselves_are_ready(declare: Callable[..., PoolOfTest]) -> None:
    pool = declare(keys="[0-9]+")

    def get(path: str, auth: tuple[str, str] | None = ("guest", "guest")) -> httpx.Response:
        return httpx.get(f"{pool.target.http}{path}", auth=auth, timeout=60, verify=False)

    workers = get(f"/status{keys('42', 'no')}").raise_for_status().json()["workers"]
    assert workers["42"] == {"worker_metadata": None, "status": "Ready"}
    assert "no" not in workers
    assert get("/health", None).raise_for_status().json() == {"status": "ok"}
    assert "git_describe" in get("/version").raise_for_status().json()
    assert get("/status", None).status_code == 401
