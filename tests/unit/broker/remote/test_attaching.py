"""Attach frames are bounded, and together say as much as a single one."""

from __future__ import annotations

import msgspec
import pytest

from clusterbroker.broker.remote import attaching
from clusterbroker.broker.remote.attaching import attaches
from clusterbroker.broker.remote.messages import Attach, AttachedQueue


def queue(number: int, ranges: int) -> AttachedQueue:
    return AttachedQueue(number, 1, 1, (), tuple((10 * i, 10 * i + 1) for i in range(ranges)), (), 1)


@pytest.mark.parametrize("complete", [False, True])
def test_many_queues_are_cut(complete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "ATTACH_BYTES", 1000)
    queues = [queue(number, 30) for number in range(1, 101)]
    frames = list(attaches(3, 50, queues, complete))
    assert len(frames) > 10
    assert [one for frame in frames for one in frame.queues] == queues
    assert all(len(msgspec.msgpack.encode(frame.queues)) < 1010 for frame in frames)
    assert {(frame.incarnation, frame.index) for frame in frames} == {(3, 50)}
    assert [frame.partial for frame in frames] == [True] * (len(frames) - 1) + [not complete]
    assert list(frames[-1].before) == (
        [one.queue_id for frame in frames[:-1] for one in frame.queues] if complete else []
    )


def test_a_complete_attach_without_anything_is_said() -> None:
    assert list(attaches(3, 50, [], complete=True)) == [Attach(3, 50, ())]
    assert list(attaches(3, 50, [], complete=False)) == []
