"""Certificates that are replaced while clients are connected, and files that cannot be used."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server_support import Lines, Peer, until

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.server import certificates
from clusterbroker.broker.server.certificates import BadCertificate, Chain, TlsOptions, watch
from clusterbroker.broker.server.control.node_operations import OF_NODE, chains
from clusterbroker.broker.server.control.operations import Refused
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
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
    watching = asyncio.create_task(watch([chain], NodeLog(lines).say, look_s=0.01))
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
    huge.write_bytes(b"x" * (certificates.FILE_BYTES_MAX + 1))
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
    rows = certificates.shown("amqps", "127.0.0.1", 1, chains(shell)[0])
    assert (rows.protocol, rows.serial) == ("amqps", chains(shell)[0].serial)
    assert os.path.basename(rows.file) == "node.pem"
