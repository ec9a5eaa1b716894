"""A place that is cut off with its workers, clocks that are set, a template that is taken away.

Faults 3, 12 and 15 of the worker pools' page, each on real nodes of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest

from clusterbroker.broker.pools.fleet import LOST_PLACE_S
from clusterbroker.broker.trial.clocks import Clocks, build
from clusterbroker.broker.trial.relay import Wires
from clusterbroker_workers import Answer, Pool, Unserved
from tests import budget
from tests.faults.pools import PoolNodes, eventually, running, told

pytestmark = pytest.mark.processes
NAMES = "a", "b", "c"
PER_PLACE = 20 if budget.ALL else 3
KEYS = [str(number) for number in range(PER_PLACE + 2)]
HOUR_S = 3600.0
AGAIN_S = 30.0 if budget.ALL else 15.0
"""In which workers of a lost place are there again elsewhere, PER_PLACE of them."""


class CutNodes(PoolNodes):
    """Three nodes whose wires are in the test's hands."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, *NAMES, max_workers=PER_PLACE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._wires = Wires({name: self.fleet.node(name).cluster_port for name in NAMES})
        asyncio.run_coroutine_threadsafe(self._wires.start(), self._loop).result(20)
        self.variables = {name: {"CLUSTERBROKER_CLUSTER_DIAL": self._wires.dial_of(name)} for name in NAMES}

    def cut_off(self, name: str) -> None:
        others = [other for other in NAMES if other != name]
        pairs = [pair for other in others for pair in ((name, other), (other, name))]
        self._loop.call_soon_threadsafe(self._wires.cut, pairs)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._wires.heal)

    def close(self) -> None:
        super().close()
        asyncio.run_coroutine_threadsafe(self._wires.stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[CutNodes]:
    made = CutNodes(tmp_path)
    with running(made):
        yield made


@pytest.mark.matrix  # LOST_PLACE_S is half a minute
def test_workers_of_a_place_that_is_cut_off_end_before_others_take_over(wired: CutNodes) -> None:
    """20 of them in the tier `all`. They serve on at the other nodes' listeners, until their foreman ends them: none of
    them lives when the first of the others answers."""
    wired.declare()
    with wired.caller("a") as caller, ThreadPoolExecutor(len(KEYS)) as threads:
        first = {
            key: told(one) for key, one in zip(KEYS, threads.map(lambda key: _call(caller, key), KEYS), strict=True)
        }
    places = {row["key"]: row["place"] for row in wired.workers()}
    lost = max(set(places.values()), key=list(places.values()).count)
    theirs = {first[key]["worker"] for key in KEYS if places[key] == lost}
    assert len(theirs) == PER_PLACE
    near = next(name for name in NAMES if name != lost)
    wired.cut_off(lost)
    cut_s = time.monotonic()
    alone = next(key for key in KEYS if places[key] == lost)
    with wired.caller(near) as caller, ThreadPoolExecutor(len(KEYS)) as threads:
        eventually("its worker is replaced", lambda: told(_call(caller, alone))["worker"] not in theirs)
        assert not theirs & wired.processes().keys(), "they had ended"
        answers = [told(one) for one in threads.map(lambda key: _call(caller, key), KEYS)]
        assert time.monotonic() - cut_s < LOST_PLACE_S + AGAIN_S
    assert [answer["key"] for answer in answers] == KEYS
    kept = {answer["worker"] for answer in answers if places[answer["key"]] != lost}
    assert kept == {first[key]["worker"] for key in KEYS if places[key] != lost}, "the others served on"
    wired.heal()
    log = wired.fleet.node(lost).log
    eventually("it is a member again", lambda: log.read_text().count('"node.ready"') > 1)

    def settled() -> bool:
        rows = [row["id"] for row in wired.workers() if not row["revoked"]]
        return len(rows) == len(KEYS) and wired.processes().keys() == set(rows)

    eventually("one worker each, and no other", settled)


def _call(caller: Pool, key: str) -> Answer:
    return caller.call(key, timeout_s=90, idempotent=True)


# -- fault 12: the template is taken away ------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[PoolNodes]:
    """Not started. Its workers outlive it."""
    made = PoolNodes(tmp_path, "a", on_node_exit="keep")
    yield made
    made.close()


@pytest.mark.matrix
def test_workers_outlive_their_template_and_new_keys_wait_for_it(node: PoolNodes) -> None:
    template = node.config.read_text()
    node.start()
    node.declare(request_ttl_ms=2000)
    with node.caller() as caller:
        first = _first_of(caller)
    _begin_again(node, template.replace("[pools.core]", "[pools.other]"))
    with node.caller() as caller:
        assert told(caller.call("42", timeout_s=60)) == first
        with pytest.raises(Unserved) as heard:
            caller.call("new", timeout_s=60)
        assert heard.value.reason == "expired"
        assert told(caller.call("42", timeout_s=60)) == first
    _begin_again(node, template)
    with node.caller() as caller:
        eventually("the template is told", lambda: _serves(caller, "new"))
        assert _first_of(caller)["key"] == "42"
    eventually("one worker each", lambda: len(node.processes()) == 2)
    assert first["worker"] not in node.processes(), "when that node ended, no template said that it is kept"


def _first_of(caller: Pool) -> dict[str, Any]:
    """Of a pool whose requests wait for 2 s, which a start may exceed."""
    eventually("it is served", lambda: _serves(caller, "42"))
    return told(caller.call("42", timeout_s=60))


def _serves(caller: Pool, key: str) -> bool:
    try:
        return bool(told(caller.call(key, timeout_s=60))["key"] == key)
    except Unserved:
        return False


def _begin_again(node: PoolNodes, config: str) -> None:
    process = node.fleet.node("a").process
    assert process is not None
    process.terminate()
    assert process.wait(30) == 0
    node.config.write_text(config)
    node.start()


# -- fault 15: clocks that are set -------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_clocks_that_are_set_by_an_hour_end_nothing(node: PoolNodes, tmp_path: Path) -> None:
    """A worker that idles and a request that waits: neither's time has come. One that does expire is answered."""
    library = build(tmp_path)
    if isinstance(library, str):
        pytest.skip(library)
    clocks = Clocks(tmp_path, library, "a")
    node.variables = {"a": clocks.environment}
    node.start()
    node.declare(unbind_delay_s=600, stop_delay_s=600)
    node.declare("waits", "noop", request_ttl_ms=600_000)
    log = node.fleet.node("a").log
    with node.caller() as caller, pika.BlockingConnection(pika.URLParameters(node.url())) as connection:
        channel = connection.channel()
        replies = str(channel.queue_declare("", exclusive=True).method.queue)
        first = told(caller.call("42", timeout_s=60))
        channel.basic_publish("waits-req-xchg", "42", b"waits", pika.BasicProperties(delivery_mode=2))
        eventually("it waits", lambda: node.depth("waits-req-42") == 1)
        for count, ahead_s in enumerate((HOUR_S, 0.0, -HOUR_S), 1):
            clocks.set(ahead_s)
            eventually("the jump is told", lambda count=count: log.read_text().count('"clock.jumped"') == count)  # type: ignore[misc]
            assert told(caller.call("42", timeout_s=60)) == first
            assert told(caller.call(f"new {count}", timeout_s=60))["key"] == f"new {count}"
            about = pika.BasicProperties(reply_to=replies, expiration="200")
            channel.basic_publish("waits-req-xchg", f"brief {count}", b"", about)
            _, properties, _ = next(channel.consume(replies, auto_ack=True, inactivity_timeout=30))
            assert properties is not None, "what expires is answered"
            assert properties.headers["x-status"] in (b"expired", "expired")
            channel.cancel()
            assert node.depth("waits-req-42") == 1
            assert node.groups()["42"]["state"] == "ready"
        assert node.processes().keys() == {row["id"] for row in node.workers()}
