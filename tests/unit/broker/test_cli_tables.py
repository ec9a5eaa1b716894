"""Tables of members and queues: a cell stays whole however narrow the terminal is."""

from __future__ import annotations

import json

import pytest

from clusterbroker.broker.cli.administration import show

ROW = {
    "name": "a", "address": "one.example:5673", "amqp": ["amqp://one.example:5672"], "alive": True, "voter": True,
    "leader": False, "draining": False, "witness": False, "owns": 3, "holds": 5, "trouble": None,
}  # fmt: skip


def test_no_cell_is_cut_or_folded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show([ROW, {**ROW, "name": "b", "trouble": "Connection refused, and again"}], False)
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == [*list(ROW)[:8], "leads", "replicas", "trouble"]
    assert first == ["a", "one.example:5673", "amqp://one.example:5672", "yes", "yes", "no", "no", "no", "3", "5", "-"]
    assert second[-4:] == ["Connection", "refused,", "and", "again"]


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([ROW], True)
    assert json.loads(capsys.readouterr().out) == [ROW]


def test_no_name_drives_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show([{**ROW, "name": "a\x1b[2J"}], False)
    assert "a\\x1b[2J" in capsys.readouterr().out


def test_facts_are_words_and_numbers_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    alert = {"kind": "copying.paused", "subject": "a", "text": "an operator did", "since_ms": 1}
    scrub = {"percent": 12.4, "passes": 1, "bytes": 5 << 20, "found": 1}
    show(
        {
            "name": "a", "alerts": [alert], "scrub": scrub, "copying_rate_bytes": 0, "copying_paused": True,
            "resident_bytes": 3 << 20, "leader": "b", "waits_for": [], "queues_owned": 1234,
        },
        False,
        leader="metadata_leader",
    )  # fmt: skip
    told = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert {name: value.strip() for name, value in told.items()} == {
        "name": "a",
        "alerts": "copying.paused a: an operator did",
        "scrub": "12 % of a pass, 1 before, 5.0 MiB read, 1 damaged place",
        "synchronisation rate": "unlimited",
        "synchronisation paused": "yes",
        "memory": "3.0 MiB",
        "metadata leader": "b",
        "waits for": "-",
        "leads": "1,234",
    }
