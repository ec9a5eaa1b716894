"""What a member does about its own silence and that of others, with links and wiring in the test's hands."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.server.member import liveness as liveness_module
from clusterbroker.broker.server.member.liveness import Liveness, Probes
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.link.hello import CONTROL
from clusterbroker.cluster.liveness.beats import BeatCodec
from clusterbroker.cluster.liveness.contact import SETTLED_S
from clusterbroker.cluster.liveness.frames import GivenUp
from clusterbroker.cluster.liveness.steady import steady
from clusterbroker.cluster.wiring import commands as c


class Place:
    """Member `a` of a, b, c, which leads or not."""

    def __init__(self) -> None:
        self.linked = {"b", "c"}
        self.proposed: list[Any] = []
        self.stood_back: list[float] = []
        self.said: list[tuple[str, ...]] = []
        self.sent: list[tuple[str, str]] = []
        self.member = SimpleNamespace(name=NodeId("c"), alive=True, incarnation=1)
        self.raft = SimpleNamespace(
            map=SimpleNamespace(member=lambda _: self.member),
            voters=tuple(map(NodeId, "abc")), voters_settled=True, voters_founded=True, term=7, is_leader=True,
            leader=NodeId("a"), propose_in_term=self.proposed.append, peer_gone=lambda _: None,
            abdicate=self.stood_back.append,
        )  # fmt: skip
        self.mesh = SimpleNamespace(
            session=lambda peer, _: 1 if peer in self.linked else None,
            send=lambda peer, channel, _: self.sent.append((peer, channel)),
            probe=self._probe,
        )
        self.clients: dict[int, Any] = {}
        self.shell = SimpleNamespace(
            loop=asyncio.get_running_loop(), clients=self.clients, clock=SimpleNamespace(now_ms=lambda: 0)
        )
        cluster: Any = SimpleNamespace(
            name="a",
            raft=self.raft,
            mesh=self.mesh,
            has_data_link=lambda peer: peer in self.linked,
            log_line=lambda *words: self.said.append(words),
        )
        shell: Any = self.shell
        self.liveness = Liveness(cluster, shell, BeatCodec(bytes(32), "c", "a"), 10.0)
        assert self.liveness.voters()

    async def _probe(self, _: str) -> str:
        return "silent"


@pytest.fixture
async def place() -> Any:
    made = Place()
    yield made
    await made.liveness.close()


async def test_a_member_is_failed_when_a_majority_has_given_it_up(place: Place) -> None:
    place.linked.discard("c")
    place.liveness.came("b", GivenUp("c", 1, 6))
    place.liveness.came("b", GivenUp("c", 1, 7))
    assert not place.proposed, "one of three, and what was said to another term does not count"
    place.liveness.report(place.member, None)  # type: ignore[arg-type]
    assert place.proposed == [c.FailNode(node=NodeId("c"), incarnation=1)]  # type: ignore[arg-type]
    place.liveness.judge("c", 1)
    assert len(place.proposed) == 1, "once in a term"
    place.liveness.heart.stepped_down()


@pytest.mark.parametrize("why", ["linked", "voters", "unlinked", "follower", "taken back", "dead"])
async def test_a_member_is_not_failed_early_if(place: Place, why: str) -> None:
    if why != "linked":
        place.linked.discard("c")
    if why == "voters":  # a fifth of 4 s ago
        place.raft.voters_settled = False
        place.liveness.voters()
        place.raft.voters_settled = True
        assert place.liveness._voters_at_s > place.shell.loop.time() - SETTLED_S
    place.raft.is_leader = why != "follower"
    place.member.alive = why != "dead"
    place.liveness.came("b", GivenUp("c", 1, 7))
    if why == "unlinked":
        place.liveness.unlinked("b", CONTROL)
    if why == "taken back":
        place.liveness.came("b", GivenUp("c", 1, 7, taken_back=True))
    place.liveness.came("a", GivenUp("c", 1, 7))
    assert not place.proposed


async def test_the_leader_is_told_once_over_each_link(place: Place) -> None:
    place.raft.is_leader, place.raft.leader = False, NodeId("b")
    told = place.liveness.report(place.member, None)  # type: ignore[arg-type]
    assert place.liveness.report(place.member, told) == told  # type: ignore[arg-type]
    assert place.sent == [("b", CONTROL)]
    place.raft.term = 8
    place.liveness.report(place.member, told)  # type: ignore[arg-type]
    assert len(place.sent) == 2


async def test_a_deaf_leader_stands_back_again_and_again_and_says_so_once(place: Place) -> None:
    for deaf in (True, True, True, False):
        place.liveness.on_deaf(deaf)
    assert len(place.stood_back) == 3
    assert [(event, *more) for event, _, *more in place.said] == [("deaf", "warning"), ("deaf",)]


async def test_without_links_and_contact_slow_clients_are_cut_off(place: Place) -> None:
    """C9, beside contact: what a transport holds would reach its client after a new owner has begun."""
    cut: list[str] = []
    for number, unsent in enumerate((0, 9)):
        place.clients[number] = SimpleNamespace(untaken_bytes=unsent, cut_off=lambda n=number: cut.append(n))
    place.liveness.heart.keeper.lease_until = steady() + 100
    contact = place.liveness.heart.pulse.contact
    contact.until = steady() + 1000
    place.liveness.unlinked("b", CONTROL)
    assert place.liveness._guard is None, "two of three are linked"
    place.linked.clear()
    place.liveness.unlinked("c", CONTROL)
    assert not cut, "there is contact"
    assert place.liveness._guard is not None
    place.liveness._guard.cancel()
    place.liveness._guard_again()
    assert not cut, "there is still"
    contact.until = steady() + 0.05
    assert place.liveness._guard is not None
    place.liveness._guard.cancel()
    place.liveness._guard_again()
    await until(lambda: cut)
    assert cut == [1]


@pytest.mark.parametrize("before", [[], ["silent"], ["accepted", "silent"], ["silent"] * 4])
async def test_a_port_that_resets_before_it_refuses_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    """A process that died: the first look met its port while it closed, no other look followed, and its queues waited
    for its lease, 2 s."""
    monkeypatch.setattr(liveness_module, "AGAIN_S", 0)
    answers = [*before, "refused"]
    members: list[Any] = [SimpleNamespace(name="b", incarnation=1, alive=True)]
    gone: list[str] = []
    told: list[Any] = []

    async def probe(_: str) -> str:
        return answers.pop(0)

    def report(member: Any, _told: object, taken_back: bool = False) -> object:
        told.append((member.name, taken_back))
        members.clear()  # the cluster has failed it
        return "leader"

    raft = SimpleNamespace(
        map=SimpleNamespace(member=lambda _: members[0] if members else None), peer_gone=lambda peer: gone.append(peer)
    )
    cluster: Any = SimpleNamespace(raft=raft, mesh=SimpleNamespace(probe=probe), has_data_link=lambda _: False)
    heart = SimpleNamespace(give_up=lambda _name, _incarnation: True, spoke_since=lambda _: False)
    liveness: Any = SimpleNamespace(heart=heart, report=report)
    looked = Probes(cluster, liveness)
    looked.begin("b")
    await next(iter(looked._tasks.values()))
    assert (answers, gone, told) == ([], ["b"], [("b", False)])
    assert not looked._tasks
