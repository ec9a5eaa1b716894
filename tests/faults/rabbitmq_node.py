"""A real RabbitMQ with its management API, as a test of a migration or a bridge needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import rabbitmq_root
from bench.servers import RabbitMqNode, free_port


class ManagedRabbitMq(RabbitMqNode):
    """Kept over `kill` and `start`: directory, ports, messages."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.http = free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command = super()._command()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
        where = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.http}\n"
        (self.directory / "rabbitmq.conf").write_text(where)
        return command

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    @property
    def management(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.http}"


def skip_without_rabbitmq() -> None:
    """For tests against a real one."""
    if rabbitmq_root.installed() is None:
        pytest.skip("RabbitMQ is not installed (see RABBITMQ_ROOT in bench/rabbitmq_root.py)")
