"""A stand-in for the controllers of Deployments, ReplicaSets and garbage: one Pod for each replica that is wanted.

    python -m tests.support.deployer http://127.0.0.1:PORT TOKEN

What it has of them: Pods of a Deployment's template with names of their own, a new one for each that has ended, fewer
by `pod-deletion-cost`, the status (replicas, readyReplicas, observedGeneration), and the end of what a Deployment or a
Pod that is gone has owned. There is no ReplicaSet, no rollout, no back-off, and no HPA: nothing but a test changes
`replicas`.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from tests.support.kubelet import Api

LOOK_S = 0.05
COST = "controller.kubernetes.io/pod-deletion-cost"
OWNED = ("api/v1/secrets", "apis/autoscaling/v2/horizontalpodautoscalers", "apis/keda.sh/v1alpha1/scaledobjects")


class Deployer:
    """Deployments of all namespaces."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made = 0

    def turn(self) -> None:
        owned = {kind: (self._api.ask("GET", f"/{kind}") or {"items": ()})["items"] for kind in OWNED}
        pods = self._api.ask("GET", "/api/v1/pods")["items"]
        deployments = self._api.ask("GET", "/apis/apps/v1/deployments")[
            "items"
        ]  # last: owners are older than what they own
        for one in deployments:
            self._scale(one, [pod for pod in pods if one["metadata"]["uid"] in _owners(pod)])
        there = {one["metadata"]["uid"] for one in (*deployments, *pods)}
        for kind, found in {"api/v1/pods": pods, **owned}.items():
            self._collect(there, kind, found)

    def _scale(self, one: Any, pods: list[Any]) -> None:
        where = f"/api/v1/namespaces/{one['metadata']['namespace']}/pods"
        live = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        for pod in pods:
            if pod not in live:
                self._api.ask("DELETE", f"{where}/{pod['metadata']['name']}")
        kept = [pod for pod in live if "deletionTimestamp" not in pod["metadata"]]
        wanted = one["spec"]["replicas"]
        for _ in range(len(kept), wanted):
            self._made += 1
            template = one["spec"]["template"]
            owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": one["metadata"]["name"], "controller": True}
            name = f"{one['metadata']['name']}-{time.time_ns() % 0xFFFFFF:x}{self._made}"
            metadata = {
                **template["metadata"], "name": name, "ownerReferences": [{**owner, "uid": one["metadata"]["uid"]}],
            }  # fmt: skip
            self._api.ask("POST", where, {"metadata": metadata, "spec": template["spec"]})
        for pod in sorted(kept, key=_cost)[: max(0, len(kept) - wanted)]:
            self._api.ask("DELETE", f"{where}/{pod['metadata']['name']}")
        ready = sum(pod["status"].get("phase") == "Running" for pod in kept)
        status = {
            "observedGeneration": one["metadata"]["generation"],
            "replicas": len(kept), "updatedReplicas": len(kept), "readyReplicas": ready, "availableReplicas": ready,
        }  # fmt: skip
        if {name: one["status"].get(name, 0) for name in status} != status:
            path = (
                f"/apis/apps/v1/namespaces/{one['metadata']['namespace']}/deployments/{one['metadata']['name']}/status"
            )
            self._api.ask("PATCH", path, {"status": status}, "application/merge-patch+json")

    def _collect(self, there: set[str], kind: str, found: Any) -> None:
        """What somebody has owned goes after its owner."""
        root, _, plural = kind.rpartition("/")
        for one in found:
            if _owners(one) - there:
                metadata = one["metadata"]
                self._api.ask("DELETE", f"/{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}")


def _owners(one: Any) -> set[str]:
    return {owner["uid"] for owner in one["metadata"].get("ownerReferences", ())}


def _cost(pod: Any) -> int:
    return int(pod["metadata"].get("annotations", {}).get(COST, 0))


def main() -> None:
    deployer = Deployer(Api(int(sys.argv[1]), sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        deployer.turn()
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
