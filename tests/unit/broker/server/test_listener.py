"""Addresses, certificates, and listening on them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from server_support import Peer, until

from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.server.listener import Address, address, peer_identity, raise_descriptor_limit
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.broker.wire.amqp091 import methods
from tests.authority import Authority


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5672", Address("127.0.0.1", 5672)),
        ("[::1]:0", Address("::1", 0)),
        (" localhost:5672 ", Address("localhost", 5672)),
        ("*:5672", Address("", 5672)),
        (":5672", Address("", 5672)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert address(text) == expected


@pytest.mark.parametrize("text", ["", "5672", "::1:5672", "host:", "host:70000", "host:-1", "a b:1", "host:1:2"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        address(text)


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("127.0.0.1:5672", "[::1]:5672"):
        assert str(address(text)) == text


def test_as_many_descriptors_as_allowed() -> None:
    assert raise_descriptor_limit() == raise_descriptor_limit() > 0


async def test_ipv6(start: Any) -> None:
    try:
        shell = await start(amqp=(Address("::1", 0),))
    except OSError:
        pytest.skip("no IPv6 here")
    peer = Peer(*await asyncio.open_connection("::1", shell.listeners[0].addresses[0].port))
    await peer.open()
    (connection,) = shell.clients
    assert connection.loopback
    assert connection.peer.startswith("[::1]:")
    peer.writer.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def open_tls(shell: Any, authority: Authority, certificate: str | None) -> Peer:
    context = ssl.create_default_context(cafile=authority["root"])
    if certificate is not None:
        context.load_cert_chain(authority[certificate])
    port = shell.listeners[-1].addresses[0].port
    return Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))


async def test_handshakes_that_never_come_count_as_connections(
    start: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterbroker.broker.server.tls.PATIENCE_S", 0.0)
    node = NodeOptions(connections_max=5)
    shell = await start(amqps=(Address("127.0.0.1", 0),), tls=TlsOptions(authority["node"]), node=node)
    listener = next(each for each in shell.listeners if each.protocol == "amqps")
    held = [await asyncio.open_connection(*listener.addresses[0]) for _ in range(20)]
    await until(lambda: listener._server.displaced >= 15)
    assert listener._server.greeting + len(shell.clients) <= 5
    peer = await open_tls(shell, authority, None)
    await peer.open()
    assert len(shell.clients) == 1
    peer.writer.close()
    for _, writer in held:
        writer.close()


async def test_tls_with_a_password(start: Any, authority: Authority) -> None:
    shell = await start(amqps=(Address("127.0.0.1", 0),), tls=TlsOptions(authority["node"]))
    assert [listener.protocol for listener in shell.listeners] == ["amqp", "amqps"]
    peer = await open_tls(shell, authority, None)
    await peer.open()
    peer.send(0, methods.ConnectionClose(200, "", 0, 0))
    assert isinstance(await peer.receive(), methods.ConnectionCloseOk)
    assert await peer.ended() == b""


@pytest.mark.parametrize(("kind", "user"), [("common_name", "client"), ("distinguished_name", None)])
async def test_external_is_who_the_certificate_says(
    start: Any, authority: Authority, kind: Any, user: str | None
) -> None:
    from clusterbroker.cluster.wiring.commands import PutUser

    user = user or r"CN=client,O=Example\, Inc"
    tls = TlsOptions(authority["node"], None, authority["root"], "wanted", kind)
    shell = await start(amqps=(Address("127.0.0.1", 0),), tls=tls)
    await shell.propose(PutUser(name=user, password_hash="", hash_algorithm=""))
    peer = await open_tls(shell, authority, "client")
    peer.writer.write(b"AMQP\x00\x00\x09\x01")
    said = await peer.receive()
    assert isinstance(said, methods.ConnectionStart)
    assert b"EXTERNAL" in said.mechanisms.split()
    peer.send(0, methods.ConnectionStartOk({}, "EXTERNAL", b"", "en_US"))
    assert isinstance(await peer.receive(), methods.ConnectionTune)
    (connection,) = shell.clients
    assert connection.user == user
    peer.writer.close()


async def test_external_is_offered_to_who_has_shown_a_certificate(start: Any, authority: Authority) -> None:
    tls = TlsOptions(authority["node"], None, authority["root"], "wanted")
    shell = await start(amqps=(Address("127.0.0.1", 0),), tls=tls)
    plain = shell.listeners[0].addresses[0].port
    without, sure = await open_tls(shell, authority, None), await open_tls(shell, authority, "client")
    for peer, offered in (
        (Peer(*await asyncio.open_connection("127.0.0.1", plain)), b"PLAIN AMQPLAIN"),
        (without, b"PLAIN AMQPLAIN"),
        (sure, b"PLAIN AMQPLAIN EXTERNAL"),
    ):
        peer.writer.write(b"AMQP\x00\x00\x09\x01")
        said = await peer.receive()
        assert isinstance(said, methods.ConnectionStart)
        assert said.mechanisms == offered
        peer.writer.close()


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    start: Any, authority: Authority
) -> None:
    tls = TlsOptions(authority["node"], None, authority["root"], "required")
    shell = await start(amqps=(Address("127.0.0.1", 0),), tls=tls)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await (await open_tls(shell, authority, None)).open()


def test_a_subject_as_rfc_4514_writes_it() -> None:
    class Transport(asyncio.Transport):
        def __init__(self, subject: Any) -> None:
            super().__init__({"peercert": {"subject": subject}} if subject else {})

    subject = ((("countryName", "DE"),), (("organizationName", "a,b"),), (("commonName", "#c"),))
    assert peer_identity(Transport(subject), "distinguished_name") == r"CN=\#c,O=a\,b,C=DE"
    assert peer_identity(Transport(subject), "common_name") == "#c"
    assert peer_identity(Transport(None), "common_name") is None
