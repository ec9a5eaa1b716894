"""Who may become a member: what a member answers, and what the newcomer refuses to try."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterbroker.broker.server.member.joining import Admission, Unjoined, join
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.link.frames import encode
from clusterbroker.cluster.link.joining import ANSWERED, ASKED, JoinAnswered, JoinAsked
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from tests.unit.cluster.cluster_world import ClusterWorld


def head_of(message: msgspec.Struct) -> memoryview:
    return memoryview(msgspec.msgpack.encode(message))


class Member:
    """The admission of one member of a world of three."""

    def __init__(self, ready: bool = True) -> None:
        self.world = ClusterWorld("abc")
        self.said: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.ready = ready
        self.admission = Admission(
            lambda: self.world.map,
            self.order,
            lambda: self.ready,
            lambda peer, message: self.said.put_nowait((peer, message)),
        )

    async def order(self, command: c.AnyCommand) -> Applied:
        return self.world.map.apply(LogIndex(self.world.map.applied + 1), command)

    async def answer(self, name: str, address: str, witness: bool = False, peer: str | None = None) -> JoinAnswered:
        self.admission.asked(peer or name, head_of(JoinAsked(name, address, witness)))
        to, answer = await self.said.get()
        assert to == (peer or name)
        assert isinstance(answer, JoinAnswered)
        return answer


async def test_a_newcomer_is_added_and_may_ask_again() -> None:
    member = Member()
    for _ in range(2):  # the first answer may have been lost
        answer = await member.answer("d", "d:1", witness=True)
        assert answer.refused == ""
        assert dict(answer.members) == {"a": "a:1", "b": "b:1", "c": "c:1", "d": "d:1"}
    added = member.world.member("d")
    assert (added.alive, added.witness) == (False, True)


async def test_of_two_machines_with_one_name_the_second_is_refused() -> None:
    """The map had neither when both asked, at two members."""

    class Late(Member):
        async def order(self, command: c.AnyCommand) -> Applied:
            if self.world.map.member(NodeId("d")) is None:
                await super().order(c.AddMember(name=NodeId("d"), address=other))
            return await super().order(command)

    other = "d:2"
    assert (await Late().answer("d", "d:1")).refused.startswith("member 'd' is known at d:2: give that address")
    other = "d:1"  # the same machine, which asks again through another member
    assert (await Late().answer("d", "d:1")).refused == ""


@pytest.mark.parametrize(
    ("name", "address", "why"),
    [
        ("d", "nowhere", "'nowhere' is not HOST:PORT"),
        ("d", "b:1", "member 'b' is at b:1: give each member an address of its own"),
        ("b", "b:1", "member 'b' is there already, alive at b:1: choose another name"),
    ],
)
async def test_why_not(name: str, address: str, why: str) -> None:
    member = Member()
    before = member.world.map.digest()
    assert await member.answer(name, address) == JoinAnswered(why)
    assert member.world.map.digest() == before


async def test_a_name_is_that_of_the_certificate() -> None:
    assert (await Member().answer("d", "d:1", peer="e")).refused.startswith("e cannot join as d")


async def test_a_minority_takes_nobody() -> None:
    assert (await Member(ready=False).answer("d", "d:1")).refused.startswith("not now: ")


async def test_a_dead_member_may_come_back_with_an_empty_disk_if_nothing_is_lost_by_it() -> None:
    member = Member()
    member.world.declare("shared")
    member.world.fail("b")
    assert (await member.answer("b", "b:2")).refused.startswith("member 'b' is known at b:1: give that address")
    assert (await member.answer("b", "b:1", witness=True)).refused.startswith("member 'b' is no witness: forget it")
    assert (await member.answer("b", "b:1")).refused == ""
    member.world.register("b")
    single = member.world.declare("single", x={"replicas": 1})
    holder = str(single.owner)
    member.world.fail(holder)
    refused = (await member.answer(holder, f"{holder}:1")).refused
    assert "may have the only copy of 1 queues, the first is 'single'" in refused


async def test_what_is_no_question_is_none() -> None:
    member = Member()
    asked = member.admission
    assert asked.asked("d", head_of(JoinAsked("d", "d:1")))
    for head in (
        b"",
        b"\xff",
        msgspec.msgpack.encode([60, "a"]),
        msgspec.msgpack.encode([100, "x" * 65, "d:1", False]),
    ):
        assert not asked.asked("d", memoryview(head))
    with pytest.raises(msgspec.MsgspecError):
        ANSWERED.decode(head_of(JoinAsked("d", "d:1")))
    with pytest.raises(msgspec.MsgspecError):
        ASKED.decode(encode(JoinAnswered(""), 0))


@pytest.mark.parametrize(
    ("name", "address", "why"),
    [
        ("no good", "127.0.0.1:1", "cannot be a member's name"),
        ("d", "0.0.0.0:1", "others cannot dial that"),
    ],
)
def test_a_newcomer_that_cannot_be_one_asks_nobody(tmp_path: Path, name: str, address: str, why: str) -> None:
    with pytest.raises(Unjoined, match=why):
        join(tmp_path / "data", name, address, "127.0.0.1:1")
    assert not (tmp_path / "data").exists()


def test_a_directory_that_holds_something_does_not_join(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    with pytest.raises(Unjoined, match="is a member's already"):
        join(tmp_path, "d", "127.0.0.1:1", "127.0.0.1:1")
    (tmp_path / "raft").rmdir()
    (tmp_path / "wiring").mkdir()
    with pytest.raises(Unjoined, match="has the queues of a node that was alone"):
        join(tmp_path, "d", "127.0.0.1:1", "127.0.0.1:1")
