"""The fuzzer's seeds, and whatever it found once, through the codec and its model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fuzz_codec
import pytest

from clusterbroker.broker.wire.amqp091 import codec as codec_compiled
from tests.model import codec as codec_model

INPUTS = sorted(fuzz_codec.CORPUS.iterdir())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_replay(path: Path) -> None:
    fuzz_codec.replay(path.read_bytes(), codec_model, codec_compiled)


def test_seeds_are_the_written_ones_and_say_what_they_should() -> None:
    said = {}
    for name, data in fuzz_codec.seeds().items():
        assert (fuzz_codec.CORPUS / name).read_bytes() == data, "run tests/fuzz/fuzz_codec.py --write-seeds"
        events = [event for events, _, _ in fuzz_codec.replay(data, codec_model, codec_compiled) for event in events]
        said[name] = events[-1][:2] if events else None
    assert {name: said[f"{name}.0"] for name in ("handshake", "publishes", "interleaved", "oversize")} == {
        "handshake": ("method", 1),
        "publishes": ("published", 1),
        "interleaved": ("published", 2),
        "oversize": ("published", 1),
    }
    faults = {
        "acks": 505,
        "dead_lengths": 501,
        "length_of_header_table": 502,
        "too_much_at_once": 506,
        "bad_end": 501,
        "bad_name": 502,
        "bad_address": 502,
        "wrong_order": 505,
        "http": 501,
        "body_size_of_64_bits": None,
    }
    for name, code in faults.items():
        assert said[f"{name}.0"] == said[f"{name}.3"] == (code and ("fault", code)), name


def test_a_short_run_of_the_fuzzer(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, fuzz_codec.__file__, "-runs=300", "-seed=1", str(tmp_path), str(fuzz_codec.CORPUS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=dict(os.environ))
    assert run.returncode == 0, run.stderr
    assert "Done 300 runs" in run.stderr
