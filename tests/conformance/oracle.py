"""A private RabbitMQ, started as the oracle of the conformance suite.

The suite asserts what `amqp-rules.md` says. Before it may judge our node it has to be right about RabbitMQ itself,
so it also runs against the distribution's RabbitMQ (3.10). This module starts one that shares nothing with any other
RabbitMQ on the machine: its own home (and so its own Erlang cookie), node name, ports and directories.

    python -m tests.conformance.oracle DIR     starts one in DIR, prints two environment settings, runs until ^C
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.rabbitmq_root import PROGRAMS
from clusterbroker.broker.trial.nodes import free_port
from tests.authority import Authority

START_TIMEOUT_S = 90.0

SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users.guest = true
max_message_size = 16777216
log.file.level = warning
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 50MB
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {tls}/root.pem
ssl_options.certfile = {tls}/node.pem
ssl_options.keyfile = {tls}/node.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
management.tcp.ip = 127.0.0.1
management.tcp.port = {http_port}
"""
PLUGINS = ("rabbitmq_consistent_hash_exchange", "rabbitmq_management", "rabbitmq_auth_mechanism_ssl")


def installed() -> bool:
    return (PROGRAMS / "rabbitmq-server").exists()


class Oracle:
    """One private RabbitMQ node in `directory`; the directory also holds what `rabbitmqctl` needs to reach it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        ports = (self.directory / "ports").read_text().split()
        return {
            "PATH": "/usr/lib/erlang/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"oracle{ports[0]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": ports[0],
            "RABBITMQ_DIST_PORT": ports[1],
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
        }

    @property
    def port(self) -> int:
        return int((self.directory / "ports").read_text().split()[0])

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def amqps(self) -> str:
        """HOST:PORT of AMQP inside TLS."""
        return f"127.0.0.1:{(self.directory / 'ports').read_text().split()[2]}"

    @property
    def http(self) -> str:
        """Of the management API."""
        return f"http://127.0.0.1:{(self.directory / 'ports').read_text().split()[3]}"

    def start(self) -> None:
        """Start the node and wait until it accepts; `TimeoutError` with the log's end if it does not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in ("mnesia", "log"):
            (self.directory / name).mkdir(exist_ok=True)
        ports = [free_port() for _ in range(4)]
        (self.directory / "ports").write_text(" ".join(map(str, ports)))
        tls = self.directory / "tls"
        tls.mkdir(exist_ok=True)
        Authority(tls)
        settings = SETTINGS.format(port=ports[0], tls_port=ports[2], http_port=ports[3], tls=tls)
        (self.directory / "rabbitmq.conf").write_text(settings)
        (self.directory / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")
        (self.directory / "rabbitmq-env.conf").write_text("")
        output = (self.directory / "output").open("wb")
        self.process = subprocess.Popen(
            [PROGRAMS / "rabbitmq-server"],
            env=self.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if b"completed with" in (self.directory / "output").read_bytes():
                return
            time.sleep(0.1)
        raise TimeoutError(f"RabbitMQ did not start:\n{(self.directory / 'output').read_text()[-2000:]}")

    def evaluate(self, erlang: str) -> str:
        """Run an Erlang expression inside the node (about one second)."""
        finished = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "-q", "eval", erlang],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if finished.returncode:
            raise RuntimeError(f"{erlang}: {finished.stdout}{finished.stderr}")
        return finished.stdout

    def stop(self) -> None:
        """Stop the node by its own process group."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(20)


def main() -> None:
    oracle = Oracle(Path(sys.argv[1]).resolve())
    oracle.start()
    print(f"export CONFORMANCE_URL={oracle.url} CONFORMANCE_ORACLE={oracle.directory}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        oracle.stop()


if __name__ == "__main__":
    main()
