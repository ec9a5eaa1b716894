"""Certificates that are replaced while clients are connected, and files that cannot be used."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server_support import Lines, Peer, until

from clusterbroker.broker.server import tls
from clusterbroker.broker.server.control.node_operations import OF_NODE, chains
from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.tls import BadCertificate, Chain, TlsDoor, TlsOptions, watch
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.cluster.link import door
from clusterbroker.cluster.link.door import listening_sockets
from tests.authority import Authority

ANY = (Address("127.0.0.1", 0),)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def shown(authority: Authority, port: int) -> tuple[str, Peer]:
    """(serial number that a client sees, its connection)."""
    context = ssl.create_default_context(cafile=authority["root"])
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))
    octets = peer.writer.get_extra_info("ssl_object").getpeercert(True)
    return f"{x509.load_der_x509_certificate(octets).serial_number:x}", peer


def options(authority: Authority, **changes: Any) -> TlsOptions:
    return TlsOptions(authority["node"], **changes)


async def test_new_clients_see_the_new_certificate_and_old_ones_stay(start: Any, authority: Authority) -> None:
    first = authority.make("node")
    shell = await start(amqps=ANY, tls=options(authority))
    port = shell.listeners[-1].addresses[0].port
    serial, old = await shown(authority, port)
    assert serial == first
    await old.open()
    second = authority.make("node")
    answer = await OF_NODE["certificates.reload"](shell, {})
    assert [one["serial"] for one in answer["certificates"]] == [second]
    serial, new = await shown(authority, port)
    assert serial == second
    await new.open()
    for peer in (old, new):
        peer.send(0, methods.ConnectionClose(200, "", 0, 0))
        assert isinstance(await peer.receive(), methods.ConnectionCloseOk), "neither connection was touched"


@pytest.mark.parametrize(
    "octets", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
async def test_a_broken_file_keeps_the_old_one(start: Any, authority: Authority, lines: Lines, octets: bytes) -> None:
    first = authority.make("node")
    shell = await start(amqps=ANY, tls=options(authority))
    authority["node"].write_bytes(octets)
    with pytest.raises(Refused, match="stays"):
        await OF_NODE["certificates.reload"](shell, {})
    assert (await shown(authority, shell.listeners[-1].addresses[0].port))[0] == first
    (kept,) = [facts for _, event, facts in lines.lines if event == "tls.kept"]
    assert "node.pem" in kept["why"]
    assert "\n" not in kept["why"]


async def test_a_key_of_another_certificate_changes_nothing_at_all(start: Any, authority: Authority) -> None:
    """OpenSSL takes the certificate before it looks at the key: the context that lives must never see this."""
    first = authority.make("node")
    key = authority.directory / "node.key"
    key.write_bytes(authority["node"].read_bytes())
    shell = await start(amqps=ANY, tls=options(authority, key=key))
    authority.make("node")
    with pytest.raises(Refused, match="cannot be used together"):
        await OF_NODE["certificates.reload"](shell, {})
    serial, peer = await shown(authority, shell.listeners[-1].addresses[0].port)
    assert serial == first
    await peer.open()


async def test_files_that_change_are_noticed_once_they_rest(authority: Authority, lines: Lines) -> None:
    chain = Chain(options(authority))
    watching = asyncio.create_task(watch([chain], NodeLog(lines).emit, look_s=0.01))
    second = authority.make("node")
    await until(lambda: chain.serial == second)
    authority["node"].write_bytes(b"broken")
    await until(lambda: "tls.kept" in lines.events())
    authority["node"].unlink()
    await until(lambda: lines.events().count("tls.kept") == 2)
    assert chain.serial == second
    third = authority.make("node")
    await until(lambda: chain.serial == third)
    watching.cancel()
    assert lines.events() == ["tls.reloaded", "tls.kept", "tls.kept", "tls.reloaded"], (
        "once for each state of the files"
    )


def test_nothing_is_read_while_the_files_are_being_replaced(authority: Authority) -> None:
    chain = Chain(options(authority))
    assert chain.look() is None
    authority.make("node")
    assert chain.look() is None, "they have changed since the last look"
    authority.make("node")
    assert chain.look() is None, "and again"
    found = chain.look()
    assert found is not None
    assert chain.take(found)
    assert not chain.take(found)
    assert chain.look() is None


async def test_the_minimum_version_and_the_ciphers_are_those_that_were_set(start: Any, authority: Authority) -> None:
    shell = await start(amqps=(*ANY,), tls=options(authority, minimum_version="1.3"))
    old = ssl.create_default_context(cafile=authority["root"])
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    port = shell.listeners[-1].addresses[0].port
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=old, server_hostname="localhost")
    await shown(authority, port)
    shell = await start(amqps=(*ANY,), tls=options(authority, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384"))
    port = shell.listeners[-1].addresses[0].port
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=old, server_hostname="localhost")
    assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    writer.close()
    weak = ssl.create_default_context(cafile=authority["root"])
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=weak, server_hostname="localhost")


def test_what_cannot_be_used_is_said_in_one_line(authority: Authority, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    huge = tmp_path / "huge.pem"
    huge.write_bytes(b"x" * (tls.FILE_BYTES_MAX + 1))
    bad = {
        "locked by a password": options(authority, key=locked),
        "MiB": TlsOptions(huge),
        "No such file": TlsOptions(tmp_path / "none.pem"),
        "no cipher": options(authority, ciphers="NONSENSE"),
        "holds no certificate": options(authority, authorities=locked),
    }
    for text, wrong in bad.items():
        with pytest.raises(BadCertificate, match=text) as caught:
            Chain(wrong)
        assert "\n" not in str(caught.value)


async def test_authorities_that_are_added_are_trusted(start: Any, authority: Authority, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    strangers = Authority(other)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority["root"].read_bytes())
    shell = await start(amqps=ANY, tls=options(authority, authorities=trusted, client_certificate="required"))
    context = ssl.create_default_context(cafile=authority["root"])
    context.load_cert_chain(strangers["client"])
    port = shell.listeners[-1].addresses[0].port

    async def comes_in() -> bool:
        try:
            peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))
            await peer.open()
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            return False
        return True

    assert not await comes_in()
    trusted.write_bytes(authority["root"].read_bytes() + strangers["root"].read_bytes())
    await OF_NODE["certificates.reload"](shell, {})
    assert await comes_in()


async def test_one_chain_for_all_its_listeners(start: Any, authority: Authority) -> None:
    shell = await start(amqps=(*ANY, *ANY), tls=options(authority))
    assert len(chains(shell)) == 1
    rows = tls.shown("amqps", "127.0.0.1", 1, chains(shell)[0])
    assert (rows.protocol, rows.serial) == ("amqps", chains(shell)[0].serial)
    assert os.path.basename(rows.file) == "node.pem"


class Greeter(asyncio.Protocol):
    """Says hello to who has done the handshake."""

    def __init__(self, served: list[asyncio.BaseTransport]) -> None:
        self.served = served

    def connection_made(self, transport: Any) -> None:
        self.served.append(transport)
        transport.write(b"hello")


class Served:
    """A door with so much room."""

    def __init__(self, most: int, authority: Authority) -> None:
        self.most = most
        self.made: list[asyncio.BaseTransport] = []
        self.turned_away: list[str] = []
        self.authority = authority
        self.held: list[socket.socket] = []

    async def open(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority["node"])
        sockets = await listening_sockets("127.0.0.1", 0)
        self.door = TlsDoor(
            sockets, context, lambda: Greeter(self.made), lambda: self.most - len(self.made),
            lambda host, why: self.turned_away.append(why), handshake_s=30,
        )  # fmt: skip
        self.door.begin()
        self.port: int = sockets[0].getsockname()[1]

    def half_open(self, count: int) -> None:
        """Sockets that begin a handshake and say no more."""
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self.port))
            one.sendall(b"\x16\x03\x01\x02\x00\x01")
            self.held.append(one)

    async def client(self) -> bytes:
        """What a good client is told."""
        context = ssl.create_default_context(cafile=self.authority["root"])
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")
        said = await reader.read(5)
        writer.close()
        return said

    def close(self) -> None:
        self.door.close()
        for transport in self.made:
            transport.abort()  # type: ignore[attr-defined]
        for one in self.held:
            one.close()


@pytest.fixture
async def open_door(tmp_path: Path) -> AsyncIterator[Callable[[int], Any]]:
    opened: list[Served] = []
    authority = Authority(tmp_path)

    async def begin(most: int) -> Served:
        opened.append(Served(most, authority))
        await opened[-1].open()
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


async def test_half_open_ones_are_no_more_than_connections_may_be(
    open_door: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.broker.server.tls.PATIENCE_S", 0.0)
    served = await open_door(20)
    served.half_open(100)
    await until(lambda: served.door.displaced >= 80)
    assert served.door.greeting <= 20
    assert await served.client() == b"hello", "it takes the place of one of them"
    assert served.door.greeting <= 20


async def test_young_ones_are_not_displaced(open_door: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile waits in the kernel's queue, and is served when there is room again."""
    monkeypatch.setattr("clusterbroker.broker.server.tls.PATIENCE_S", 1000.0)
    monkeypatch.setattr(door, "PAUSE_S", 0.01)
    served = await open_door(5)
    served.half_open(5)
    await until(lambda: served.door.greeting == 5)
    waits = asyncio.ensure_future(served.client())
    await until(lambda: served.door._pauses)
    assert (served.door.displaced, served.door.greeting) == (0, 5)
    served.held.pop().close()
    assert await waits == b"hello"


async def test_where_connections_have_taken_the_room_newcomers_are_turned_away(
    open_door: Callable[[int], Any],
) -> None:
    served = await open_door(1)
    assert await served.client() == b"hello"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await served.client()
    assert served.turned_away == ["there are as many connections as there may be"]


async def test_those_who_are_not_through_end_with_the_door(open_door: Callable[[int], Any]) -> None:
    served = await open_door(5)
    served.half_open(3)
    await until(lambda: served.door.greeting == 3)
    served.door.close()
    assert served.door.greeting == 0
    reader, writer = await asyncio.open_connection(sock=served.held.pop())
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
