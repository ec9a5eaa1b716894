"""The port's contract, on its twin in memory."""

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring_log import MemoryWiringLog, WiringLog


def declare(name: str) -> c.DeclareQueue:
    return c.DeclareQueue(vhost="/", name=name, durable=True)


def test_applies_at_once() -> None:
    log: WiringLog = MemoryWiringLog()
    heard: list[Applied] = []
    log.listen(heard.append)
    log.propose(declare("q"), heard.append)
    assert [applied.index for applied in heard] == [1, 1]
    assert log.map.queue("/", "q") is heard[0].result


def test_or_by_steps() -> None:
    log = MemoryWiringLog(stepwise=True)
    names: list[str] = []
    for name in ("a", "b", "c"):
        log.propose(declare(name), lambda applied: names.append(applied.result.name))
    assert (names, log.pending) == ([], 3)
    assert log.step() == 1
    assert (names, log.pending) == (["a"], 2)
    assert log.step(10) == 2
    assert names == ["a", "b", "c"]


def test_what_is_proposed_while_told_is_told_after_it() -> None:
    log = MemoryWiringLog()
    order: list[str] = []

    def react(applied: Applied) -> None:
        order.append(f"first {applied.index}")
        if applied.index == 1:
            log.propose(declare("b"), lambda done: order.append(f"done {done.index}"))

    log.listen(react)
    log.listen(lambda applied: order.append(f"second {applied.index}"))
    log.propose(declare("a"), lambda done: order.append(f"done {done.index}"))
    assert order == ["first 1", "second 1", "done 1", "first 2", "second 2", "done 2"]


def test_one_who_fails_does_not_silence_the_others() -> None:
    log = MemoryWiringLog()
    heard: list[int] = []

    def fail(applied: Applied) -> None:
        raise RuntimeError("listener")

    log.listen(fail)
    log.listen(lambda applied: heard.append(applied.index))
    with pytest.raises(RuntimeError, match="listener"):
        log.propose(declare("a"), lambda applied: heard.append(-applied.index))
    assert heard == [1, -1]


def test_what_cannot_be_stored_is_answered_and_not_logged() -> None:
    log = MemoryWiringLog(keep=True)
    heard: list[Applied] = []
    everybody: list[Applied] = []
    log.listen(everybody.append)
    log.propose(c.DeclareQueue(vhost="/", name="q", arguments={"a": 2**70}), heard.append)
    assert (heard[0].index, everybody, log.stored) == (0, [], [])
    assert isinstance(heard[0].error, PreconditionFailed)


def test_values_go_through_their_stored_form() -> None:
    class Short(int):
        pass

    log = MemoryWiringLog()
    log.propose(c.DeclareQueue(vhost="/", name="q", arguments={"a": Short(1)}))
    queue = log.map.queue("/", "q")
    assert queue is not None
    assert type(queue.arguments["a"]) is int
