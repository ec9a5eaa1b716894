"""The authorities that workers are given: certificates, and nothing else that is in their file."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreman_support import spec

from clusterbroker.broker.foreman.authorities import BYTES_MAX, BadAuthorities, read
from clusterbroker.broker.foreman.spec import has_tls, secrets
from tests.authority import Authority


def test_certificates_and_no_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(b"# a comment\n" + authority["root"].read_bytes() + authority["node"].read_bytes())
    assert "PRIVATE" in both.read_text()
    pem = read(both)
    assert pem.count("BEGIN CERTIFICATE") == 2
    assert "PRIVATE" not in pem
    assert "comment" not in pem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory: name a PEM file that the node can read"),
        ("none", "no certificate is in it: name a PEM file"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "a certificate in it cannot be read"),
        ("-----BEGIN CERTIFICATE-----\n" + "A" * BYTES_MAX + "\n-----END CERTIFICATE-----\n", "more than 64 KiB"),
    ],
)
def test_a_file_that_is_of_no_use(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadAuthorities) as heard:
        read(file)
    assert str(heard.value).startswith(f"worker_authorities {file}: ")
    assert said in str(heard.value)
    assert "\n" not in str(heard.value)


def test_only_workers_that_speak_tls_are_given_any() -> None:
    plain, inside = spec(), spec(uris=("amqps://w:p@n1:5671/",), ca_pem="PEM")
    assert (has_tls(plain), has_tls(inside)) == (False, True)
    assert "WORKER_AMQP_CA_PEM" not in secrets(plain)
    assert secrets(inside)["WORKER_AMQP_CA_PEM"] == "PEM"
