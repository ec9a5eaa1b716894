"""Sockets: one receive buffer for all, back pressure, ends that are heard, mistakes that stay with one client."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from server_support import HEADER, Lines, Peer, until

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.fronts.amqp091.handshake import CAPABILITIES
from clusterbroker.broker.server.client import LINGER_S, cut_off_slow, peer_name
from clusterbroker.broker.wire.amqp091 import methods


async def test_bytes_that_come_one_by_one_and_mixed_with_those_of_others(start: Any, connect: Any) -> None:
    shell = await start()
    peers = [await connect(shell) for _ in range(3)]
    for octet in HEADER:
        for peer in peers:
            peer.writer.write(bytes((octet,)))
            await peer.writer.drain()
            await asyncio.sleep(0)
    for peer in peers:
        said = await peer.receive()
        assert isinstance(said, methods.ConnectionStart)
        assert said.server_properties["capabilities"] == dict(CAPABILITIES)


async def test_a_frame_cut_in_the_middle_waits_for_its_rest_while_others_are_read(start: Any, connect: Any) -> None:
    shell = await start()
    one, other = [await (await connect(shell)).open() for _ in range(2)]
    payload = methods.encode(methods.QueueDeclare(queue="cut"))
    frame = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
    one.writer.write(frame[:11])
    await one.writer.drain()
    for _ in range(5):
        other.send(1, methods.QueueDeclare(queue="whole"))
        assert isinstance(await other.receive(), methods.QueueDeclareOk)
    one.writer.write(frame[11:])
    declared = await one.receive()
    assert isinstance(declared, methods.QueueDeclareOk)
    assert declared.queue == "cut"


async def test_no_delay_is_set(start: Any, connect: Any) -> None:
    shell = await start()
    await (await connect(shell)).open()
    (client,) = shell.clients.values()
    taken = client._transport.get_extra_info("socket")
    assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_last_words_are_heard_although_more_was_sent_than_was_read(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell)).open()
    # a frame that is no frame, and behind it more than the node will ever look at
    peer.writer.write(b"\x07" + bytes(200_000))
    said = await peer.receive()
    assert isinstance(said, methods.ConnectionClose)
    assert said.reply_code == 501
    assert await peer.ended() == b""


async def test_what_a_client_has_not_taken_when_the_lease_ends_does_not_reach_it(start: Any, connect: Any) -> None:
    """C9: the gate holds back what is not written yet; the transport's buffer flowed on for seconds."""
    shell = await start()
    slow, quick = [await (await connect(shell)).open() for _ in range(2)]
    bodies = 64
    slow.send(1, methods.QueueDeclare(queue="big"))
    assert isinstance(await slow.receive(), methods.QueueDeclareOk)
    quick.publish("big", bytes(100_000), bodies)
    slow.send(1, methods.BasicConsume(queue="big", consumer_tag="c", no_ack=True))
    client = next(client for client in shell.clients.values() if client.received_bytes < 10_000)
    slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: client.unsent_bytes > 0)
    cut_off_slow(shell.clients.values())
    slow.reader._transport.resume_reading()  # type: ignore[attr-defined]
    came = 0
    with pytest.raises(ConnectionResetError):
        while True:
            came += len(await slow.reader.readexactly(1000))
    assert came < client.sent_bytes
    await until(lambda: client not in shell.clients.values())
    quick.send(1, methods.QueueDeclare(queue="big", passive=True))
    assert isinstance(await quick.receive(), methods.QueueDeclareOk), "who takes what it is sent stays"


async def test_what_the_kernel_holds_when_the_lease_ends_does_not_reach_a_slow_client(start: Any, connect: Any) -> None:
    """Nothing waits in the transport: the kernel's send queue has room for megabytes."""
    shell = await start()
    quick = await (await connect(shell)).open()
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", shell.listeners[0].addresses[0].port))
    slow = await Peer(*await asyncio.open_connection(sock=narrow)).open()
    slow.send(1, methods.QueueDeclare(queue="some"))
    assert isinstance(await slow.receive(), methods.QueueDeclareOk)
    slow.send(1, methods.BasicConsume(queue="some", consumer_tag="c", no_ack=True))
    assert isinstance(await slow.receive(), methods.BasicConsumeOk)
    client = list(shell.clients.values())[1]
    slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
    quick.publish("some", bytes(10_000), 8)
    await until(lambda: client.sent_bytes > 80_000)
    assert client.unsent_bytes == 0
    cut_off_slow(shell.clients.values())
    slow.reader._transport.resume_reading()  # type: ignore[attr-defined]
    came = 0
    with pytest.raises(ConnectionResetError):
        while True:
            came += len(await asyncio.wait_for(slow.reader.readexactly(1000), 30))
    assert came < 80_000
    slow.writer.close()
    quick.send(1, methods.QueueDeclare(queue="some", passive=True))
    assert isinstance(await quick.receive(), methods.QueueDeclareOk), "who takes what it is sent stays"


