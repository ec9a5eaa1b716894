"""A real node with TLS on both of its doors, tokens and an audit: what its clients see while its files change."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.server.admin import ask
from broker.trial.nodes import free_port
from tests.authority import Authority
from tests.conftest import RunningNode
from tests.unit.broker.oauth2 import authority as tokens

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]
PATIENCE_S = 30.0


class Secured:
    """A started node, and a client that trusts its authority."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.serial = self.authority.make("node", days=20)
        self.keys = directory / "keys.json"
        self.keys.write_bytes(tokens.key_set())
        self.audit = directory / "audit.log"
        file = directory / "node.toml"
        file.write_text(
            f'http = "127.0.0.1:0"\nhttps = "127.0.0.1:0"\namqps = "127.0.0.1:0"\n'
            f'[tls]\ncertificate = "{self.authority["node"]}"\nminimum_version = "1.3"\n'
            f'[oauth2]\nresource_server_id = "{tokens.ME}"\nissuer = "{tokens.ISSUER}"\nkeys_file = "{self.keys}"\n'
            f'[audit]\nfile = "{self.audit}"\n'
        )
        self.node = RunningNode(directory)
        self.node.start("--config", str(file))
        self.ports = {
            protocol: int(where.rpartition(":")[2])
            for protocol, where in (line.split() for line in self.node.said if ":" in line)
        }
        self.context = ssl.create_default_context(cafile=self.authority["root"])

    def shown(self, protocol: str) -> str:
        """The serial number that a new client sees."""
        pem = ssl.get_server_certificate(("127.0.0.1", self.ports[protocol]), timeout=10)
        return f"{x509.load_pem_x509_certificate(pem.encode()).serial_number:x}"

    def ask(self, path: str, credential: str = "", method: str = "GET", body: Any = None) -> tuple[int, Any]:
        headers = {"authorization": credential or "Basic " + base64.b64encode(b"guest:guest").decode()}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["content-type"] = "application/json"
        url = f"https://localhost:{self.ports['https']}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    place = Secured(tmp_path)
    yield place
    place.node.stop()


