"""`clusterbroker pools drivers`: a probe by each template, with real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterbroker.broker.cli.pools import app

USER = 'user = "root"' if os.geteuid() == 0 else ""


def said(tmp_path: Path, text: str, mode: int = 0o600) -> tuple[int, list[str], str]:
    """Exit code, lines, what is on stderr."""
    config = tmp_path / "broker.toml"
    config.write_text(text)
    config.chmod(mode)
    done = CliRunner().invoke(app, ["drivers", "--config", str(config)])
    return done.exit_code, done.stdout.splitlines(), done.stderr


def test_each_template_is_tried(tmp_path: Path) -> None:
    text = f"""
[pools.by-hand]
[pools.core]
driver = "subprocess"
command = ["/bin/sleep", "600"]
{USER}
[pools.short]
driver = "subprocess"
command = ["/bin/true"]
{USER}
"""
    code, lines, _ = said(tmp_path, text)
    assert code == 0
    assert [line.split()[:2] for line in lines] == [
        ["by-hand", "noop"],
        ["core", "subprocess"],
        ["short", "subprocess"],
    ]
    assert all("started and stopped in" in line for line in lines)


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.foreman.drivers.choice.is_there", lambda module: False)
    text = f"""
[pools.core]
driver = "subprocess"
command = ["/not/there"]
{USER}
[pools.unit]
driver = "systemd"
command = ["/bin/true"]
"""
    code, lines, _ = said(tmp_path, text)
    assert code == 1
    assert "'/not/there' cannot be started" in lines[0]
    assert lines[1].endswith("needs dbus-fast: pip install 'clusterbroker[systemd]'")


@pytest.mark.parametrize(
    "text, mode, why",
    [
        ("[pools.core]\n", 0o666, "others may write it (mode 0666): chmod go-w"),
        ("", 0o600, "there is no section [pools.NAME]: write one"),
        ('[pools.core]\ncommand = "x"\n', 0o600, "it runs without a shell"),
    ],
)
def test_a_file_that_is_of_no_use(tmp_path: Path, text: str, mode: int, why: str) -> None:
    code, lines, errors = said(tmp_path, text, mode)
    assert (code, lines, errors.count("\n")) == (2, [], 1)
    assert why in errors
