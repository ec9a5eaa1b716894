"""The broker under judgement, and the hooks through which the suite prepares it.

Three kinds: our node, started by `Clusterbroker`, a cluster of ours (cluster_target.py), and RabbitMQ as the oracle.
Nothing else in the suite knows which one it talks to, apart from the mark `differs_from_rabbitmq_3_10`. A hook that a
target does not offer raises `HookMissing`, and the tests that need it are skipped with its text.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx

from tests.authority import Authority
from tests.support import processes
from tests.unit.broker.oauth2 import authority as tokens

from .oracle import Oracle

START_TIMEOUT_S = 20.0
SAMPLE_S = 0.25
"""Tests wait for numbers of the management API."""
PASSWORD = "conformance"


@dataclass(frozen=True)
class User:
    """A user with permissions on vhost `/`; `permissions` is None for a user who may not enter it."""

    name: str
    permissions: tuple[str, str, str] | None
    topic: tuple[str, str, str] | None = None
    """(exchange, write, read): topic permissions."""


@dataclass(frozen=True)
class Policy:
    name: str
    pattern: str
    definition: dict[str, object]
    operator: bool = False


USERS = [
    User("conf-declarer", ("^perm-", "", "")),
    User("conf-writer", ("", "^perm-", "")),
    User("conf-reader", ("", "", "^perm-")),
    User("conf-all", (".*", ".*", ".*")),
    User("conf-half", ("^perm-", "^perm-open", "^perm-open")),
    User("conf-topical", (".*", ".*", ".*"), topic=("perm-topic", "^a\\.", "^a\\.")),
    User("conf-stranger", None),
]
VHOSTS = {"conf-two-queues": {"max-queues": 2}, "conf-closed": {"max-connections": 0}}
POLICIES = [
    Policy("conf-ttl", "^policy-ttl-", {"message-ttl": 80}),
    Policy("conf-long", "^policy-long-", {"message-ttl": 315_360_000_000, "expires": 315_360_000_000}),
    Policy("conf-dlx", "^policy-dlx-", {"dead-letter-exchange": "policy-dlx"}),
    Policy("conf-length", "^policy-length-", {"max-length": 2}, operator=True),
]


class HookMissing(Exception):
    """The target does not offer this hook yet."""


@dataclass
class Target:
    """Base: an address and the hooks. Every hook is run rarely (each costs up to a second on the oracle)."""

    url: str = ""
    is_oracle: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    http: str = ""
    """Of the management API, `http://HOST:PORT`; `guest` administers."""
    tls: list[str] = field(default_factory=list)
    """HOST:PORT of each node that speaks AMQP inside TLS, and asks for certificates without wanting one."""
    authority: Path | None = None
    """The directory of `tests.authority`, whose certificates it shows and takes."""

    @property
    def address(self) -> str:
        """Where the next connection goes; of a cluster, the nodes take turns."""
        return self.url

    def api(self, method: str, path: str, body: object = None) -> httpx.Response:
        """What the management API answers."""
        if not self.http:
            raise HookMissing("a management API")
        return httpx.request(
            method, f"{self.http}/api/{path}", json=body, auth=("guest", "guest"), timeout=30, verify=False
        )

    def members(self) -> list[str]:
        """Names of all members, as the management API's node has them."""
        return [row["name"] for row in self.api("GET", "nodes").raise_for_status().json()]

    def inside_tls(self, certificate: str = "") -> tuple[str, ssl.SSLContext]:
        """The next address where AMQP is spoken inside TLS, and how: with a certificate of this name, or without."""
        if not self.tls or self.authority is None:
            raise HookMissing("AMQP inside TLS")
        self.tls.append(self.tls.pop(0))
        context = ssl.create_default_context(cafile=self.authority / "root.pem")
        if certificate:
            context.load_cert_chain(self.authority / f"{certificate}.pem")
        return f"amqp://guest:guest@{self.tls[-1]}/", context

    def provision(self) -> None:
        """Create `USERS`, `VHOSTS` and `POLICIES`; called once, before the first test that needs them."""
        for user in USERS:
            self._put(f"users/{user.name}", {"password": PASSWORD, "tags": ""})
            if user.permissions:
                named = dict(zip(("configure", "write", "read"), user.permissions, strict=True))
                self._put(f"permissions/%2F/{user.name}", named)
            if user.topic:
                named = dict(zip(("exchange", "write", "read"), user.topic, strict=True))
                exchange = f"exchanges/%2F/{named['exchange']}"  # RabbitMQ's API wants it to be there
                self._put(exchange, {"type": "topic"})
                self._put(f"topic-permissions/%2F/{user.name}", named)
                self.api("DELETE", exchange).raise_for_status()
        for vhost, limits in VHOSTS.items():
            self._put(f"vhosts/{vhost}", {})
            for key, value in limits.items():
                self._put(f"vhost-limits/{vhost}/{key}", {"value": value})
        for policy in POLICIES:
            kind = "operator-policies" if policy.operator else "policies"
            body = {"pattern": policy.pattern, "definition": policy.definition, "apply-to": "queues", "priority": 1}
            self._put(f"{kind}/%2F/{policy.name}", body)

    def _put(self, path: str, body: object) -> None:
        self.api("PUT", path, body).raise_for_status()

    def set_alarm(self, kind: str, on: bool) -> None:
        """Raise or clear the `memory` or `disk` alarm at once."""
        raise HookMissing("set_alarm")

    def set_alarm_at_one_node(self, kind: str, on: bool) -> None:
        """The same, at one of several nodes."""
        raise HookMissing("several nodes")

    def set_consumers_per_channel_max(self, limit: int | None) -> None:
        raise HookMissing("set_consumers_per_channel_max")

    def set_exchanges_max(self, limit: int | None) -> None:
        raise HookMissing("set_exchanges_max")

    def revoke_read(self, user: str) -> None:
        """Take the read permission on `/` from a user."""
        raise HookMissing("revoke_read")

    def stop(self) -> None:
        pass


