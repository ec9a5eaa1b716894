"""Whether a token is good: its signature, and what it says of whom, for whom, from whom and until when.

PyJWT checks signature and claims. What it is asked to accept is decided here, and never by the token:

    algorithm   one of the allow-list, all of which need a private key; and one that the chosen key is made for, so that
                a public key is never taken for a shared secret, nor a curve for another one
    key         of the authority's set, by the token's `kid`, or the only one that fits; keys, certificates and
                addresses that the token itself brings (`jwk`, `x5c`, `jku`, `x5u`) are not looked at
    crit        extensions that must be understood are none that we understand: refused
    claims      `exp` and an audience must be there

No time is asked here but by PyJWT for `exp`, `nbf` and `iat`; whoever keeps a verified token looks at `expires_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from .options import ALGORITHMS, OAuth2Options
from .scopes import Grants, granted

TOKEN_BYTES_MAX: Final = 8192
NAME_BYTES_MAX: Final = 255
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
END_S_MAX: Final = 1 << 40
"""Some 35,000 years from 1970."""
_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_PUBLIC: Final = (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)


class BadToken(Exception):
    """The token is not accepted; the text is for the log, and holds nothing of the token."""


class UnknownKey(BadToken):
    """No key of the set fits: the set may be an old one."""


class BadKeySet(ValueError):
    """What should be a JSON Web Key Set cannot be used."""


class Key(NamedTuple):
    """A public key of the authority."""

    id: str
    algorithm: str
    """For which it was made; empty: for any that it can do."""
    public: Any


class Token(msgspec.Struct, frozen=True):
    """What a good token says."""

    name: str
    grants: Grants
    expires_s: float
    """Seconds since 1970."""


def key_set(octets: bytes) -> tuple[Key, ...]:
    """The keys of a JSON Web Key Set that verify signatures; others are passed over. Raises BadKeySet when there is
    none."""
    try:
        entries = msgspec.json.decode(octets).get("keys")
        assert isinstance(entries, list)
    except (msgspec.DecodeError, AttributeError, AssertionError, RecursionError, UnicodeDecodeError):
        raise BadKeySet("it is no JSON Web Key Set: an object with a list of 'keys'") from None
    found = tuple(key for entry in entries[:KEYS_MAX] if (key := _key(entry)) is not None)
    if not found:
        raise BadKeySet("it has no public key for signatures (RSA of 2048 bits or more, EC, or Ed25519)")
    return found


def _key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    algorithm, key_id = entry.get("alg", ""), entry.get("kid", "")
    if not isinstance(key_id, str) or not isinstance(algorithm, str) or (algorithm and algorithm not in ALGORITHMS):
        return None
    # a private key that was published by mistake is used as the public one that it contains
    public_part = {name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        public = jwt.PyJWK.from_dict(public_part).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(public, _PUBLIC) or (isinstance(public, rsa.RSAPublicKey) and public.key_size < RSA_BITS_MIN):
        return None
    return Key(key_id, algorithm, public)


def verified(token: bytes, keys: Sequence[Key], options: OAuth2Options) -> Token:
    """What the token says. Raises BadToken; UnknownKey when another set might have the key."""
    if len(token) > TOKEN_BYTES_MAX:
        raise BadToken(f"it has more than {TOKEN_BYTES_MAX} bytes")
    try:
        text = token.decode("ascii")
        header = jwt.get_unverified_header(text)
    except (UnicodeDecodeError, jwt.PyJWTError, ValueError, RecursionError):
        raise BadToken("it is no signed JSON Web Token") from None
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in options.algorithms or algorithm not in ALGORITHMS:
        raise BadToken("its algorithm is not allowed")
    if "crit" in header or header.get("b64") is False:  # older versions of PyJWT pass these over
        raise BadToken("it has extensions that are not understood")
    key = _chosen(keys, header.get("kid"), algorithm)
    try:
        claims = jwt.decode(
            text,
            key=key.public,
            algorithms=[algorithm],
            audience=options.resource_server_id,
            issuer=options.issuer or None,
            leeway=options.leeway_s,
            options={"require": ["exp", "aud", *(["iss"] if options.issuer else [])]},
        )
    except jwt.PyJWTError as error:
        raise BadToken(_why(error)) from None
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise BadToken("its claims cannot be read") from None
    expires_s = claims["exp"]
    if isinstance(expires_s, bool) or not isinstance(expires_s, (int, float)) or not 0 < expires_s < END_S_MAX:
        raise BadToken("its end (exp) is no time")
    scopes = (scope for claim in options.scope_claims for scope in _scopes(_at(claims, claim)))
    return Token(_name(claims, options.username_claims), granted(scopes, options.prefix), float(expires_s))


def _chosen(keys: Iterable[Key], key_id: Any, algorithm: str) -> Key:
    fitting = [key for key in keys if key.algorithm in ("", algorithm) and _can(key.public, algorithm)]
    if key_id is not None:
        found = next((key for key in fitting if key.id == key_id), None)
        if found is None:
            raise UnknownKey("no key of the set has its id and does its algorithm")
        return found
    if len(fitting) != 1:
        raise UnknownKey(f"it names no key, and {len(fitting)} keys of the set do its algorithm")
    return fitting[0]


def _can(public: Any, algorithm: str) -> bool:
    if algorithm[:2] in ("RS", "PS"):
        return isinstance(public, rsa.RSAPublicKey)
    if algorithm in _CURVES:
        return isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == _CURVES[algorithm]
    return isinstance(public, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey))


_REASONS: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it is over (exp)",
    jwt.ImmatureSignatureError: "it is not valid yet (nbf, iat)",
    jwt.InvalidAudienceError: "it is for somebody else (aud)",
    jwt.InvalidIssuerError: "it is from somebody else (iss)",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "a claim is missing (exp, aud or iss)",
}
"""Texts of our own: those of libraries may hold what the token says."""


def _why(error: Exception) -> str:
    return next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "it cannot be verified")


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name, else what is found along its dots."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _scopes(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [scope for one in value if isinstance(one, str) for scope in one.split()]
    return []


def _name(claims: Mapping[str, Any], wanted: Sequence[str]) -> str:
    for claim in wanted:
        name = _at(claims, claim)
        if isinstance(name, str) and 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX and name.isprintable():
            return name
    raise BadToken(f"it names no user ({', '.join(wanted)})")
