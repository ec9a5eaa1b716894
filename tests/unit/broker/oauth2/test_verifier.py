"""Tokens that are good, and all the ways in which they are not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.oauth2.verifier import TOKEN_BYTES_MAX, BadKeySet, BadToken, UnknownKey, key_set, verified
from tests.budget import examples
from tests.unit.broker.oauth2 import authority as a

KEYS = key_set(a.key_set())


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(a.RSA, "RS256", "rsa"), (a.RSA, "RS512", "rsa"), (a.RSA, "PS256", "rsa"), (a.EC, "ES256", "ec"),
     (a.ED, "EdDSA", "ed"), (a.EC, "ES256", None)],
)  # fmt: skip
def test_good_ones(key: Any, algorithm: str, key_id: str | None) -> None:
    found = verified(a.token(key, algorithm, key_id), KEYS, a.options())
    assert found.name == "alice"
    assert found.grants.tags == ("administrator",)
    assert found.grants.enters("/")
    assert found.expires_s > time.time()


def test_scopes_and_names_stand_where_the_options_say() -> None:
    token = a.token(
        scope=None, sub=None, permissions=["mq:read:v/*"], realm={"roles": ["mq:tag:monitoring"]}, mail="m@x"
    )
    options = a.options(
        scope_claims=("permissions", "realm.roles", "none.at.all"), scope_prefix="mq:", username_claims=("mail",)
    )
    found = verified(token, KEYS, options)
    assert (found.name, found.grants.tags, found.grants.enters("v")) == ("m@x", ("monitoring",), True)


BAD: dict[str, Callable[[], bytes]] = {
    "over": lambda: a.token(exp=int(time.time()) - 60),
    "not valid yet": lambda: a.token(nbf=int(time.time()) + 600),
    "somebody else (aud)": lambda: a.token(aud="other"),
    "somebody else (iss)": lambda: a.token(iss="https://evil.example"),
    "claim is missing": lambda: a.token(exp=None),
    "signature is wrong": lambda: a.token(a.STRANGER),
    "names no user": lambda: a.token(sub=None),
    "no key of the set": lambda: a.token(key_id="who"),
    "names no key, and 2": lambda: a.token(a.RSA, "RS256", None),
    "no signed": lambda: b"x",
    "more than": lambda: b"a" * (TOKEN_BYTES_MAX + 1),
    "algorithm is not allowed": lambda: a.by_hand({"alg": "none", "kid": "rsa"}, a.claims()),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_ones(text: str) -> None:
    keys = KEYS if "2" not in text else key_set(a.key_set(a.jwk(a.RSA, "x"), a.jwk(a.STRANGER, "y")))
    with pytest.raises(BadToken) as caught:
        verified(BAD[text](), keys, a.options())
    assert text in str(caught.value)
    assert "alice" not in str(caught.value), "nothing that a token says is told"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 1, ["RS256"], "HS256", "rs256"])
def test_no_algorithm_but_those_on_the_list(algorithm: Any) -> None:
    for secret in (None, b"", b"secret"):
        with pytest.raises(BadToken):
            verified(a.by_hand({"alg": algorithm, "kid": "rsa"}, a.claims(), secret), KEYS, a.options())


def test_a_public_key_is_no_shared_secret() -> None:
    for token in a.confused():
        for algorithms in (a.options().algorithms, ("HS256", "RS256")):
            with pytest.raises(BadToken):
                verified(token, KEYS, a.options(algorithms=algorithms))


def test_an_algorithm_that_was_not_allowed_is_refused_though_its_signature_is_good() -> None:
    with pytest.raises(BadToken, match="not allowed"):
        verified(a.token(), KEYS, a.options(algorithms=("ES256",)))


def test_a_key_is_used_for_what_it_was_made_only() -> None:
    keys = key_set(a.key_set(a.jwk(a.RSA, "rsa", alg="RS256")))
    verified(a.token(), keys, a.options())
    with pytest.raises(UnknownKey):
        verified(a.token(a.RSA, "PS256"), keys, a.options())
    with pytest.raises(BadKeySet):
        key_set(a.key_set(a.jwk(a.RSA, "rsa", use="enc")))


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    import jwt

    for brought in ({"jwk": a.jwk(a.STRANGER, "rsa")}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}):
        token = jwt.encode(a.claims(), a.STRANGER, "RS256", headers={"kid": "rsa", **brought}).encode()
        with pytest.raises(BadToken, match="signature"):
            verified(token, KEYS, a.options())


def test_extensions_that_must_be_understood_are_not() -> None:
    import jwt

    token = jwt.encode(a.claims(), a.RSA, "RS256", headers={"kid": "rsa", "crit": ["exp"]}).encode()
    with pytest.raises(BadToken):
        verified(token, KEYS, a.options())


@pytest.mark.parametrize("exp", ["soon", True, 10**400, [], {}, float("nan"), float("inf"), -1])
def test_ends_that_are_none(exp: Any) -> None:
    with pytest.raises(BadToken):
        verified(a.token(exp=exp), KEYS, a.options())


@pytest.mark.parametrize("scope", [1, {}, [1, None], [["a"]], "mq.", "mq.tag:", " " * 100, "\ud800"])
def test_scopes_of_any_kind(scope: Any) -> None:
    assert verified(a.token(scope=scope), KEYS, a.options()).grants.tags == ()


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x00", 1, ["a"]])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(BadToken):
        verified(a.token(sub=name), KEYS, a.options())


def test_deep_claims() -> None:
    deep = b'{"alg":"RS256","kid":' + b"[" * 5000 + b"]" * 5000 + b"}"
    import base64

    for header, body in ((deep, b"{}"), (b'{"alg":"RS256","kid":"rsa"}', b"[" * 3000)):
        coded = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header, body, b"sig"))
        with pytest.raises(BadToken):
            verified(coded[:TOKEN_BYTES_MAX], KEYS, a.options())


@settings(max_examples=examples(300))
@given(st.data())
def test_one_other_octet_and_it_is_none(data: st.DataObject) -> None:
    token = bytearray(a.token())
    place = data.draw(st.integers(0, len(token) - 2))  # the last character has bits that mean nothing
    token[place] ^= 1 << data.draw(st.integers(0, 6))
    with pytest.raises(BadToken):
        verified(bytes(token), KEYS, a.options())


@given(st.binary(max_size=200))
def test_any_octets(octets: bytes) -> None:
    with pytest.raises(BadToken):
        verified(octets, KEYS, a.options())


SMALL = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    "octets",
    [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1, null, {}]}', b"[" * 100_000, b"\xff",
     json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}).encode(),
     a.key_set(a.jwk(SMALL, "rsa")), a.key_set(a.jwk(a.RSA, "rsa", alg="HS256"))],
)  # fmt: skip
def test_key_sets_without_a_key(octets: bytes) -> None:
    with pytest.raises(BadKeySet):
        key_set(octets)


def test_a_curve_is_not_taken_for_another() -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    keys = key_set(a.key_set(a.jwk(other, "ec")))
    with pytest.raises(UnknownKey):
        verified(a.token(a.EC, "ES256", "ec"), keys, a.options())
