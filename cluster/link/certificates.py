"""Certificates between nodes: signed by the cluster's own authority, TLS 1.3 in both directions.

The authority's key is derived from the join secret, so every node has it, and makes the same authority certificate to
the byte: Ed25519 signs deterministically, and serial number, names and dates are fixed. A node signs itself a
certificate with a fresh key at each start, CN = its name. Without the secret a peer can neither show such a
certificate nor accept one, so the handshake fails on both sides before any of its bytes are parsed. (A holder of the
secret is trusted, under any name.)
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .path_of import path_of
from .secret import Secret

_BEGIN: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_END: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""A certificate lives as long as the process; a wrong wall clock must not keep nodes apart."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Both sides of this node's links: what it shows, and what it demands."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def authority(secret: Secret) -> tuple[Ed25519PrivateKey, x509.Certificate]:
    """The cluster's authority: the same on every node that has the secret."""
    key = Ed25519PrivateKey.from_private_bytes(secret.key("authority"))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clusterbroker authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = _certificate(name, name, key, 1, ca=True).add_extension(identifier, critical=False).sign(key, None)
    return key, certificate


def node_credentials(secret: Secret, name: str, scratch: Path | None = None) -> Credentials:
    """Credentials with a fresh key that exists in this process only.

    `scratch`: a directory for a file of mode 0600 that lives for a moment, where the system has no files in memory.
    """
    signer, root = authority(secret)
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    roles = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _certificate(subject, root.subject, key, x509.random_serial_number(), ca=False)
        .add_extension(roles, critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name(name))]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = private + certificate.public_bytes(Encoding.PEM)
    trusted = root.public_bytes(Encoding.DER)
    contexts = []
    with path_of(chain, scratch) as path:
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = _context(protocol)
            context.load_verify_locations(cadata=trusted)
            context.load_cert_chain(path)
            contexts.append(context)
    return Credentials(*contexts)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey, serial: int, *, ca: bool
) -> x509.CertificateBuilder:
    """What all certificates have, in the order of the extensions."""
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), serial, _BEGIN, _END)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(_usage(signs_certificates=ca), critical=True)
    )


def dns_name(name: str) -> str:
    """The node's name as a DNS name may be written: what no DNS name holds becomes a hyphen."""
    label = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "-" for char in name)
    return f"{label.strip('-.') or 'node'}.clusterbroker.invalid"


def common_name(peer_certificate: dict[str, object] | None) -> str | None:
    """CN of a verified certificate as `ssl` gives it; None when there is not exactly one."""
    subject = (peer_certificate or {}).get("subject", ())
    assert isinstance(subject, tuple), "ssl gives the subject as a tuple"
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # a peer is known by the common name, which the hello must repeat; addresses may change
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context
