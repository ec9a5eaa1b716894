"""An API server that refuses, forgets what was watched, and is used by others: real node and foreman, a stand-in for
Kubernetes. Fault 7 of the worker pools' page.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterbroker.broker.trial.nodes import free_port
from clusterbroker_workers import Unserved
from tests.faults.pools import PoolNodes, eventually, running, told
from tests.faults.stand_in import Faults
from tests.faults.stand_in_pods import Pods

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def service() -> Iterator[Pods]:
    with Pods(free_port()) as made:
        yield made


@pytest.fixture(scope="module")
def started(service: Pods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    directory = tmp_path_factory.mktemp("node")
    config = directory / "kubeconfig"
    config.write_text(service.kubeconfig)
    made = PoolNodes(directory, "a", driver="kubernetes", image="none", kubeconfig=str(config))
    with running(made):
        yield made


@pytest.fixture
def node(started: PoolNodes, service: Pods) -> Iterator[PoolNodes]:
    """With a pool of its own, `core`."""
    yield started
    service.faults = Faults()
    started.api("DELETE", "pools/%2F/core?force=true")
    eventually("its pool is gone with its workers", lambda: not service.running and not service.containers)


@pytest.mark.parametrize("status", [429, pytest.param(500, marks=pytest.mark.matrix)])
def test_a_server_that_refuses_for_a_while_loses_no_request(node: PoolNodes, service: Pods, status: int) -> None:
    node.declare()
    with node.caller() as caller, ThreadPoolExecutor(1) as threads:
        first = told(caller.call("42", timeout_s=60))
        service.faults = Faults(answers={"/pods": status, "/secrets": status})
        call = threads.submit(caller.call, "new", timeout_s=60)
        eventually("it was asked in vain", lambda: service.faults.answered >= 3)
        assert told(caller.call("42", timeout_s=20)) == first
        service.faults = Faults()
        assert told(call.result())["key"] == "new"
        assert told(caller.call("42", timeout_s=20)) == first, "nobody was ended"
    assert len(service.running) == 2


def test_a_watch_that_expired_and_a_pod_that_exists_already(node: PoolNodes, service: Pods) -> None:
    """410, and 409 for a Pod whose creation was not answered."""
    node.declare()
    service.faults = Faults(conflict=True, expired=True)
    with node.caller() as caller:
        first = told(caller.call("42", timeout_s=60))
        (pod,) = service.running
        service.evict(pod)
        assert told(caller.call("42", timeout_s=60))["worker"] != first["worker"]
        assert len(node.workers()) == 1


@pytest.mark.matrix
def test_pods_that_others_evict_or_remove_are_replaced(node: PoolNodes, service: Pods) -> None:
    node.declare()
    with node.caller() as caller:
        workers = [told(caller.call("42", timeout_s=60))["worker"]]
        for end in (service.evict, service.remove_by_force):
            (pod,) = service.running
            end(pod)
            workers.append(told(caller.call("42", timeout_s=60))["worker"])
        assert len(set(workers)) == 3
        eventually("one is left", lambda: [row["id"] for row in node.workers()] == workers[-1:])


@pytest.mark.matrix
def test_a_namespace_that_cannot_be_written_is_what_callers_hear(node: PoolNodes, service: Pods) -> None:
    node.declare(start_failures_max=2)
    with node.caller() as caller:
        first = told(caller.call("42", timeout_s=60))
        service.faults = Faults(answers={"POST /api/v1/namespaces/default/pods": 403})
        with pytest.raises(Unserved) as heard:
            caller.call("43", timeout_s=60)
        assert (heard.value.reason, "403 Forbidden" in heard.value.detail) == ("start_failed", True)
        assert service.faults.answered <= 3
        assert told(caller.call("42", timeout_s=20)) == first
        service.faults = Faults()
        node.api("POST", "pools/%2F/core/groups/43/retry", {}).raise_for_status()
        assert told(caller.call("43", timeout_s=60))["key"] == "43"
