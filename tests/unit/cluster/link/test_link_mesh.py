"""Nodes that link, speak, part and meet again, over real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest
from link_support import OTHER_SECRET, Node, linked, nodes, say


async def test_three_nodes_link_by_two_channels_and_frames_arrive_in_order() -> None:
    a, b, c = Node("a"), Node("b"), Node("c")
    async with nodes(a, b, c):
        await linked(a, b, c)
        for number in range(200):
            assert a.mesh.send("b", "data", [say("x", number, b"p" * number), say("y", number)])
            assert c.mesh.send("b", "control", say("z", number))
        await b.told.until(lambda: len(b.told.frames) == 600)
        from_a = [(index, text, len(body)) for peer, _, index, text, body in b.told.frames if peer == "a"]
        assert from_a == [(n, text, n if text == "x" else 0) for n in range(200) for text in "xy"]
        assert [frame[2] for frame in b.told.frames if frame[:2] == ("c", "control")] == list(range(200))
        assert a.mesh.hello("b").disk_id == "disk-b"  # type: ignore[union-attr]
        assert not a.told.refused


async def test_traffic_with_a_peer_is_counted_over_all_its_links() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        frames = [say("x", 0, b"p" * 1000), say("y")]
        size = sum(map(len, frames))
        assert a.mesh.send("b", "data", frames)
        assert a.mesh.send("b", "control", frames[0])
        await b.told.until(lambda: len(b.told.frames) == 3)
        assert a.mesh.traffic("b")[0] == size + len(frames[0])
        sent, received = b.mesh.traffic("a")
        assert (sent, received >= size) == (0, True)
        b.mesh.drop("a", "it owes too much")
        assert b.mesh.traffic("a") == (0, received), "what was counted is not forgotten"
        await linked(a, b)
        assert b.mesh.send("a", "data", frames[1])
        assert b.mesh.traffic("a")[0] == len(frames[1])
        assert b.mesh.traffic("nobody") == (0, 0)


async def test_without_a_link_nothing_is_sent() -> None:
    a = Node("a")
    async with nodes(a):
        assert not a.mesh.send("b", "data", say("x"))
        assert (a.mesh.session("b", "data"), a.mesh.backlog("b", "data"), a.mesh.writable("b", "data")) == (
            None,
            0,
            False,
        )


async def test_a_dropped_link_is_told_at_once_and_comes_back_with_a_new_session() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        before = a.mesh.session("b", "data")
        b.mesh.drop("a", "it owes too much")
        assert not b.told.linked
        assert b.told.events[-1] == ("unlinked", "a", "data", "it owes too much")
        await a.told.until(lambda: ("b", "data") in a.told.linked and a.mesh.session("b", "data") != before)
        await linked(a, b)
        assert a.mesh.send("b", "data", say("again"))
        await b.told.until(lambda: b.told.frames)


async def test_a_peer_that_starts_again_is_dialled_again() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        address = b.address
        await b.mesh.close()
        await a.told.until(lambda: not a.told.linked)
        b2 = Node("b", incarnation=2, process="p2")
        await b2.mesh.listen("127.0.0.1", int(address.rpartition(":")[2]))
        b2.mesh.set_peers({"a": a.address})
        try:
            await linked(a, b2)
            assert a.mesh.hello("b").incarnation == 2  # type: ignore[union-attr]
        finally:
            await b2.mesh.close()


async def test_peers_move_and_leave() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b, meet=False):
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            a.mesh.set_peers({"b": f"127.0.0.1:{nobody.getsockname()[1]}"})
            b.mesh.set_peers({"a": a.address})
            await a.told.until(lambda: a.mesh.trouble("b") is not None)
            a.mesh.set_peers({"b": b.address})
            await linked(a, b)
            assert a.mesh.trouble("b") is None
        a.mesh.set_peers({})
        assert not a.told.linked
        await b.told.until(lambda: not b.told.linked)
        assert not a.mesh.send("b", "data", say("x"))


async def test_a_joiner_learns_the_cluster_from_a_member_whatever_its_name() -> None:
    for name in ("a", "z"):
        member, joiner = Node("m"), Node(name, cluster="")
        member.told.admitted = lambda hello: None
        async with nodes(member, joiner, meet=False):
            joiner.mesh.dial_all = True
            joiner.mesh.set_peers({"m": member.address})
            await linked(member, joiner)
            assert joiner.told.cluster == joiner.mesh.identity.cluster == "c1"
            member.mesh.set_peers({name: joiner.address})
            assert member.mesh.send(name, "control", say("welcome"))
            await joiner.told.until(lambda joiner=joiner: joiner.told.frames)  # type: ignore[misc]


async def test_when_both_dial_one_link_per_channel_is_left() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b, meet=False):
        a.mesh.dial_all = b.mesh.dial_all = True
        a.mesh.set_peers({"b": b.address})
        b.mesh.set_peers({"a": a.address})
        await linked(a, b)
        a.mesh.send("b", "data", say("x"))
        await b.told.until(lambda: b.told.frames or not a.mesh.send("b", "data", say("x")))
        await linked(a, b)


async def test_a_peer_that_does_not_read_is_told_by_the_backlog_and_recovers() -> None:
    a, b = Node("a", write_high_bytes=100_000), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        transport = b.mesh._links["a", "data"].transport
        assert transport is not None
        transport.pause_reading()
        sent = 0
        while a.mesh.writable("b", "data"):
            a.mesh.send("b", "data", say("x", 0, bytes(100_000)))
            sent += 1
            await asyncio.sleep(0)
        assert a.mesh.backlog("b", "data") > 100_000
        assert a.mesh.writable("b", "control")
        transport.resume_reading()
        await a.told.until(lambda: ("writable", "b", "data") in a.told.events)
        await b.told.until(lambda: len(b.told.frames) == sent)
        assert a.mesh.backlog("b", "data") == 0


async def test_the_transport_gets_a_piece_at_a_time_and_what_comes_behind_it_waits() -> None:
    """It encrypts at once what it gets, and copies all that it could not pass on with each write."""
    a, b = Node("a", write_high_bytes=100_000), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        reader, writer = b.mesh._links["a", "data"].transport, a.mesh._links["b", "data"].transport
        assert reader is not None
        assert writer is not None
        reader.pause_reading()
        for number in range(8):
            a.mesh.send("b", "data", say(f"large {number}", 0, bytes(8 << 20)))
            a.mesh.send("b", "data", [say(f"small {number}"), say(f"last {number}")])
            await asyncio.sleep(0)
        assert writer.get_write_buffer_size() < 2 << 20
        assert a.mesh.backlog("b", "data") > 40 << 20
        assert not a.mesh.writable("b", "data")
        reader.resume_reading()
        await b.told.until(lambda: len(b.told.frames) == 24, 30)
        told = [frame[3] for frame in b.told.frames]
        assert told == [f"{what} {number}" for number in range(8) for what in ("large", "small", "last")]
        await a.told.until(lambda: a.told.events[-1] == ("writable", "b", "data"))
        assert a.mesh.backlog("b", "data") == 0
        assert a.mesh.writable("b", "data")


async def test_a_frame_of_sixty_mebibytes_arrives() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        a.mesh.send("b", "data", say("big", 1, bytes(60 << 20)))
        await b.told.until(lambda: b.told.frames, 30)
        assert len(b.told.frames[0][4]) == 60 << 20


async def test_a_message_that_cannot_be_read_ends_its_link_only() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        control = b.mesh.session("a", "control")
        frame = bytearray(say("x"))
        frame[16] = 0xC1  # never used in msgpack
        a.mesh.send("b", "data", bytes(frame))
        await b.told.until(lambda: any(event[0] == "unlinked" for event in b.told.events))
        assert "cannot be read" in next(event for event in b.told.events if event[0] == "unlinked")[3]
        assert b.mesh.session("a", "control") == control
        await linked(a, b)


async def probed(node: Node, peer: str) -> str:
    """Asked again when this machine was too busy to answer itself within half a second."""
    while (found := await node.mesh.probe(peer)) == "silent":
        pass
    return found


async def test_a_probe_tells_a_dead_process_from_a_living_one() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        assert await probed(a, "b") == "accepted"
        assert await a.mesh.probe("nobody") == "silent"
        assert not b.told.refused
        await b.mesh.close()
        assert await probed(a, "b") == "refused"


async def test_a_port_that_closes_while_it_is_probed_is_a_dead_process() -> None:
    """The kernel closes a dying process's sockets one by one, perhaps the connections before the port."""
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        probing = asyncio.create_task(a.mesh.probe("b"))
        await b.told.until(lambda: bool(b.mesh._unlinked))  # the first connection of the probe
        await b.mesh.close()
        assert await probing == "refused"


