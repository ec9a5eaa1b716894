"""A real node with TLS on both of its doors, tokens and an audit: what its clients see while its files change, and how
those fare who sign in, well or badly."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from cryptography import x509
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.server.credentials import FAILURES_MAX
from clusterbroker.broker.trial.nodes import free_port
from tests.authority import Authority
from tests.conftest import RunningNode
from tests.support import processes
from tests.unit.broker.oauth2 import authority as tokens

pytestmark = [pytest.mark.faults]
PATIENCE_S = 90.0
RIGHTS = ("configure", "write", "read")


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
    answer = ask(secured.node.data_dir, "user.delete", {"name": "bob"})
    assert answer == {"ok": True}
    assert {"listeners", "name"} <= ask(secured.node.data_dir, "status").keys()  # type: ignore[union-attr]
    secured.node.stop()
    lines = [json.loads(line) for line in secured.audit.read_text().splitlines()]
    assert [(one["user"], one["via"], one["what"], one["outcome"]) for one in lines] == [
        ("alice (by token)", "http", "PUT /api/vhosts/{vhost}", "done"),
        ("", "http", "PUT /api/vhosts/{vhost}", "refused"),
        ("guest", "http", "PUT /api/users/{user}", "done"),
        ("(operator)", "http", "PUT /api/global-parameters/{name}", "done"),
        (f"uid {os.getuid()}", "control.sock", "user.delete", "done"),
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
        process = processes.popen(
            [sys.executable, "-m", "clusterbroker.broker.cli.main", *words],
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        until(lambda: (data / "control.sock").exists() and ask(data, "status"), "it does not begin to wait")
        process.send_signal(signal.SIGHUP)
        answer = ask(data, "status")
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


# -- AMQP -----------------------------------------------------------------------------------------------------


def amqp(place: Secured, user: str = "guest", password: str = "guest", vhost: str = "/") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", place.node.port, vhost, credentials, heartbeat=0)
    )


def scoped(*scopes: str, **claims: Any) -> str:
    return tokens.token(scope=" ".join(f"{tokens.ME}.{scope}" for scope in scopes), **claims).decode()


def test_a_token_signs_in_over_amqp_with_the_rights_of_its_scopes(secured: Secured) -> None:
    connection = amqp(secured, "whoever", scoped("configure:%2F/t-*", "write:%2F/amq.default", "read:%2F/t-*"))
    channel = connection.channel()
    channel.queue_declare("t-orders")
    channel.confirm_delivery()
    channel.basic_publish("", "t-orders", b"1", pika.BasicProperties(user_id="alice"))
    assert channel.basic_get("t-orders", auto_ack=True)[2] == b"1"
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("other")
    assert caught.value.reply_text == (
        "ACCESS_REFUSED - configure access to queue 'other' in vhost '/' refused for user 'alice'"
    )
    shown = secured.ask("/api/connections")[1]
    assert [one["user"] for one in shown] == ["alice"]
    # the same user's next token has its own rights
    connection.update_secret(scoped("configure:%2F/u-*"), "renewed")
    channel = connection.channel()
    channel.queue_declare("u-orders", auto_delete=True)
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("t-orders")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.update_secret(scoped("configure:%2F/*", sub="bob"), "somebody else's")
    assert closed.value.reply_code == 530


def test_a_connection_ends_with_its_token(secured: Secured) -> None:
    """The node lets a token live for 5 s more: the authority's clock may differ."""
    connection = amqp(secured, "", scoped("read:%2F/*", exp=int(time.time()) + 2))
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.sleep(PATIENCE_S)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        "CONNECTION_FORCED - the token of user 'alice' is over",
    )
    with pytest.raises(AMQPConnectionError):
        amqp(secured, "", scoped("read:%2F/*", exp=int(time.time()) - 60))
    until(lambda: "token: it is over (exp)" in secured.node.log, "the log does not say why")


