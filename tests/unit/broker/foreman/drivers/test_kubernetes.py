"""Pods as releases know each other's: names, labels and annotations that are never changed."""

from __future__ import annotations

import pytest
from foreman_support import PLACE, spec
from kubernetes_asyncio import client

from clusterbroker.broker.foreman.drivers import kubernetes
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY
from clusterbroker.broker.foreman.templates import Template


def test_a_pod_is_named_and_labelled_as_by_the_first_release() -> None:
    """Another name would be a second Pod of a launch whose start was not answered before an upgrade; without these
    labels a foreman of another release would not see it."""
    pods = kubernetes.Pods(PLACE, "", "default")
    made = kubernetes._manifest(PLACE, spec("w1-0"), Template(driver="kubernetes", image="core"), pods._pod("w1-0"))
    facts = made["metadata"]
    assert facts["name"] == "cb-2e85692dc83b-w1-0"
    assert facts["labels"]["clusterbroker.io/place"] == "cb-2e85692dc83b"
    assert facts["labels"]["clusterbroker.io/worker"] == "w1-0"
    assert facts["annotations"] == {
        "clusterbroker.io/cluster": "c1u5ter",
        "clusterbroker.io/node": "node1",
        "clusterbroker.io/pool": "core",
    }
    assert kubernetes.SELECTOR in facts["labels"]


@pytest.mark.parametrize(("reason", "why"), [("OOMKilled", OUT_OF_MEMORY), ("Error", "")])
def test_a_pod_that_was_ended_for_its_memory_says_so(reason: str, why: str) -> None:
    made = kubernetes._manifest(PLACE, spec("w1-0"), Template(driver="kubernetes", image="core"), "pod")
    end = client.V1ContainerStateTerminated(exit_code=137, reason=reason)
    container = client.V1ContainerStatus(
        name="worker", image="core", image_id="", ready=False, restart_count=0,
        state=client.V1ContainerState(terminated=end),
    )  # fmt: skip
    metadata = client.V1ObjectMeta(labels=made["metadata"]["labels"], annotations=made["metadata"]["annotations"])
    pod = client.V1Pod(metadata=metadata, status=client.V1PodStatus(phase="Failed", container_statuses=[container]))
    seen = kubernetes._row(pod)
    assert (seen.worker_id, seen.cluster, seen.place, seen.exit, seen.why) == ("w1-0", "c1u5ter", "node1", 137, why)
