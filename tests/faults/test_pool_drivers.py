"""Drivers whose services are gone, slow, mistaken or full: real nodes and foremen, stand-ins for the services.

Faults 6, 7 and 13 of the worker pools' page. A worker is a process that the stand-in runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.foreman.foreman import AGAIN_S
from clusterbroker_workers import Answer, Pool, Unserved
from tests import budget
from tests.faults.pools import PoolNodes, eventually, running, told
from tests.faults.stand_in import Docker, Faults

pytestmark = pytest.mark.processes
GONE_S = 60.0 if budget.ALL else 3.0
SLOW_S = 30.0 if budget.ALL else 11.0
"""More than a call of a driver may take (`port.CALL_S`)."""
START_S = 10.0
"""Of a worker, on a machine that does much else."""


@contextlib.contextmanager
def docker_nodes(directory: Path, service: Docker, *names: str) -> Iterator[PoolNodes]:
    directory.mkdir(exist_ok=True)
    made = PoolNodes(directory, *names, driver="docker", image="none", socket=service.url)
    with running(made):
        yield made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with Docker(str(tmp_path_factory.mktemp("docker") / "socket")) as made:
        yield made


@pytest.fixture(scope="module")
def started(service: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolNodes]:
    with docker_nodes(tmp_path_factory.mktemp("node"), service, "a") as made:
        yield made


@pytest.fixture
def node(started: PoolNodes, service: Docker) -> Iterator[PoolNodes]:
    """With a pool of its own, `core`."""
    yield started
    service.faults = Faults()
    started.api("DELETE", "pools/%2F/core?force=true")
    eventually("its pool is gone with its workers", lambda: not service.running and not service.containers)


def asked(threads: ThreadPoolExecutor, caller: Pool, *keys: str) -> list[Future[Answer]]:
    return [threads.submit(caller.call, key, timeout_s=60) for key in keys]


def served(calls: list[Future[Answer]]) -> list[dict[str, Any]]:
    return [told(call.result()) for call in calls]


def test_a_service_that_is_gone_costs_time_and_no_request(node: PoolNodes, service: Docker) -> None:
    """Workers that run serve on; what is new waits."""
    node.declare()
    log = node.fleet.node("a").log
    with node.caller() as caller, ThreadPoolExecutor(4) as threads:
        first = told(caller.call("42", timeout_s=60))
        service.gone()
        calls = asked(threads, caller, "new", "newer")
        eventually("the foreman has noticed", lambda: "foreman.suspended" in log.read_text())
        end_s = time.monotonic() + GONE_S
        while time.monotonic() < end_s:
            assert told(caller.call("42", timeout_s=20)) == first
        service.back()
        back_s = time.monotonic()
        assert [answer["key"] for answer in served(calls)] == ["new", "newer"]
        assert time.monotonic() - back_s < AGAIN_S[-1] + START_S
        assert told(caller.call("42", timeout_s=20)) == first, "nobody was ended"
    assert len(service.running) == 3


@pytest.mark.matrix
def test_a_worker_that_comes_late_is_one_too_many_and_ends(node: PoolNodes, service: Docker) -> None:
    """The answer of a start takes longer than a foreman waits: what it made is not lost, and is never a second one."""
    node.declare()
    with node.caller() as caller, ThreadPoolExecutor(4) as threads:
        service.faults = Faults(slow="/start", slow_s=SLOW_S)
        calls = asked(threads, caller, "42")
        eventually("the start is under way", lambda: service.faults.answered)
        service.faults.slow = ""
        (answer,) = served(calls)
        eventually("one is left", lambda: len(service.running) == 1 == len(service.containers))
        assert told(caller.call("42", timeout_s=20)) == answer
        assert node.processes().keys() == {answer["worker"]} == {row["id"] for row in node.workers()}


@pytest.mark.matrix
def test_a_list_that_is_empty_by_mistake_ends_in_one_worker(node: PoolNodes, service: Docker) -> None:
    """The launch is closed, so its worker is fenced: it answers nothing more, and ends when the list has it again."""
    node.declare()
    with node.caller() as caller:
        first = told(caller.call("42", timeout_s=60))
        service.faults.empty = True
        eventually("it is replaced in the books", lambda: first["worker"] not in {row["id"] for row in node.workers()})
        service.faults.empty = False
        second = told(caller.call("42", timeout_s=60))
        assert second["worker"] != first["worker"]
        eventually("one process is left", lambda: list(node.processes()) == [second["worker"]])
        assert told(caller.call("42", timeout_s=20)) == second


@pytest.mark.matrix
def test_a_name_that_exists_already_is_started_and_not_made_again(node: PoolNodes, service: Docker) -> None:
    """The answer of `create` was lost, and its repetition is refused."""
    node.declare()
    service.faults.conflict = True
    with node.caller() as caller:
        answer = told(caller.call("42", timeout_s=60))
        assert service.faults.answered == 1
        assert [row["id"] for row in node.workers()] == [answer["worker"]]


@pytest.mark.matrix
def test_a_full_disk_is_what_callers_hear(node: PoolNodes, service: Docker) -> None:
    node.declare(start_failures_max=2)
    with node.caller() as caller:
        first = told(caller.call("42", timeout_s=60))
        service.faults = Faults(answers={"POST /v1.41/containers/create": 500}, text="no space left on device")
        with pytest.raises(Unserved) as heard:
            caller.call("43", timeout_s=60)
        assert (heard.value.reason, "no space left on device" in heard.value.detail) == ("start_failed", True)
        assert service.faults.answered <= 3
        assert told(caller.call("42", timeout_s=20)) == first
        service.faults = Faults()
        node.api("POST", "pools/%2F/core/groups/43/retry", {}).raise_for_status()
        assert told(caller.call("43", timeout_s=60))["key"] == "43"


@pytest.mark.matrix
def test_two_clusters_at_one_service_do_not_see_each_other(node: PoolNodes, service: Docker, tmp_path: Path) -> None:
    """Neither when a foreman begins anew, nor when a pool of the same name ends at one of them."""
    node.declare()
    with docker_nodes(tmp_path / "other", service, "a") as other:
        other.declare()
        with node.caller() as here, other.caller() as there:
            first, second = (told(caller.call("42", timeout_s=60)) for caller in (here, there))
            (foreman,) = node.foremen("a")
            os.kill(foreman.pid, signal.SIGKILL)
            eventually("another foreman", lambda: [one for one in node.foremen("a") if one.pid != foreman.pid])
            assert told(here.call("43", timeout_s=60))["key"] == "43"  # it has read the list
            assert len(service.running) == 3
            assert (told(here.call("42", timeout_s=20)), told(there.call("42", timeout_s=20))) == (first, second)
            other.api("DELETE", "pools/%2F/core?force=true").raise_for_status()
            eventually("the other's worker is gone", lambda: len(service.containers) == 2)
            assert told(here.call("42", timeout_s=20)) == first