async def test_the_address_is_named_when_it_cannot_be_had() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a):
        with pytest.raises(OSError, match=f"cannot listen for the cluster on {a.address}"):
            await b.mesh.listen("127.0.0.1", a.mesh.port)


async def test_a_copied_disk_and_a_second_node_of_a_name_are_refused() -> None:
    a, b = Node("a"), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        for identity, line in [
            ({"disk_id": "disk-a", "process": "copy"}, "do not copy data directories"),
            ({"disk_id": "other", "process": "twin", "incarnation": 9}, "two nodes call themselves a"),
        ]:
            twin = Node("a", **identity)
            await twin.mesh.listen("127.0.0.1", 0)
            twin.mesh.set_peers({"b": b.address})
            await twin.told.until(lambda twin=twin, line=line: any(line in said for _, said in twin.told.refused))
            await twin.mesh.close()
        assert all(event[0] == "linked" for event in b.told.events)
        assert any("two nodes call themselves a (disks disk-a and other)" in line for _, line in b.told.refused) or any(
            "do not copy" in line for _, line in b.told.refused
        )


async def test_once_the_level_is_raised_a_release_that_knows_less_is_refused() -> None:
    a, b = Node("a", level=1), Node("b")
    async with nodes(a, b):
        await linked(a, b)
        b.told.cluster_level = 2
        b.mesh.drop("a")
        line = "it refused the link: a runs clusterbroker 0.1, which knows feature level 1, and the cluster is at level"
        await a.told.until(lambda: any(said.startswith(line) for _, said in a.told.refused))
        assert b.mesh.hello("a") is None
        b.told.cluster_level = 1
        await linked(a, b)


