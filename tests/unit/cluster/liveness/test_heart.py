"""Hearts that beat over real sockets, driven turn by turn by a clock of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from clusterbroker.cluster.liveness.beats import Beat, BeatCodec
from clusterbroker.cluster.liveness.datagrams import Datagrams, resolve
from clusterbroker.cluster.liveness.heart import Heart, Member, wall_ms
from clusterbroker.cluster.liveness.lease import LeaseState
from clusterbroker.cluster.liveness.steady import steady

KEY = bytes(32)


class Owner:
    """A node around a heart: what it says, and what it was told."""

    def __init__(self) -> None:
        self.applied = self.committed = 1
        self.stuck: float | None = None
        self.majority = True
        self.leases: list[LeaseState] = []
        self.suspicions: list[tuple[str, bool]] = []
        self.overdue: list[tuple[str, int]] = []
        self.deaf: list[bool] = []
        self.contacts = 0
        self.links: dict[str, Heart] = {}
        """Whom it is linked with."""
        self.name = ""
        self.unlinked: set[str] = set()
        self.has_clients = True

    def serves(self) -> bool:
        return self.has_clients

    def applied_index(self) -> int:
        return self.applied

    def committed_index(self) -> int:
        return self.committed

    def term(self) -> int:
        return 1

    def stuck_since(self) -> float | None:
        return self.stuck

    def quorum_round(self, then: Callable[[], None]) -> None:
        if self.majority:
            asyncio.get_running_loop().call_soon(then)

    def on_lease(self, state: LeaseState) -> None:
        self.leases.append(state)

    def on_suspected(self, peer: str, suspected: bool) -> None:
        self.suspicions.append((peer, suspected))

    def on_overdue(self, peer: str, incarnation: int) -> None:
        self.overdue.append((peer, incarnation))

    def on_deaf(self, deaf: bool) -> None:
        self.deaf.append(deaf)

    def on_contact(self) -> None:
        self.contacts += 1

    def linked(self, peer: str) -> bool:
        return peer not in self.unlinked

    def post(self, peer: str, data: bytes) -> None:
        if peer in self.links:
            self.links[peer].came_by_link(self.name, data)


class Node:
    """A heart and its owner."""

    def __init__(self, name: str, clock: Callable[[], float] = steady, time_ms: Callable[[], int] = wall_ms) -> None:
        self.name = name
        self.owner = Owner()
        self.owner.name = name
        self.heart = Heart(name, BeatCodec(KEY, "c", name), self.owner, clock=clock, time_ms=time_ms)


@asynccontextmanager
async def beating(*nodes: Node) -> AsyncIterator[dict[str, Member]]:
    """Open, known to each other, registered; the first one leads."""
    try:
        for node in nodes:
            await node.heart.open("127.0.0.1", 0)
        members = {node.name: Member(f"localhost:{node.heart.port}", 1, True) for node in nodes}
        nodes[0].heart.elected(1)
        for node in nodes:
            node.heart.set_members(members)
            node.heart.registered(1)
        yield members
    finally:
        for node in nodes:
            await node.heart.close()


async def until(condition: Callable[[], object], timeout_s: float = 10) -> None:
    tick = asyncio.Event()
    async with asyncio.timeout(timeout_s):
        while not condition():
            asyncio.get_running_loop().call_later(0.01, tick.set)
            await tick.wait()
            tick.clear()


async def test_registered_nodes_get_leases_and_keep_them() -> None:
    a, b, c = Node("a"), Node("b"), Node("c")
    async with beating(a, b, c):
        await until(lambda: all(node.heart.leased() for node in (a, b, c)))
        assert b.owner.leases == [LeaseState.LOST, LeaseState.LEASED]
        first = b.heart.keeper.lease_until
        await until(lambda: b.heart.keeper.lease_until > first + 0.5)
        assert b.heart.lease_state() is LeaseState.LEASED
        assert sorted(a.heart.heard) == ["b", "c"]
        assert not a.owner.overdue
        assert not b.owner.suspicions


async def test_each_knows_how_far_its_clock_is_from_the_others() -> None:
    a, b, c = Node("a"), Node("b"), Node("c", time_ms=lambda: wall_ms() + 3_600_000)
    async with beating(a, b, c):
        await until(lambda: all(len(node.heart.clocks.ahead_ms(steady())) == 2 for node in (a, b, c)))
        ahead = a.heart.clocks.ahead_ms(steady())
        assert abs(ahead["b"]) < 30_000
        assert abs(ahead["c"] - 3_600_000) < 30_000
        assert abs(c.heart.clocks.off_ms(steady()) - 3_600_000) < 30_000
        assert abs(b.heart.clocks.off_ms(steady())) < 30_000


async def test_a_node_asks_before_it_registers_whether_the_leader_hears_it() -> None:
    a, b, c = Node("a"), Node("b"), Node("c")
    heard: list[str] = []
    async with beating(a, b):
        await c.heart.open("127.0.0.1", 0)
        try:
            nodes = {node.name: Member(f"localhost:{node.heart.port}", 1, node is not c) for node in (a, b, c)}
            c.heart.set_members({**nodes, "a": nodes["a"]._replace(address="localhost:9")})  # what it says is lost
            a.heart.set_members(nodes)
            b.heart.set_members(nodes)
            c.heart.ask(lambda: heard.append("c"))
            seen = b.heart.keeper.lease_until
            await until(lambda: b.heart.keeper.lease_until > seen + 1)
            assert not heard, "only the leader answers"
            c.heart.set_members(nodes)
            await until(lambda: heard)
            a.heart.ask(lambda: heard.append("a"))
            await until(lambda: "a" in heard)
            assert heard == ["c", "a"]
            assert not c.heart.leased()
            assert "c" not in a.heart.heard
        finally:
            await c.heart.close()


@pytest.mark.faults
async def test_a_node_that_is_killed_is_suspected_then_overdue_and_told_again() -> None:
    a, b = Node("a"), Node("b")
    async with beating(a, b):
        await until(lambda: b.heart.leased() and "b" in a.heart.heard)
        begin = steady()
        await b.heart.close()
        await until(lambda: a.owner.suspicions == [("b", True)])
        assert a.heart.suspected("b")
        assert not a.owner.overdue
        await until(lambda: a.owner.overdue == [("b", 1)])
        assert steady() - begin > 1.6
        assert not b.heart.leased()
        await until(lambda: a.owner.overdue == [("b", 1)] * 2)


@pytest.mark.faults
async def test_without_a_majority_nobody_keeps_a_lease() -> None:
    a, b = Node("a"), Node("b")
    async with beating(a, b):
        await until(lambda: a.heart.leased() and b.heart.leased())
        a.owner.majority = False
        await until(lambda: not a.heart.leased() and not b.heart.leased())
        await until(lambda: b.owner.leases[-1] is LeaseState.LOST)
        assert not a.owner.overdue, "they beat"
        a.owner.majority = True
        await until(lambda: a.heart.leased() and b.heart.leased())


@pytest.mark.faults
async def test_who_beats_and_cannot_hear_the_log_loses_its_lease_and_is_overdue() -> None:
    """p2: its TCP is dead for good, its datagrams pass, and nothing is ordered that it could lag behind."""
    a, b = Node("a"), Node("b")
    async with beating(a, b):
        await until(lambda: a.heart.leased() and b.heart.leased())
        a.owner.unlinked.add("b")
        await until(lambda: b.owner.leases[-1] is LeaseState.LOST)
        a.owner.unlinked.clear()
        await until(lambda: b.heart.leased())
        assert not a.owner.overdue
        a.owner.unlinked.add("b")
        await until(lambda: a.owner.overdue == [("b", 1)])
        assert a.heart.leased()


@pytest.mark.faults
async def test_a_node_that_is_stuck_in_a_flush_is_silent_and_one_that_moves_again_is_back() -> None:
    a, b = Node("a"), Node("b")
    async with beating(a, b):
        await until(lambda: b.heart.leased())
        b.owner.stuck = steady() - 0.5
        await until(lambda: "b" in a.heart.heard and a.heart.heard["b"][1].stuck_ms >= 500)
        await until(lambda: not b.heart.leased())
        await until(lambda: a.owner.suspicions[-1:] == [("b", True)])
        assert a.heart.leased()
        b.owner.stuck = None
        await until(lambda: b.heart.leased() or a.owner.overdue)


async def test_a_node_that_is_declared_dead_is_silent_until_it_registers_again() -> None:
    a, b = Node("a"), Node("b")
    async with beating(a, b) as members:
        await until(lambda: b.heart.leased())
        b.heart.failed(1)
        assert not b.heart.leased()
        assert b.owner.leases[-1] is LeaseState.FAILED
        renewed = {**members, "b": members["b"]._replace(incarnation=2)}
        for node in (a, b):
            node.heart.set_members(renewed)
        b.heart.registered(2)
        await until(lambda: b.heart.leased())


async def test_forged_and_repeated_datagrams_change_nothing() -> None:
    a = Node("a")
    async with beating(a) as members:
        a.heart.set_members({**members, "b": Member("127.0.0.1:9", 1, True)})
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            here = ("127.0.0.1", a.heart.port)
            forger = BeatCodec(b"x" * 32, "c", "b")
            good = BeatCodec(KEY, "c", "b")
            for data in (b"", b"x", bytes(200), forger.encode(Beat("b", 1, 1, 5, 1), "a")):
                stranger.sendto(data, here)
            stranger.sendto(good.encode(Beat("z", 1, 1, 1, 1), "a"), here)
            stranger.sendto(good.encode(Beat("b", 1, 1, 2, 1), "a"), here)
            await until(lambda: "b" in a.heart.heard)
            came = a.heart.heard["b"]
            stranger.sendto(good.encode(Beat("b", 1, 1, 2, 1), "a"), here)
            stranger.sendto(good.encode(Beat("b", 1, 1, 1, 1), "a"), here)
            stranger.sendto(good.encode(Beat("b", 1, 1, 3, 7), "a"), here)
            await until(lambda: a.heart.heard["b"][1].seq == 3)
            assert came[1].seq == 2
            assert sorted(a.heart.heard) == ["b"]


async def test_own_sleep_blames_nobody() -> None:
    asleep = 0.0
    a = Node("a", clock=lambda: steady() + asleep)
    b = Node("b")
    async with beating(a, b):
        await until(lambda: a.heart.leased() and b.heart.leased() and "b" in a.heart.heard)
        asleep = 60.0
        await until(lambda: a.owner.leases[-1] is LeaseState.FENCED)
        last = a.heart.heard["b"][0]
        await until(lambda: a.heart.heard["b"][0] > last + 0.3)
        assert not a.owner.overdue
        assert not a.owner.suspicions
        assert not a.heart.leased()


async def test_a_peer_that_cannot_be_reached_keeps_no_datagram_from_the_others() -> None:
    got: list[bytes] = []
    receiver = await Datagrams.open("127.0.0.1", 0, lambda data, where: got.append(data))
    sender = await Datagrams.open("127.0.0.1", 0, lambda data, where: None)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            nobody = closed.getsockname()
        for number in range(50):
            sender.send(b"lost", nobody)
            sender.send(b"lost", ("255.255.255.255", 9))
            sender.send(b"lost", ("::1", 9))
            sender.send(b"%d" % number, ("127.0.0.1", receiver.port))
        await until(lambda: len(got) == 50)
        assert got == [b"%d" % number for number in range(50)]
        assert sender.errors > 0
    finally:
        await receiver.close()
        await sender.close()


async def test_the_address_is_named_when_it_cannot_be_had() -> None:
    first = await Datagrams.open("127.0.0.1", 0, lambda data, where: None)
    try:
        with pytest.raises(OSError, match=f"cannot listen for beats on 127.0.0.1:{first.port} \\(UDP\\)"):
            await Datagrams.open("127.0.0.1", first.port, lambda data, where: None)
    finally:
        await first.close()


async def test_names_are_resolved_to_addresses_that_the_socket_reaches() -> None:
    assert await resolve("localhost", 7) == ("127.0.0.1", 7)
    assert await resolve("::1", 7) == ("::1", 7)
    assert await resolve("127.0.0.1", 7, socket.AF_INET6) == ("127.0.0.1", 7)
    with pytest.raises(OSError):
        await resolve("no such host.invalid", 7)
    got: list[bytes] = []
    try:
        six = await Datagrams.open("::1", 0, lambda data, where: got.append(data))
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        assert six.family == socket.AF_INET6
        six.send(b"x", await resolve("::1", six.port, six.family))
        await until(lambda: got)
    finally:
        await six.close()
