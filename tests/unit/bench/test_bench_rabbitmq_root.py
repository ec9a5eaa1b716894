"""RabbitMQ out of a root of its own is looked for, and run, inside that root."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import rabbitmq_root


def test_the_root_of_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_ROOT", str(tmp_path))
    assert rabbitmq_root.installed() is None
    program = tmp_path / "usr/lib/rabbitmq/bin/rabbitmqctl"
    program.parent.mkdir(parents=True)
    program.touch()
    inside = rabbitmq_root.installed("rabbitmqctl")
    assert inside == "/usr/lib/rabbitmq/bin/rabbitmqctl"
    argv = rabbitmq_root.command([inside, "status"], Path("/srv/node"))
    assert argv[:2] == ["unshare", "--mount"]
    assert argv[-4:] == [str(tmp_path), "/srv/node", inside, "status"]


def test_this_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RABBITMQ_ROOT", raising=False)
    assert rabbitmq_root.command(["epmd"], Path("/srv/node")) == ["epmd"]