class RabbitMQ(Target):
    """The oracle; hooks are Erlang expressions run inside the node."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(
            oracle.url, is_oracle=True, http=oracle.http, tls=[oracle.amqps], authority=oracle.directory / "tls"
        )
        self.oracle = oracle

    def provision(self) -> None:
        steps = []
        for user in USERS:
            name = f'<<"{user.name}">>'
            steps.append(f'catch rabbit_auth_backend_internal:add_user({name}, <<"{PASSWORD}">>, <<"t">>)')
            if user.permissions:
                patterns = ", ".join(f'<<"{p}">>' for p in user.permissions)
                steps.append(f'rabbit_auth_backend_internal:set_permissions({name}, <<"/">>, {patterns}, <<"t">>)')
            if user.topic:
                topic = ", ".join(f'<<"{p}">>'.replace("\\", "\\\\") for p in user.topic)
                steps.append(f'rabbit_auth_backend_internal:set_topic_permissions({name}, <<"/">>, {topic}, <<"t">>)')
        for vhost, limits in VHOSTS.items():
            steps.append(f'catch rabbit_vhost:add(<<"{vhost}">>, <<"t">>)')
            steps.append(
                f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{vhost}">>, <<".*">>, <<".*">>, '
                f'<<".*">>, <<"t">>)'
            )
            pairs = ", ".join(f'{{<<"{key}">>, {value}}}' for key, value in limits.items())
            steps.append(f'rabbit_vhost_limit:set(<<"{vhost}">>, [{pairs}], <<"t">>)')
        for policy in POLICIES:
            function = "parse_set_op" if policy.operator else "parse_set"
            definition = json.dumps(policy.definition).replace('"', '\\"')
            steps.append(
                f'rabbit_policy:{function}(<<"/">>, <<"{policy.name}">>, <<"{policy.pattern}">>, <<"{definition}">>, '
                f'"1", <<"queues">>, <<"t">>)'
            )
        self.oracle.evaluate(", ".join(steps) + ".")

    def set_alarm(self, kind: str, on: bool) -> None:
        alarm = f"{{resource_limit, {kind}, node()}}"
        call = f"set_alarm({{{alarm}, []}})" if on else f"clear_alarm({alarm})"
        self.oracle.evaluate(f"rabbit_alarm:{call}.")

    def revoke_read(self, user: str) -> None:
        self.oracle.evaluate(
            f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"/">>, <<".*">>, <<".*">>, <<"">>, <<"t">>).'
        )


def served(authority: Path, http: bool = True) -> dict[str, str]:
    """Settings of a node that also speaks AMQP inside TLS, takes tokens of `tokens`, and speaks HTTP."""
    keys = authority / "keys.json"
    keys.write_bytes(tokens.key_set())
    settings = {
        "CLUSTERBROKER_AMQPS": "127.0.0.1:0",
        "CLUSTERBROKER_TLS__CERTIFICATE": str(authority / "node.pem"),
        "CLUSTERBROKER_TLS__AUTHORITIES": str(authority / "root.pem"),
        "CLUSTERBROKER_TLS__CLIENT_CERTIFICATE": "wanted",
        "CLUSTERBROKER_OAUTH2__RESOURCE_SERVER_ID": tokens.ME,
        "CLUSTERBROKER_OAUTH2__ISSUER": tokens.ISSUER,
        "CLUSTERBROKER_OAUTH2__KEYS_FILE": str(keys),
        "CLUSTERBROKER_HTTP_SAMPLE_S": str(SAMPLE_S),
    }
    return settings | ({"CLUSTERBROKER_HTTP": "127.0.0.1:0"} if http else {})


def listeners(said: str) -> dict[str, str]:
    """What a node prints when it starts: HOST:PORT by protocol. With a JSON log it is a line of that."""
    lines = said.splitlines()
    if said.startswith("{"):
        lines = next((at for line in lines if (at := json.loads(line).get("at"))), [])
    return dict(line.split()[:2] for line in lines if " " in line)  # type: ignore[misc]


class Clusterbroker(Target):
    """Our node in a data directory of its own, through the command line that users have."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.log: IO[bytes] = (directory / "node.log").open("wb")
        self.output: IO[bytes] = (directory / "node.out").open("wb")
        command = [sys.executable, "-m", "clusterbroker.broker.cli.main", "start", "--name", "c1"]
        command += ["--data-dir", str(directory / "data"), "--amqp", "127.0.0.1:0"]
        Authority(directory)
        self.authority = directory
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **served(self.authority)}
        self.process = processes.popen(command, stdout=self.output, stderr=self.log, env=environment)
        said = self._listeners()
        self.url, self.http, self.tls = f"amqp://guest:guest@{said['amqp']}/", f"http://{said['http']}", [said["amqps"]]

    def _listeners(self) -> dict[str, str]:
        """The start prints one line a listener (`amqp 127.0.0.1:41234`), then `ready`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            said = (self.directory / "node.out").read_text()
            if said.endswith("ready\n"):
                return listeners(said)
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(f"the node did not become ready: {self.node_log()[-2000:]}")

    def node_log(self) -> str:
        return (self.directory / "node.log").read_text(errors="replace")

    def command(self, *words: str) -> str:
        """Run `clusterbroker WORDS --data-dir DIR` beside the running node."""
        return self._command_at(self.directory / "data", *words)

    @staticmethod
    def _command_at(data_dir: Path, *words: str) -> str:
        finished = processes.run(
            [sys.executable, "-m", "clusterbroker.broker.cli.main", *words, "--data-dir", str(data_dir)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if finished.returncode == 2:
            raise HookMissing(f"clusterbroker {' '.join(words)}: {finished.stderr.strip()[-200:]}")
        if finished.returncode:
            raise RuntimeError(f"clusterbroker {' '.join(words)}: {finished.stdout}{finished.stderr}")
        return finished.stdout

    def provision(self) -> None:
        for user in USERS:
            self.command("user", "add", user.name, PASSWORD)
            if user.permissions:
                self.command("user", "permit", user.name, "/", *user.permissions)
            if user.topic:
                self.command("user", "permit-topic", user.name, "/", *user.topic)
        for vhost, limits in VHOSTS.items():
            self.command("vhost", "add", vhost)
            self.command("user", "permit", "guest", vhost, ".*", ".*", ".*")
            for key, value in limits.items():
                self.command("vhost", "limit", vhost, key, str(value))
        for policy in POLICIES:
            flag = ["--operator"] if policy.operator else []
            self.command("policy", "set", policy.name, policy.pattern, json.dumps(policy.definition), *flag)

    def set_alarm(self, kind: str, on: bool) -> None:
        self.command("alarm", "set" if on else "clear", kind)

    def set_consumers_per_channel_max(self, limit: int | None) -> None:
        self.command("limit", "consumers-per-channel", str(limit or 0))

    def set_exchanges_max(self, limit: int | None) -> None:
        self.command("limit", "exchanges", str(limit or 0))

    def revoke_read(self, user: str) -> None:
        self.command("user", "permit", user, "/", ".*", ".*", "")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.log.close()
        self.output.close()
