"""What goes on whatever the loop does, ways that are blocked, contact, and leaders that are deaf: over real sockets."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from clusterbroker.cluster.liveness.beats import Beat, BeatCodec
from clusterbroker.cluster.liveness.contact import LEAST_S
from clusterbroker.cluster.liveness.heart import Heart, HeartOptions, Member
from clusterbroker.cluster.liveness.lease import LeaseState
from clusterbroker.cluster.liveness.pulse import Pulse
from clusterbroker.cluster.liveness.steady import steady
from tests.unit.cluster.liveness.test_heart import KEY, Node, Owner, until

NOWHERE: Final = "127.0.0.1:9"


@asynccontextmanager
async def beating(*nodes: Node, lost: tuple[str, ...] = (), linked: bool = False) -> AsyncIterator[None]:
    """Registered, the first one leads, all vote. `lost`: "ba": datagrams from b to a do not arrive."""
    try:
        for node in nodes:
            await node.heart.open("127.0.0.1", 0)
        for node in nodes:
            node.heart.set_voters([other.name for other in nodes])
            node.heart.set_links([other.name for other in nodes])
            if linked:
                node.owner.links = {other.name: other.heart for other in nodes}
            known(node, nodes, lost)
            node.heart.caught_up()
        nodes[0].heart.elected(1)
        for node in nodes:
            node.heart.registered(1)
        yield
    finally:
        for node in nodes:
            await node.heart.close()


def known(node: Node, nodes: tuple[Node, ...], lost: tuple[str, ...] = ()) -> None:
    node.heart.set_members(
        {
            other.name: Member(NOWHERE if node.name + other.name in lost else f"127.0.0.1:{other.heart.port}", 1, True)
            for other in nodes
        }
    )


@pytest.mark.parametrize(
    "lost",
    [
        ("ba", "ca"),
        pytest.param(("ab", "ac"), marks=pytest.mark.matrix),
        pytest.param(("ab", "ba", "bc", "cb", "ac", "ca"), marks=pytest.mark.matrix),
    ],
)
@pytest.mark.long
async def test_where_datagrams_do_not_pass_links_do(lost: tuple[str, ...]) -> None:
    """a3: datagrams to the leader, from it, or all."""
    nodes = a, b, _ = Node("a"), Node("b"), Node("c")
    async with beating(*nodes, lost=lost, linked=True):
        await until(lambda: all(node.heart.may_speak() for node in nodes))
        ways = sorted((way[0], way[1]) for way in lost)
        await until(lambda: sorted(a.heart.blocked()) == [way for way in ways if "a" in way])
        assert all(node.heart.leased() for node in nodes)
        await until(lambda: sorted(b.heart.blocked()) == [way for way in ways if "b" in way])
        await until(lambda: all(node.heart.may_speak() for node in nodes))  # a busy machine may hold a beat up
        assert [node.owner.leases for node in nodes] == [[LeaseState.LOST, LeaseState.LEASED]] * 3
        assert [node.owner.overdue + node.owner.deaf for node in nodes] == [[]] * 3


async def test_who_registers_may_be_answered_over_a_link() -> None:
    nodes = a, b = Node("a"), Node("b")
    heard: list[str] = []
    try:
        for node in nodes:
            await node.heart.open("127.0.0.1", 0)
            node.heart.set_links("ab")
            node.owner.links = {other.name: other.heart for other in nodes}
        a.heart.elected(1)
        known(a, nodes, ("ab",))
        b.heart.ask(lambda: heard.append("b"))  # it knows no address of anybody
        await until(lambda: heard)
    finally:
        for node in nodes:
            await node.heart.close()


@pytest.mark.faults
async def test_a_leader_that_hears_no_majority_steps_down_and_blames_nobody() -> None:
    """a3: it failed both, over links that were whole."""
    nodes = a, b, c = Node("a"), Node("b"), Node("c")
    async with beating(*nodes, lost=("ba", "ca")):
        await until(lambda: len(a.owner.deaf) >= 2)
        assert set(a.owner.deaf) == {True}, "told again"
        a.heart.stepped_down()
        known(c, nodes)
        await until(lambda: a.owner.deaf[-1] is False)
        assert a.owner.overdue == []
        a.heart.elected(2)
        await until(lambda: a.owner.overdue == [("b", 1)])
        assert b.owner.overdue == []
        assert a.owner.deaf[-1] is False, "two of three are a majority"


async def test_without_a_voters_word_there_is_no_contact_though_the_lease_lasts() -> None:
    nodes = a, b, c = Node("a"), Node("b"), Node("c")
    async with beating(*nodes):
        await until(lambda: all(node.heart.may_speak() for node in nodes))
        for node in (b, c):
            node.heart.pulse.hearing.confirms = False
        await until(lambda: not a.heart.may_speak())
        assert a.heart.leased()
        told = a.owner.contacts
        c.heart.caught_up()
        await until(lambda: a.owner.contacts > told)
        assert a.heart.may_speak()
        assert a.owner.leases == [LeaseState.LOST, LeaseState.LEASED]


async def test_who_has_no_lease_itself_vouches_for_nobody() -> None:
    """A member whose lease seems to last, for its clocks did not see that its machine stood still."""
    nodes = a, b, c = Node("a"), Node("b"), Node("c")
    async with beating(*nodes):
        await until(lambda: all(node.heart.may_speak() for node in nodes))
        a.heart.stepped_down()
        a.heart.keeper.lease_until = math.inf
        await until(lambda: not b.heart.leased() and not c.heart.leased())
        await until(lambda: not a.heart.may_speak())
        assert a.heart.leased()


async def test_who_is_given_up_is_heard_no_more_until_that_is_taken_back() -> None:
    nodes = a, b, c = Node("a"), Node("b"), Node("c")
    async with beating(*nodes):
        await until(lambda: all(node.heart.may_speak() for node in nodes))
        known(a, nodes, ("ab", "ac"))
        await until(lambda: b.heart.give_up("a", 1) and c.heart.give_up("a", 1))
        assert not a.heart.may_speak()
        known(a, nodes)
        await until(lambda: b.heart.spoke_since("a"))
        assert not a.heart.may_speak()
        b.heart.take_back("a", 1)
        await until(lambda: a.heart.may_speak())


async def test_a_wall_clock_that_leaps_ahead_asks_for_a_fresh_answer() -> None:
    """C7: a virtual machine was paused, and its wall clock was set when it woke."""
    ahead_s = 0.0
    a, b, c = Node("a"), Node("b"), Node("c")
    b.heart._wall_s = lambda: b.heart._clock() + ahead_s
    async with beating(a, b, c):
        await until(lambda: b.heart.may_speak())
        a.owner.majority = False
        ahead_s = 4.0
        assert not b.heart.may_speak()
        assert b.owner.leases[-1] is LeaseState.LOST
        a.owner.majority = True
        await until(lambda: b.heart.may_speak())


class Leader(threading.Thread):
    """A voter and leader without a loop: answers each beat of `b` as long as it is asked to."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.7)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.codec = BeatCodec(KEY, "c", "a")
        self.beats: list[Beat] = []
        self.enough = 0
        self.reached = threading.Event()
        self.quiet = threading.Event()

    def run(self) -> None:
        while True:
            try:
                data, where = self.socket.recvfrom(200)
            except TimeoutError:
                self.quiet.set()
                continue
            except OSError:
                return
            beat = self.codec.decode(data)
            if beat is None or beat.word or beat.answer or not beat.incarnation:
                continue
            self.beats.append(beat)
            for kind in ("word", "answer"):
                said = Beat(
                    "a", beat.incarnation, 1, beat.seq, 0, answer=kind == "answer", word=kind == "word", heard_ms=0
                )
                self.socket.sendto(self.codec.encode(said, "b"), where)
            if len(self.beats) >= self.enough:
                self.reached.set()