async def test_a_client_that_does_not_go_is_cut(start: Any, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.server.client.LINGER_S", 0.2)
    shell = await start()
    peer = await (await connect(shell)).open()
    peer.send(0, methods.ConnectionClose(200, "bye", 0, 0))
    assert isinstance(await peer.receive(), methods.ConnectionCloseOk)
    assert shell.clients, "our half is closed, the client's is not"
    await until(lambda: not shell.clients, LINGER_S)


async def test_a_mistake_of_ours_costs_one_client_its_connection(
    start: Any, connect: Any, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await start()
    victim, other = [await (await connect(shell)).open() for _ in range(2)]
    receive = Connection.receive

    def broken(self: Connection, data: Any, now_ms: int) -> None:
        if b"poison" in bytes(data):
            raise RuntimeError("seeded")
        receive(self, data, now_ms)

    monkeypatch.setattr(Connection, "receive", broken)
    victim.send(1, methods.QueueDeclare(queue="poison"))
    said = await victim.receive()
    assert isinstance(said, methods.ConnectionClose)
    assert said.reply_code == 541
    other.send(1, methods.QueueDeclare(queue="fine"))
    assert isinstance(await other.receive(), methods.QueueDeclareOk)
    assert "client.crashed" in lines.events()
    assert not shell.ended.done(), "the node lives"


async def test_a_client_that_never_reads_does_not_fill_memory(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell, limit=1 << 16)).open()
    peer.send(1, methods.QueueDeclare(queue="deaf"))
    assert isinstance(await peer.receive(), methods.QueueDeclareOk)
    peer.send(1, methods.BasicConsume(queue="deaf", consumer_tag="c", no_ack=True))
    assert isinstance(await peer.receive(), methods.BasicConsumeOk)
    peer.writer.transport.pause_reading()
    publisher = await (await connect(shell)).open()
    body = bytes(60_000)
    for _ in range(50):
        publisher.publish("deaf", body, 10)
        await publisher.writer.drain()
    (connection,) = [one for one in shell.clients if any(channel.consumers for channel in one.channels.values())]
    await until(lambda: connection.out.paused)
    client = shell.clients[connection]
    held = client._transport.get_write_buffer_size() + connection.out.size
    assert held < 4 << 20, "30 MB are on offer"
    peer.writer.transport.resume_reading()
    got = 0
    while got < 500:
        kind, _, _ = await asyncio.wait_for(peer.frame(), 60)
        got += kind == 2
    await until(lambda: not connection.out.paused)


async def test_a_peer_that_vanishes_leaves_nothing(start: Any, connect: Any) -> None:
    shell = await start()
    peer = await (await connect(shell)).open()
    assert len(shell.node.clients) == 1
    peer.writer.transport.abort()
    await until(lambda: not shell.clients and not shell.node.clients)


def test_names_of_peers() -> None:
    class Transport(asyncio.Transport):
        def __init__(self, name: Any) -> None:
            super().__init__({"peername": name})

    assert peer_name(Transport(("127.0.0.1", 5))) == ("127.0.0.1:5", True)
    assert peer_name(Transport(("::1", 5, 0, 0))) == ("[::1]:5", True)
    assert peer_name(Transport(("::ffff:127.0.0.9", 5, 0, 0))) == ("[::ffff:127.0.0.9]:5", True)
    assert peer_name(Transport(("fe80::1%eth0", 5, 0, 2))) == ("[fe80::1%eth0]:5", False)
    assert peer_name(Transport(("10.0.0.1", 5))) == ("10.0.0.1:5", False)
    assert peer_name(Transport(None)) == ("unknown", False)
