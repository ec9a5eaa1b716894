"""The kept inputs of the fuzzers of AMQP 1.0: decoder and model agree, and no connection harms another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzz_amqp10 import CORPUS, REPLAYS, hunt, replay_codec, replay_front, seeds

INPUTS = [path for target in REPLAYS for path in sorted((CORPUS / target).iterdir())]
ENTERED = [b"AMQP\x03\x01\x00\x00", "SaslMechanisms", "SaslOutcome", b"AMQP\x00\x01\x00\x00", "Open", "Begin"]


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_replay(path: Path) -> None:
    REPLAYS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", REPLAYS)
def test_seeds_are_the_written_ones(target: str) -> None:
    for name, data in seeds(target).items():
        assert (CORPUS / target / name).read_bytes() == data, "run tests/fuzz/fuzz_amqp10.py --write-seeds"


def test_seeds_say_what_they_should() -> None:
    """In one piece and in small ones: else what is replayed says nothing of what it is called."""
    for name, end, transfers in (
        ("plain", ["Close", "flush"], 0),
        ("publishes", ["Detach", "End", "Close", "flush"], 0),
        ("handle_in_use", ["Attach", "Flow", "End", None], 0),
        ("no_such_session", ["Close", None], 0),
        ("management", ["Transfer", None], 1),
        ("reads", [None], 3),
    ):
        for step in (0, 3):
            said = replay_front(seeds("front10")[f"{name}.{step}"])
            assert (said[:6], said[-len(end) :]) == (ENTERED, end), name
            assert said.count("Transfer") >= transfers, name
    said = replay_codec(seeds("codec10")["too_large.0"])
    assert "amqp:link:message-size-exceeded" in str(said)


def test_a_short_hunt_is_the_same_each_time_and_keeps_what_is_new() -> None:
    told: list[str] = []
    found = hunt("codec10", 40, 1, 60.0, told.append)
    assert told[0].endswith("lines")
    assert found == hunt("codec10", 40, 1, 60.0, told.append)


def test_what_an_input_does_is_raised_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> list[object]:
        assert b"AMQP" not in data[9:], "a bug"
        return []

    monkeypatch.setitem(REPLAYS, "codec10", fails)
    with pytest.raises(AssertionError, match="a bug") as raised:
        hunt("codec10", 5000, 1, 60.0, lambda _: None)
    assert raised.value.__notes__[0].startswith("the input: bytes.fromhex(")