def test_what_the_api_does_by_amqp_is_done_with_the_token(secured: Secured) -> None:
    bearer = "Bearer " + scoped("tag:management", "configure:%2F/t-*", "write:%2F/amq.default", "read:%2F/t-*")
    assert secured.ask("/api/queues/%2F/t-q", bearer, "PUT", {"durable": True})[0] == 201
    message = {"properties": {}, "routing_key": "t-q", "payload": "hello", "payload_encoding": "string"}
    assert secured.ask("/api/exchanges/%2F/amq.default/publish", bearer, "POST", message) == (200, {"routed": True})
    wanted = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    status, got = secured.ask("/api/queues/%2F/t-q/get", bearer, "POST", wanted)
    assert (status, [one["payload"] for one in got]) == (200, ["hello"])
    status, refused = secured.ask("/api/queues/%2F/other", bearer, "PUT", {})
    assert (status, refused["reason"]) == (
        401,
        "configure access to queue 'other' in vhost '/' refused for user 'alice'",
    )
    assert secured.ask("/api/queues/%2F/t-q", bearer, "DELETE")[0] == 204


def test_who_guesses_over_amqp_waits_and_is_told(secured: Secured) -> None:
    assert secured.ask("/api/users/bob", method="PUT", body={"password": "right", "tags": ""})[0] == 201
    assert secured.ask("/api/permissions/%2F/bob", method="PUT", body=dict.fromkeys(RIGHTS, ".*"))[0] == 201
    amqp(secured, "bob", "right").close()
    for number in range(FAILURES_MAX):
        with pytest.raises(AMQPConnectionError):
            amqp(secured, "bob", f"wrong-{number}")
    with pytest.raises(AMQPConnectionError):
        amqp(secured, "bob", "right")
    until(lambda: "too many failed logins" in secured.node.log, "the log does not say why")
    amqp(secured).close()
    path = f"/api/auth/attempts/{secured.ask('/api/overview')[1]['node']}"

    def counted() -> bool:
        rows = [one for one in secured.ask(f"{path}/source")[1] if one["protocol"] == "amqp091"]
        shown = {one["username"]: (one["auth_attempts_failed"], one["auth_attempts_succeeded"]) for one in rows}
        return shown == {"bob": (FAILURES_MAX + 1, 1), "guest": (0, 1)}

    until(counted, "attempts are not shown")
    assert {one["protocol"]: one["auth_attempts"] for one in secured.ask(path)[1]}["amqp091"] == FAILURES_MAX + 3
    assert secured.ask(f"{path}/source", method="DELETE")[0] == 204
    until(lambda: all(one["protocol"] == "http" for one in secured.ask(f"{path}/source")[1]), "they are not forgotten")


@pytest.mark.parametrize("door", ["amqp", "http"])
def test_an_imported_hash_is_replaced_at_a_good_login(secured: Secured, door: str) -> None:
    stored = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + b"right").digest()).decode()
    user = {"password_hash": stored, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management"}
    assert secured.ask("/api/users/old", method="PUT", body=user)[0] == 201
    assert secured.ask("/api/permissions/%2F/old", method="PUT", body=dict.fromkeys(RIGHTS, ".*"))[0] == 201
    basic = "Basic " + base64.b64encode(b"old:right").decode()

    def signs_in() -> None:
        if door == "amqp":
            amqp(secured, "old", "right").close()
        else:
            assert secured.ask("/api/whoami", basic)[0] == 200

    def kept() -> tuple[str, list[str]]:
        found = secured.ask("/api/users/old")[1]
        return found["hashing_algorithm"], found["tags"]

    assert kept() == ("rabbit_password_hashing_sha256", ["management"])
    signs_in()
    until(lambda: kept() == ("scrypt", ["management"]), "it is not replaced")
    signs_in()
    with pytest.raises(AMQPConnectionError):
        amqp(secured, "old", "wrong")
