"""What a probe makes of the answers of a port."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.server.member import probes
from clusterbroker.broker.server.member.probes import Probes


@pytest.mark.parametrize("before", [[], ["silent"], ["accepted", "silent"], ["silent"] * 4])
async def test_a_port_that_resets_before_it_refuses_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    """A process that died: the first look met its port while it closed, no other look followed, and its queues waited
    for its lease, 2 s."""
    monkeypatch.setattr(probes, "AGAIN_S", 0)
    answers = [*before, "refused"]
    members: list[Any] = [SimpleNamespace(name="b", incarnation=1, alive=True)]
    gone: list[str] = []
    told: list[Any] = []

    async def probe(_: str) -> str:
        return answers.pop(0)

    def tell_leader(member: Any, _told: object, taken_back: bool = False) -> object:
        told.append((member.name, taken_back))
        members.clear()  # the cluster has failed it
        return "leader"

    raft = SimpleNamespace(
        map=SimpleNamespace(member=lambda _: members[0] if members else None), peer_gone=lambda peer: gone.append(peer)
    )
    cluster: Any = SimpleNamespace(raft=raft, mesh=SimpleNamespace(probe=probe), has_data_link=lambda _: False)
    heart = SimpleNamespace(give_up=lambda _name, _incarnation: True, spoke_since=lambda _: False)
    liveness: Any = SimpleNamespace(heart=heart, tell_leader=tell_leader)
    looked = Probes(cluster, liveness)
    looked.begin("b")
    await next(iter(looked._tasks.values()))
    assert (answers, gone, told) == ([], ["b"], [("b", False)])
    assert not looked._tasks
