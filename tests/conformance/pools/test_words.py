"""An operator's words about a key, and what becomes of a worker that is retired with a request."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterbroker_workers import Unserved
from tests.faults.pools import PoolNodes, eventually, told

from ..marks import rule

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[("a",), ("a", "b", "c")], ids=["one node", "three nodes"])
def nodes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[PoolNodes]:
    made = PoolNodes(tmp_path_factory.mktemp("nodes"), *request.param)
    made.start()
    yield made
    made.close()


@pytest.fixture
def pool(nodes: PoolNodes, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name, whose pool is deleted at the end."""
    name = "p" + str(abs(hash(request.node.name)) % 1_000_000)
    yield name
    nodes.fails.unlink(missing_ok=True)
    nodes.api("DELETE", f"pools/%2F/{name}?force=true")


def say(nodes: PoolNodes, pool: str, word: str, key: str = "42") -> None:
    """At the node that is asked last, which need not be the controller's."""
    at = nodes.living[-1]
    nodes.api("POST", f"pools/%2F/{pool}/groups/{key}/{word}", {}, at=at).raise_for_status()


def serving(nodes: PoolNodes, pool: str) -> set[str]:
    return {row["id"] for row in nodes.workers(pool) if not row["retired"] and not row["revoked"]}


@rule("61")
def test_start_and_stop(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool)
    say(nodes, pool, "start")
    (first,) = eventually("a worker without a request", lambda: serving(nodes, pool))
    eventually("it consumes", lambda: nodes.groups(pool)["42"]["consumers"])
    say(nodes, pool, "stop")
    eventually("its worker is over", lambda: first not in nodes.processes() and not nodes.workers(pool))
    assert nodes.groups(pool)["42"]["state"] == "idle", "no other one begins"
    audit = nodes.fleet.node(nodes.living[-1]).log.read_text()
    for word in ("start", "stop"):
        assert f'"what": "POST /api/pools/{{vhost}}/{{name}}/groups/{{key}}/{word}"' in audit
    with nodes.caller(pool=pool) as caller:
        assert told(caller.call("42", timeout_s=60))["worker"] != first


@rule("61")
def test_retry(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, start_failures_max=1)
    nodes.fails.touch()
    with nodes.caller(pool=pool) as caller:
        with pytest.raises(Unserved, match="start_failed"):
            caller.call("42", timeout_s=60)
        nodes.fails.unlink()
        began_s = time.monotonic()
        say(nodes, pool, "retry")
        assert told(caller.call("42", timeout_s=60))["key"] == "42"
        assert time.monotonic() - began_s < 50, "the trial of 60 s later was not waited for"


@rule("61")
def test_a_pinned_key_is_never_idle(nodes: PoolNodes, pool: str) -> None:
    nodes.declare(pool, unbind_delay_s=0, stop_delay_s=0)
    say(nodes, pool, "pin")
    say(nodes, pool, "start", "43")
    eventually("the other one came", lambda: "43" in nodes.groups(pool))
    eventually("the other one is over", lambda: "43" not in nodes.groups(pool))
    assert nodes.groups(pool)["42"]["bound"]
    assert nodes.groups(pool)["42"]["pinned"]
    assert serving(nodes, pool)
    say(nodes, pool, "unpin")
    eventually("it ends as others do", lambda: not nodes.groups(pool))


@rule("53")
def test_a_retired_worker_may_finish(nodes: PoolNodes, pool: str, tmp_path: Path) -> None:
    nodes.declare(pool, grace_s=30)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", bytes(tmp_path), path="hold", timeout_s=60)
        (first,) = eventually("a worker holds it", lambda: os.listdir(tmp_path))
        say(nodes, pool, "stop")
        eventually("another one is there", lambda: serving(nodes, pool))
        assert told(caller.call("42", timeout_s=60))["worker"] != first, "a retired one gets nothing more"
        assert first in nodes.processes()
        (tmp_path / "go").touch()
        assert told(call.result())["worker"] == first
    eventually("it is over", lambda: first not in nodes.processes())


@rule("53")
def test_a_retired_worker_is_killed_after_its_grace_and_its_request_comes_again(
    nodes: PoolNodes, pool: str, tmp_path: Path
) -> None:
    nodes.declare(pool, grace_s=1)
    with nodes.caller(pool=pool) as caller, ThreadPoolExecutor(1) as threads:
        call = threads.submit(caller.call, "42", bytes(tmp_path), path="hold", timeout_s=60)
        (first,) = eventually("a worker holds it", lambda: os.listdir(tmp_path))
        say(nodes, pool, "stop")
        eventually("another one holds it", lambda: set(os.listdir(tmp_path)) - {first})
        eventually("the first is over", lambda: first not in nodes.processes())
        (tmp_path / "go").touch()
        assert told(call.result())["worker"] != first