@pytest.mark.parametrize(
    "stranger, line",
    [
        (lambda: Node("a", OTHER_SECRET), "not signed by this cluster's authority"),
        (lambda: Node("a", cluster="c2"), "it refused the link: a is of cluster c2, b of cluster c1"),
        (lambda: Node("a", certified="x"), "it refused the link: a shows the certificate of x"),
        (lambda: Node("0"), "0 is not a member"),
    ],
)
async def test_a_stranger_is_refused_with_a_line_once_and_others_are_unharmed(stranger: object, line: str) -> None:
    b, c = Node("b"), Node("c")
    async with nodes(b, c):
        await linked(b, c)
        b.mesh.set_peers({"c": c.address, "a": "127.0.0.1:1"})
        a: Node = stranger()  # type: ignore[operator]
        await a.mesh.listen("127.0.0.1", 0)
        a.mesh.set_peers({"b": b.address})
        try:
            await a.told.until(lambda: a.told.refused)
            assert line in a.told.refused[0][1]
            await a.told.until(lambda: a.mesh._dials >= 8)
            assert len(a.told.refused) == 1
            assert len(b.told.refused) <= 1
            assert not a.told.linked
            assert all(event[0] == "linked" and event[1] == "c" for event in b.told.events)
            b.mesh.send("c", "data", say("still here"))
            await c.told.until(lambda: c.told.frames)
        finally:
            await a.mesh.close()
