"""Pods as releases know each other's: names, labels and annotations that are never changed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from foreman_support import PLACE, spec
from kubernetes_asyncio import client

from clusterbroker.broker.foreman.drivers import deployments, docker, kubernetes
from clusterbroker.broker.foreman.reconcile import OUT_OF_MEMORY
from clusterbroker.broker.foreman.spec import Scale
from clusterbroker.broker.foreman.templates import Template

URIS = ("amqp://w:p@127.0.0.1:5672/", "amqp://w:p@n1.example:5672/")


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


async def test_a_pod_is_not_sent_to_its_own_loopback_addresses() -> None:
    made: list[dict[str, Any]] = []

    class Api:
        async def create_namespaced_secret(self, _namespace: str, body: dict[str, Any]) -> None:
            made.append(body)

    await kubernetes.Pods(PLACE, "", "default")._secret(Api(), spec("w1-0", uris=URIS), "pod", "uid")
    assert {base64.b64decode(value) for value in made[0]["data"].values()} == {URIS[1].encode()}


@pytest.mark.parametrize(("network", "first"), [("host", URIS[0]), ("bridge", URIS[1]), ("of-its-own", URIS[1])])
def test_nor_is_a_container_unless_it_is_in_the_network_of_its_host(network: str, first: str) -> None:
    made = docker._config(PLACE, spec("w1-0", uris=URIS), Template(driver="docker", image="core", network=network))
    assert f"WORKER_AMQP_URI={first}" in made["Env"]


@pytest.mark.parametrize(
    ("user", "rights"),
    [
        ("", {"runAsNonRoot": True}),
        ("1000", {"runAsUser": 1000, "runAsNonRoot": True}),
        ("root", {"runAsUser": 0, "runAsNonRoot": False}),
        ("0", {"runAsUser": 0, "runAsNonRoot": False}),
    ],
)
@pytest.mark.parametrize("scale", [None, Scale(by="hpa")])
def test_a_container_is_root_only_if_its_template_says_so(
    user: str, rights: dict[str, Any], scale: Scale | None
) -> None:
    template = Template(driver="kubernetes", image="core", user=user)
    if scale is None:
        pod = kubernetes._manifest(PLACE, spec("w1-0"), template, "pod")["spec"]
    else:
        pod = deployments.manifest(PLACE, spec("w1-0"), scale, template, "pod")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "privileged": False, **rights}
