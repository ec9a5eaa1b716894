"""A pool whose keys are Deployments: a real node and foreman, a real API server. Stand-ins run Pods as processes, and
keep as many as a Deployment says (`tests.support`); the test sets how many, in the place of an HPA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from clusterbroker.broker.foreman.drivers.deployments import COST
from tests.faults.pools import PoolNodes, eventually, told
from tests.support import daemons

pytestmark = [pytest.mark.processes, pytest.mark.long]
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
HPAS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"


class World:
    """A node, and the API server of its Deployments."""

    def __init__(self, directory: Path, config: Path) -> None:
        read = json.loads(config.read_text())
        self._url = read["clusters"][0]["cluster"]["server"]
        self._headers = {
            "Authorization": f"Bearer {read['users'][0]['user']['token']}",
            "content-type": "application/merge-patch+json",
        }
        self.nodes = PoolNodes(directory, "a", driver="kubernetes", image="none", kubeconfig=str(config))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body)
        return httpx.request(
            method, self._url + path, headers=self._headers, content=content, verify=False, timeout=20
        ).raise_for_status().json()  # fmt: skip

    def rows(self, path: str) -> dict[str, dict[str, Any]]:
        return {row["metadata"]["name"]: row for row in self.ask("GET", path)["items"]}

    def pods(self) -> dict[str, dict[str, Any]]:
        return {name: row for name, row in self.rows(PODS).items() if "deletionTimestamp" not in row["metadata"]}

    def scale(self, count: int) -> None:
        """As an HPA does."""
        (name,) = self.rows(DEPLOYMENTS)
        self.ask("PATCH", f"{DEPLOYMENTS}/{name}", {"spec": {"replicas": count}})
        eventually(f"{count} consume", lambda: self.nodes.groups().get("42", {}).get("consumers") == count)

    def most(self) -> list[int]:
        return [row["spec"]["maxReplicas"] for row in self.rows(HPAS).values()]

    def busy(self) -> list[str]:
        """Pods that are to leave last."""
        return [name for name, row in self.pods().items() if row["metadata"]["annotations"].get(COST) == "1"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    try:
        found, config = daemons.kubernetes(tmp_path, deployments=True)
    except daemons.Missing as missing:
        pytest.skip(str(missing))
    (tmp_path / "nodes").mkdir()
    made = World(tmp_path / "nodes", config)
    try:
        made.nodes.start()
        yield made
    finally:
        made.nodes.close()
        for daemon in reversed(found):
            daemon.end()


def test_a_key_is_a_deployment_whose_replicas_are_not_the_brokers(world: World, tmp_path: Path) -> None:
    nodes, held = world.nodes, tmp_path / "held"
    held.mkdir()
    nodes.declare(scaling="hpa", max=4)
    with nodes.caller() as pool, ThreadPoolExecutor(1) as beside:
        first = told(pool.call("42", timeout_s=90))
        (worker,) = nodes.workers()
        assert first["worker"] == worker["id"]
        assert world.most() == [4]
        world.scale(2)
        assert [row["id"] for row in nodes.workers()] == [worker["id"]], "it is one launch"

        call = beside.submit(pool.call, "42", str(held).encode(), path="hold", timeout_s=90)
        (busy,) = eventually("the one that holds it is known", world.busy)
        world.scale(1)
        assert list(world.pods()) == [busy], "the idle one has left"
        (held / "go").touch()
        assert told(call.result(60))["key"] == "42"

        said = nodes.api("POST", "pools/%2F/core/set", {"max": 9})
        assert said.is_success, said.text
        eventually("the HPA has the new bound", lambda: world.most() == [9])
        said = nodes.api("POST", "pools/%2F/core/set", {"scaling": "own"})
        assert "runs workers in another way" in said.text, "its workers are Deployments"

        said = nodes.api("POST", "pools/%2F/core/groups/42/stop", {})
        assert said.is_success, said.text
        eventually("nothing is left of it", lambda: not (world.rows(DEPLOYMENTS) or world.pods() or world.rows(HPAS)))
        assert told(pool.call("42", timeout_s=90))["worker"] != worker["id"], "the next request starts another one"


def test_one_that_is_deleted_by_hand_is_followed_by_another(world: World) -> None:
    nodes = world.nodes
    nodes.declare(scaling="hpa")
    with nodes.caller() as pool:
        first = told(pool.call("42", timeout_s=90))["worker"]
        (name,) = world.rows(DEPLOYMENTS)
        world.ask("DELETE", f"{DEPLOYMENTS}/{name}")
        eventually("another launch", lambda: [row["id"] for row in nodes.workers()] not in ([], [first]))
        assert told(pool.call("42", timeout_s=90))["worker"] != first
