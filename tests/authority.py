"""Certificates for tests: an authority of their own, and what it signs, as PEM files with the key inside."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOCALHOST = x509.DNSName("localhost")
NAMES = (LOCALHOST, x509.IPAddress(ip_address("127.0.0.1")))


class Authority:
    """`authority["node"]` is a file; `root`, `node` and `client` are made at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        for common, key in (("root", self._key), ("node", None), ("client", None)):
            self.make(common, key=key)

    def __getitem__(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def make(
        self, common: str, days: float = 1 / 24, file: str = "", key: Any = None, names: Sequence[Any] = NAMES
    ) -> str:
        """A certificate and its key under that file's name, from now on for so many days; its serial number in
        hexadecimal."""
        is_root = key is not None
        key = key or ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        serial = x509.random_serial_number()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(common))
            .issuer_name(_named("root"))
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # RFC 5280 4.2.1.1 to 4.2.1.3, which Python 3.13 verifies by default
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(is_root), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self[file or common]
        fresh = path.with_suffix(".new")
        fresh.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
        fresh.replace(path)
        return f"{serial:x}"


def _named(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _usage(is_root: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    rest = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not is_root, key_cert_sign=is_root, **rest)
