"""The document's protocol and the library's are one: each side of the one works with the other side of the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.embedded import Broker
from clusterbroker_workers import Pool
from tests.interop.pools_by_the_document import Caller
from tests.support.processes import popen
from tests.unit.workers.protocol import ROOT, HandMade, until, worker


@pytest.fixture
def made() -> Iterator[HandMade]:
    with Broker() as broker:
        made = HandMade(broker.url, "core")
        made.group("42")
        yield made
        made.close()


def documents_worker(made: HandMade, key: str):  # type: ignore[no-untyped-def]
    environment = {
        **os.environ, "AMQP_URL": made.url, "WORKER_ID": "1", "WORKER_KEY": key, "WORKER_POOL": made.name,
        "WORKER_REQUESTS_QUEUE": f"{made.name}-req-{key}", "WORKER_ACTIVITY_EXCHANGE": f"{made.name}-activity-xchg",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    process = popen([sys.executable, str(ROOT / "tests/interop/pools_by_the_document.py"), "worker"], env=environment)
    until(lambda: made.consumers(f"{made.name}-req-{key}"), "the document's worker consumes")
    return process


@pytest.mark.parametrize("direct", [False, True])
def test_the_documents_caller_and_the_librarys_worker(made: HandMade, direct: bool, tmp_path: Path) -> None:
    caller = Caller(made.url, "core", exchange="core-req-xchg", direct=direct)
    with worker(made, "42", "Sample", tmp_path):
        assert caller.call("42", b"hello") == ("ok", b"hello")
    caller.close()


def test_the_librarys_caller_and_the_documents_worker(made: HandMade) -> None:
    process = documents_worker(made, "42")
    try:
        with Pool(made.url, "core") as pool:
            assert pool.call("42", b"hello").body == b"core 42: hello"
        caller = Caller(made.url, "core", exchange="core-req-xchg")
        assert caller.call("42", b"hello") == ("ok", b"core 42: hello")
        caller.close()
        assert made.events() == ["started", "request-received", "request-received"]
    finally:
        process.kill()
        process.wait(30)