def until(reached: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def test_certificates_are_replaced_without_a_restart(secured: Secured) -> None:
    assert {secured.shown("https"), secured.shown("amqps")} == {secured.serial}
    reader, writer, loop = _held(secured.ports["amqps"], secured.context)
    # 1. the node notices by itself
    second = secured.authority.make("node", days=400)
    for protocol in ("amqps", "https"):
        until(lambda protocol=protocol: secured.shown(protocol) == second, f"{protocol} goes on with the old one")
    # 2. a broken file keeps it
    secured.authority["node"].write_bytes(b"broken")
    assert secured.node.process is not None
    os.kill(secured.node.process.pid, signal.SIGHUP)
    until(lambda: secured.node.log.count("tls.kept") >= 2, "neither process has said so")
    assert {secured.shown("https"), secured.shown("amqps")} == {second}
    assert secured.node.process.poll() is None
    # 3. told to
    third = secured.authority.make("node", days=400)
    answer = secured.node.command("reload-certificates")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"serial {third} until " in answer.stdout
    assert secured.shown("amqps") == third
    until(lambda: secured.shown("https") == third, "https goes on with the old one")
    # the client that was there from the beginning has noticed nothing
    writer.write(b"AMQP\x00\x00\x09\x01")
    assert loop.run_until_complete(asyncio.wait_for(reader.readexactly(1), 10)) == b"\x01"
    writer.close()
    loop.close()


def _held(port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]:
    loop = asyncio.new_event_loop()
    reader, writer = loop.run_until_complete(
        asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    )
    return reader, writer, loop


def test_the_end_of_certificates_is_foreseen(secured: Secured) -> None:
    path = "/api/health/checks/certificate-expiration"
    assert secured.ask(f"{path}/2/weeks") == (200, {"status": "ok"})
    status, found = secured.ask(f"{path}/1/months")
    assert (status, found["status"], found["reason"]) == (503, "failed", "Certificates expiring")
    shown = {one["protocol"]: one for one in found["expired"]}
    assert sorted(shown) == ["amqp/ssl", "https"]
    assert shown["https"]["port"] == secured.ports["https"]
    assert shown["amqp/ssl"]["certfile"].endswith("node.pem")
    assert secured.ask(f"{path}/1/fortnights")[0] == 400
    assert secured.ask(f"{path}/soon/days")[0] == 400
    url = f"http://127.0.0.1:{secured.ports['http']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    told = [line for line in text.splitlines() if line.startswith("clusterbroker_certificate_expires_seconds{")]
    assert len(told) == 2
    assert all(abs(float(line.rpartition(" ")[2]) - time.time() - 20 * 86_400) < 600 for line in told)


def test_tokens_deeds_and_the_audit(secured: Secured) -> None:
    bearer = f"Bearer {tokens.token().decode()}"
    assert secured.ask("/api/whoami", bearer) == (200, {"name": "alice", "tags": ["administrator"]})
    assert secured.ask("/api/vhosts/new", bearer, "PUT", {})[0] == 201
    over = f"Bearer {tokens.token(exp=int(time.time()) - 60).decode()}"
    assert secured.ask("/api/vhosts/newer", over, "PUT", {})[0] == 401
    assert secured.ask("/api/users/bob", method="PUT", body={"password": "very-secret", "tags": ""})[0] == 201
    assert secured.node.command("global-parameters", "set", "g", '"very-secret"').returncode == 0, "through http.sock"
    answer = ask(secured.node.data_dir, {"do": "user.delete", "name": "bob"})
    assert answer == {"ok": True}
    assert {"listeners", "name"} <= ask(secured.node.data_dir, {"do": "status"}).keys()  # type: ignore[union-attr]
    secured.node.stop()
    lines = [json.loads(line) for line in secured.audit.read_text().splitlines()]
    assert [(one["user"], one["via"], one["what"], one["outcome"]) for one in lines] == [
        ("alice", "http", "PUT /api/vhosts/{vhost}", "done"),
        ("", "http", "PUT /api/vhosts/{vhost}", "refused"),
        ("guest", "http", "PUT /api/users/{user}", "done"),
        ("(operator)", "http", "PUT /api/global-parameters/{name}", "done"),
        (f"uid {os.getuid()}", "admin.sock", "user.delete", "done"),
    ]
    assert lines[1]["why"] == "token: it is over (exp)"
    assert lines[3]["from"] == "http.sock"
    for text in (secured.audit.read_text(), secured.node.log):
        assert "very-secret" not in text
        assert bearer.split()[1] not in text


def test_a_node_that_waits_for_others_is_not_ended_by_the_word_to_reload(tmp_path: Path) -> None:
    Authority(tmp_path)
    peers = ",".join(f"{name}@127.0.0.1:{free_port()}" for name in "abc")
    data = tmp_path / "data"
    words = ["start", "--name", "a", "--data-dir", str(data), "--amqp", "127.0.0.1:0", "--peers", peers]
    words += ["--secret-file", str(tmp_path / "secret")]
    (tmp_path / "secret").write_text("5" * 64)
    (tmp_path / "secret").chmod(0o600)
    environment = {
        "CLUSTERBROKER_AMQPS": "127.0.0.1:0",
        "CLUSTERBROKER_TLS__CERTIFICATE": str(tmp_path / "node.pem"),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker.cli.main", *words], stderr=log, env={**os.environ, **environment}
        )
    try:
        until(lambda: (data / "admin.sock").exists() and ask(data, {"do": "status"}), "it does not begin to wait")
        process.send_signal(signal.SIGHUP)
        answer = ask(data, {"do": "status"})
        assert answer is not None
        assert answer["state"] == "waits"
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_old_tls_is_not_spoken(secured: Secured) -> None:
    old = ssl.create_default_context(cafile=secured.authority["root"])
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for protocol in ("https", "amqps"):
        with pytest.raises((ssl.SSLError, OSError)):
            _held(secured.ports[protocol], old)


def test_a_node_with_a_bad_certificate_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    node = RunningNode(tmp_path)
    with pytest.raises(RuntimeError, match="exit code 1") as caught:
        node.start("--https", "127.0.0.1:0", environment={"CLUSTERBROKER_TLS__CERTIFICATE": str(tmp_path / "bad.pem")})
    assert "holds no certificate" in str(caught.value)
    assert "Traceback" not in str(caught.value)
