"""Stored passwords: ours round trip, RabbitMQ's are verified, damaged ones are nobody's."""

import base64
import hashlib

import pytest

from clusterbroker.cluster.passwords import COST_CHEAP, SCRYPT, SHA256, SHA512, hashed, verified, verified_nobody


def rabbit(password: str, name: str) -> str:
    salt = b"\x90\x8d\xc6\x0a"
    return base64.b64encode(salt + hashlib.new(name, salt + password.encode()).digest()).decode()


def test_scrypt_round_trip() -> None:
    stored = hashed("geheim", cost=COST_CHEAP)
    assert stored.startswith("$scrypt$ln=4,r=8,p=1$")
    assert verified("geheim", stored, SCRYPT)
    assert verified(b"geheim", stored, SCRYPT)
    assert not verified("Geheim", stored, SCRYPT)
    assert hashed("geheim", cost=COST_CHEAP) != stored, "each has a salt of its own"
    assert hashed("geheim", cost=COST_CHEAP, salt=b"1" * 16) == hashed("geheim", cost=COST_CHEAP, salt=b"1" * 16)


def test_the_default_cost_is_in_the_stored_string() -> None:
    assert "ln=14," in hashed("x")


def test_rabbitmqs_documented_example() -> None:
    # https://www.rabbitmq.com/docs/passwords: "test12" with salt 908DC60A
    assert verified("test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", SHA256)
    assert not verified("test13", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", SHA256)


@pytest.mark.parametrize("algorithm, name", [(SHA256, "sha256"), (SHA512, "sha512")])
def test_rabbitmqs_hashes_are_verified(algorithm: str, name: str) -> None:
    assert verified("pw", rabbit("pw", name), algorithm)
    assert not verified("pW", rabbit("pw", name), algorithm)


@pytest.mark.parametrize("algorithm", [SCRYPT, SHA256, SHA512, "md5", ""])
@pytest.mark.parametrize("stored", ["", "x", "$scrypt$ln=30,r=8,p=1$aa$bb", "$scrypt$ln=4,r=8,p=1$a$b", "====", "AAAA"])
def test_damaged_or_unknown_is_nobodys(stored: str, algorithm: str) -> None:
    assert not verified("pw", stored, algorithm)


def test_an_empty_password_never_verifies() -> None:
    assert not verified("", rabbit("", "sha256"), SHA256)
    with pytest.raises(ValueError):
        hashed("")
    with pytest.raises(ValueError):
        hashed("x", cost=25)


def test_nobody_costs_time_and_fails() -> None:
    assert not verified_nobody("pw", cost=COST_CHEAP)
