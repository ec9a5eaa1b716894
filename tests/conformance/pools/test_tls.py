"""Workers, and callers, of a node that speaks TLS alone: whose certificates they trust."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from clusterbroker_workers import Pool, Unserved
from tests.authority import LOCALHOST, Authority
from tests.faults.pools import WORKER, PoolNodes, eventually, running, told

pytestmark = pytest.mark.processes


class TlsNode(PoolNodes):
    """Its certificate names `localhost` alone, which it is advertised as, and not where it listens."""

    def __init__(self, directory: Path, authority: Authority, trusted: Path) -> None:
        self.said = directory / "said"
        words = f"exec {sys.executable} -m clusterbroker_workers {WORKER} 2>> {self.said}"
        super().__init__(directory, "a", command=["/bin/sh", "-c", words])
        self.port = free_port()
        self.url_of_all = f"amqps://guest:guest@localhost:{self.port}/%2F"
        self.settings = {
            "CLUSTERBROKER_AMQPS": f"{LOOPBACK}:{self.port}",
            "CLUSTERBROKER_ADVERTISED_AMQP": f"amqps://localhost:{self.port}",
            "CLUSTERBROKER_TLS__CERTIFICATE": str(authority["named"]),
            "CLUSTERBROKER_WORKER_AUTHORITIES": str(trusted),
        }

    def start(self, *names: str) -> None:
        assert not names
        words = ("--config", str(self.config), "--http", f"{LOOPBACK}:{self.ports['a']}", "--amqp", "")
        self.fleet.launch("a", *words, **self.settings)
        eventually("it is ready", lambda: self.api("GET", "overview").is_success)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.make("named", names=[LOCALHOST])
    return made


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("another"))


@pytest.fixture(scope="module")
def node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    with running(TlsNode(tmp_path_factory.mktemp("node"), authority, authority["root"])) as made:
        made.declare()
        yield made


def test_a_worker_trusts_the_authorities_of_its_node(node: TlsNode, authority: Authority) -> None:
    with Pool(node.url_of_all, "core", ca=authority["root"]) as caller:
        worker = told(caller.call("42", timeout_s=60))["worker"]
    environment = node.processes()[worker].environ()
    assert environment["WORKER_AMQP_URI"].startswith("amqps://worker")
    assert environment["WORKER_AMQP_URI"].endswith(f"@localhost:{node.port}/%2F")
    assert f"@{LOOPBACK}:{node.port}/" in environment["WORKER_AMQP_URIS"]
    assert "amqp://" not in environment["WORKER_AMQP_URIS"]
    pem = environment["WORKER_AMQP_CA_PEM"]
    assert pem.startswith("-----BEGIN CERTIFICATE-----")
    assert "PRIVATE" in authority["root"].read_text()
    assert "PRIVATE" not in pem


def test_a_caller_trusts_what_it_is_told_and_nothing_else(
    node: TlsNode, authority: Authority, another: Authority
) -> None:
    for more in ({"ca": another["root"]}, {}):
        with Pool(node.url_of_all, "core", **more) as caller, pytest.raises(ConnectionError) as heard:
            caller.call("42", timeout_s=60)
        assert str(heard.value).startswith(f"no certificate is trusted: localhost:{node.port}: ")
        assert "\n" not in str(heard.value)
    elsewhere = node.url_of_all.replace("localhost", LOOPBACK)
    with (
        Pool(elsewhere, "core", ca=authority["root"]) as caller,
        pytest.raises(ConnectionError, match="IP address mism"),
    ):
        caller.call("42", timeout_s=60)
    with Pool([elsewhere, node.url_of_all], "core", ca=authority["root"]) as caller:
        assert told(caller.call("42", timeout_s=60))["key"] == "42", "the other address"


def test_a_file_of_callers_that_is_none(node: TlsNode, tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("none")
    for name in ("none.pem", "absent.pem"):
        with pytest.raises(ValueError, match=f"ca {tmp_path / name}: .*: give PEM with the authority"):
            Pool(node.url_of_all, "core", ca=tmp_path / name)


def test_another_authority_fails_in_one_line(authority: Authority, another: Authority, tmp_path: Path) -> None:
    with running(TlsNode(tmp_path, authority, another["root"])) as node:
        node.declare(start_failures_max=1)
        with Pool(node.url_of_all, "core", ca=authority["root"]) as caller, pytest.raises(Unserved) as heard:
            caller.call("42", timeout_s=60)
        assert heard.value.reason == "start_failed"
        assert "78" in heard.value.detail
        (line,) = node.said.read_text().splitlines()
        assert f"no certificate is trusted: localhost:{node.port}: " in line
        assert "give the authority that signed it (WORKER_AMQP_CA_PEM" in line
