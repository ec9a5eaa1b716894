"""The broker under judgement, and the hooks through which the suite prepares it.

Three kinds: our node, started by `Clusterbroker`, a cluster of ours (cluster_target.py), and RabbitMQ as the oracle.
Nothing else in the suite knows which one it talks to, apart from the mark `differs_from_rabbitmq_3_10`. A hook that a
target does not offer raises `HookMissing`, and the tests that need it are skipped with its text.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support import processes

from .oracle import Oracle

START_TIMEOUT_S = 20.0
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

    @property
    def address(self) -> str:
        """Where the next connection goes; of a cluster, the nodes take turns."""
        return self.url

    def provision(self) -> None:
        """Create `USERS`, `VHOSTS` and `POLICIES`; called once, before the first test that needs them."""
        raise HookMissing("provision")

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
        super().__init__(oracle.url, is_oracle=True)
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


class Clusterbroker(Target):
    """Our node in a data directory of its own, through the command line that users have."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.log: IO[bytes] = (directory / "node.log").open("wb")
        self.output: IO[bytes] = (directory / "node.out").open("wb")
        command = [sys.executable, "-m", "broker.cli.main", "start", "--name", "c1"]
        command += ["--data-dir", str(directory / "data"), "--amqp", "127.0.0.1:0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = processes.popen(command, stdout=self.output, stderr=self.log, env=environment)
        self.url = f"amqp://guest:guest@{self._listener()}/"

    def _listener(self) -> str:
        """The start prints one line a listener (`amqp 127.0.0.1:41234`), then `ready`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            said = (self.directory / "node.out").read_text().splitlines()
            if said[-1:] == ["ready"]:
                return next(line.split()[1] for line in said if line.startswith("amqp "))
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
            [sys.executable, "-m", "broker.cli.main", *words, "--data-dir", str(data_dir)],
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
