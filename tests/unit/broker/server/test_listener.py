"""Addresses, certificates, and listening on them."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
from server_support import Peer

from broker.amqp import methods
from broker.server.listener import Address, TlsOptions, address, peer_identity, raise_descriptor_limit

cryptography = pytest.importorskip("cryptography")


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


class Authority:
    """Signs certificates for these tests."""

    def __init__(self, directory: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self.directory = directory

        def named(common: str) -> x509.Name:
            return x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc"),
                    x509.NameAttribute(NameOID.COMMON_NAME, common),
                ]
            )

        root_key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)

        def usage(is_root: bool) -> x509.KeyUsage:
            names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
            rest = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
            return x509.KeyUsage(digital_signature=not is_root, key_cert_sign=is_root, **rest)

        def made(common: str, key: Any, is_root: bool) -> Any:
            return (
                x509.CertificateBuilder()
                .subject_name(named(common))
                .issuer_name(named("root"))
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(hours=1))
                .not_valid_after(now + datetime.timedelta(hours=1))
                .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
                .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
                # RFC 5280 4.2.1.1 to 4.2.1.3, which Python 3.13 verifies by default
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False
                )
                .add_extension(usage(is_root), critical=True)
                .sign(root_key, hashes.SHA256())
            )

        for common, key, is_root in (
            ("root", root_key, True),
            ("node", ec.generate_private_key(ec.SECP256R1()), False),
            ("client", ec.generate_private_key(ec.SECP256R1()), False),
        ):
            pem = made(common, key, is_root).public_bytes(serialization.Encoding.PEM)
            secret = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            (directory / f"{common}.pem").write_bytes(pem + secret)

    def __getitem__(self, name: str) -> Path:
        return self.directory / f"{name}.pem"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def open_tls(shell: Any, authority: Authority, certificate: str | None) -> Peer:
    context = ssl.create_default_context(cafile=authority["root"])
    if certificate is not None:
        context.load_cert_chain(authority[certificate])
    port = shell.listeners[-1].addresses[0].port
    return Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost"))


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
    from cluster.commands import PutUser

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
