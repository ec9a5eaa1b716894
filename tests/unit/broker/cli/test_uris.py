"""Passwords of URIs come from a file, the environment or a terminal, and need not be words of the command."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterbroker.broker.bridges.places import place
from clusterbroker.broker.cli.exit_codes import Failed
from clusterbroker.broker.cli.uris import uri


@pytest.mark.parametrize("given", ["amqp://u:p@h/v", "amqp://", "amqp://h", "http://u:p@h:1", "amqp://:p@h"])
def test_what_has_a_password_or_no_user_stays(given: str) -> None:
    assert uri(given, "--from", {}) == given


def test_a_file_has_the_uri_in_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_text("amqp://u:p%40@h\nmore")
    assert uri(f"@{file}", "--from", {}) == "amqp://u:p%40@h"
    with pytest.raises(Failed, match="--from"):
        uri(f"@{tmp_path}/none", "--from", {})


def test_a_password_of_the_environment_is_escaped() -> None:
    found = uri("amqps://u%40@h:1/v?verify=verify_none", "--to", {"CLUSTERBROKER_TO_PASSWORD": "p/@:%x"})
    assert (place(found).user, place(found).password, place(found).vhost) == ("u@", "p/@:%x", "v")


def test_a_password_that_is_nowhere_is_missed_and_one_at_a_terminal_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x"))
    with pytest.raises(Failed, match="set CLUSTERBROKER_AMQP_PASSWORD"):
        uri("amqp://u@h", "--amqp", {})
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, hide_input, err: "typed" if hide_input and err else "")
    assert uri("amqp://u@h", "--amqp", {}) == "amqp://u:typed@h"
