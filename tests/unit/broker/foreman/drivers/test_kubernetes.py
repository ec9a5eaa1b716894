"""Pods as releases know each other's: names, labels and annotations that are never changed."""

from __future__ import annotations

from foreman_support import PLACE, spec

from clusterbroker.broker.foreman.drivers import kubernetes
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
