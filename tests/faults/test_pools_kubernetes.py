"""Pools whose place is shared: three real nodes and foremen, workers as Pods of a real API server. A stand-in for the
kubelet runs them as processes (`tests.support.kubelet`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.pools import PoolNodes, eventually, told
from tests.support import daemons

pytestmark = [pytest.mark.processes, pytest.mark.long]
PODS = "/api/v1/namespaces/default/pods"


class Cluster:
    """Nodes, and the API server of their Pods."""

    def __init__(self, directory: Path, config: Path) -> None:
        self.config = json.loads(config.read_text())
        self.nodes = PoolNodes(
            directory, "a", "b", "c", driver="kubernetes", image="none", kubeconfig=str(config), max_workers=1
        )

    def pods(self) -> dict[str, dict[str, Any]]:
        """Worker -> its Pod, ended ones as well."""
        url = self.config["clusters"][0]["cluster"]["server"] + PODS
        headers = {"Authorization": f"Bearer {self.config['users'][0]['user']['token']}"}
        rows = httpx.get(url, headers=headers, verify=False).raise_for_status().json()["items"]
        return {row["metadata"]["labels"]["clusterbroker.io/worker"]: row for row in rows}

    def phase(self, worker: str) -> str:
        """Of its Pod; empty: there is none."""
        pod = self.pods().get(worker)
        return "" if pod is None else str(pod["status"]["phase"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        found, config = daemons.kubernetes(tmp_path)
    except daemons.Missing as missing:
        pytest.skip(str(missing))
    (tmp_path / "nodes").mkdir()
    made = Cluster(tmp_path / "nodes", config)
    try:
        made.nodes.start()
        yield made
    finally:
        made.nodes.close()
        for daemon in reversed(found):
            daemon.end()


def test_a_pod_of_a_node_that_never_comes_back_is_ended_and_forgotten_with_it(cluster: Cluster) -> None:
    nodes = cluster.nodes
    nodes.declare()
    with nodes.roaming_caller() as pool:
        workers = {key: told(pool.call(key, timeout_s=90))["worker"] for key in ("1", "2", "3")}
        places = {row["id"]: row["place"] for row in nodes.workers()}
        assert set(places.values()) == {"a", "b", "c"}
        lost = next(name for name in nodes.names if name != nodes.owner("core-orphan"))
        (worker,) = (one for one, place in places.items() if place == lost)
        nodes.kill(lost)
        assert cluster.phase(worker) == "Running", "a Pod outlives its node"
        ended = ("Succeeded", "Failed")
        eventually("it is ended by another foreman", lambda: cluster.phase(worker) in ended, 120)
        assert all(cluster.phase(one) == "Running" for one in workers.values() if one != worker)
        said = nodes.api("DELETE", f"nodes/{lost}")
        assert said.is_success, said.text
        eventually("nothing of it is left", lambda: worker not in cluster.pods(), 60)
        for key in workers:
            assert told(pool.call(key, timeout_s=90))["key"] == key, "all keys are served"