@asynccontextmanager
async def led(options: HeartOptions) -> AsyncIterator[tuple[Leader, Heart]]:
    leader, owner = Leader(), Owner()
    heart = Heart("b", BeatCodec(KEY, "c", "b"), owner, options)
    leader.start()
    try:
        await heart.open("127.0.0.1", 0)
        heart.set_voters("abc")
        heart.set_members({"a": Member(leader.address, 1, True), "b": Member(f"127.0.0.1:{heart.port}", 1, True)})
        heart.registered(1)
        await until(lambda: heart.may_speak())
        yield leader, heart
    finally:
        await heart.close()
        leader.socket.close()
        await asyncio.to_thread(leader.join)


async def test_a_node_without_clients_asks_for_no_words_before_one_is_to_be_written_to() -> None:
    a, b, c = nodes = Node("a"), Node("b"), Node("c")
    c.owner.has_clients = False
    async with beating(*nodes):
        await until(lambda: a.heart.may_speak() and b.heart.may_speak())
        await until(lambda: c.heart.leased())
        await until(lambda: a.heart.heard["c"][1].rely_ms == 0 < a.heart.heard["b"][1].rely_ms)
        assert c.heart.contact_left_s() == 0
        assert not c.heart.may_speak(), "nobody was asked"
        await until(lambda: c.owner.contacts > 0)
        await until(lambda: c.heart.may_speak())
        first = a.heart.heard["c"][1].seq
        await until(lambda: a.heart.heard["c"][1].seq > first + 3)
        assert a.heart.heard["c"][1].rely_ms > 0, "whoever looks again now and then finds contact"
        await until(lambda: a.heart.heard["c"][1].rely_ms == 0)


@pytest.mark.long
async def test_a_busy_loop_loses_neither_lease_nor_contact() -> None:
    """a5: one turn of seconds, and the survivors lost their leases."""
    async with led(HeartOptions()) as (leader, heart):
        began = steady()
        leader.enough = len(leader.beats) + 25
        leader.reached.clear()
        assert leader.reached.wait(30), "beats go out while the loop stands still"
        assert heart.keeper.lease_until > began + HeartOptions().lease.lease_s
        assert heart.pulse.contact.until > began + LEAST_S
        assert heart.lease_state() is LeaseState.LEASED
        assert max(beat.stuck_ms for beat in leader.beats) > 1500, "and say for how long it does"


@pytest.mark.long
async def test_a_loop_that_stands_still_for_too_long_is_dead() -> None:
    async with led(HeartOptions(loop_s=0.5)) as (leader, heart):
        leader.quiet.clear()
        assert leader.quiet.wait(30), "no beat leaves any more"
        assert max(beat.stuck_ms for beat in leader.beats) <= 500
        assert not heart.may_speak()
        await until(lambda: heart.may_speak())


def test_what_is_said_in_anothers_name_over_a_link_is_not_heard() -> None:
    made = Pulse("a", BeatCodec(KEY, "c", "a"), HeartOptions().lease, 1.0, 3.0, lambda: 100.0, lambda: 0, None)  # type: ignore[arg-type]
    made.facts.links = frozenset("bc")
    said = BeatCodec(KEY, "c", "b").encode(Beat("b", 1, 1, 1, 1, word=True), "a")
    made.received(said, "c")
    assert made.paths.silent_s("b", 100.0) == float("inf")
    made.received(said, "b")
    assert made.paths.silent_s("b", 100.0) == 0.0
