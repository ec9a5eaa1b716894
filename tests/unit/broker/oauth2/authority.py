"""An authority that signs tokens: well and badly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from clusterbroker.broker.oauth2.options import OAuth2Options

ME = "mq"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(65537, 2048)
ISSUER = "https://issuer.example"


def options(**changes: Any) -> OAuth2Options:
    return OAuth2Options(**{"resource_server_id": ME, "issuer": ISSUER, **changes})


def jwk(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": key_id, **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys) or [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed")]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    now_s = int(time.time())
    whole = {
        "sub": "alice", "aud": ME, "iss": ISSUER, "exp": now_s + 300, "iat": now_s,
        "scope": f"{ME}.tag:administrator {ME}.read:*/*",
    }  # fmt: skip
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "rsa", **changes: Any) -> bytes:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers).encode()


def by_hand(header: dict[str, Any], body: Any, secret: bytes | None = None) -> bytes:
    """What no library would make."""
    signed = b".".join(_coded(json.dumps(part).encode()) for part in (header, body))
    signature = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return signed + b"." + _coded(signature)


def confused() -> list[bytes]:
    """The public key, which everybody has, taken for a shared secret."""
    public = RSA.public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(jwk(RSA, "rsa")).encode(),
    ]
    return [by_hand({"alg": "HS256", "typ": "JWT", "kid": "rsa"}, claims(), secret) for secret in secrets]


def _coded(octets: bytes) -> bytes:
    return base64.urlsafe_b64encode(octets).rstrip(b"=")
