"""Certificates of the cluster's own authority."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from link_support import OTHER_SECRET, SECRET

from clusterbroker.cluster.link.certificates import (
    authority,
    common_name,
    dns_name,
    node_credentials,
)
from clusterbroker.cluster.link.secret import Secret


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, str | None, str | None]:
    """(version, who the server sees, who the client sees)."""
    to_server, to_client, from_server, from_client = (ssl.MemoryBIO() for _ in range(4))
    sides = [
        client.wrap_bio(to_client, from_client),
        server.wrap_bio(to_server, from_server, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            to_server.write(from_client.read())
            to_client.write(from_server.read())
    return sides[1].version(), common_name(sides[1].getpeercert()), common_name(sides[0].getpeercert())


def test_the_authority_is_the_same_to_the_byte_wherever_the_secret_is() -> None:
    one = authority(SECRET)[1].public_bytes(Encoding.DER)
    assert one == authority(Secret(SECRET._raw))[1].public_bytes(Encoding.DER)
    assert one != authority(OTHER_SECRET)[1].public_bytes(Encoding.DER)


def test_two_nodes_see_each_other_s_names_over_tls_1_3() -> None:
    a, b = node_credentials(SECRET, "a"), node_credentials(SECRET, "b")
    assert shake(a.server, b.client) == ("TLSv1.3", "b", "a")


def test_without_the_secret_neither_side_accepts_the_other() -> None:
    a, stranger = node_credentials(SECRET, "a"), node_credentials(OTHER_SECRET, "b")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(a.server, stranger.client)
    stranger.client.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="verify failed"):
        shake(a.server, stranger.client)
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="did not return a certificate"):
        shake(a.server, nobody)


def test_tls_1_2_is_refused() -> None:
    a, b = node_credentials(SECRET, "a"), node_credentials(SECRET, "b")
    b.client.minimum_version = ssl.TLSVersion.TLSv1_2
    b.client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        shake(a.server, b.client)


def test_no_key_is_left_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    a, b = node_credentials(SECRET, "a", tmp_path), node_credentials(SECRET, "b", tmp_path)
    assert shake(a.server, b.client)[0] == "TLSv1.3"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "node-1.example.com", "with_underscore", "-", "n" * 64])
def test_any_node_name_gets_a_certificate(name: str) -> None:
    assert shake(node_credentials(SECRET, name).server, node_credentials(SECRET, "b").client)[2] == name
    assert "_" not in dns_name(name)
