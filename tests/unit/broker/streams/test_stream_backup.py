"""Copies of a data directory with a stream: what is read of them, and what a node has that starts with one."""

from __future__ import annotations

import json
import shutil
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker import Broker
from tests.support import processes
from tests.unit.broker.streams.test_stream_node import declare, offsets, publish, read

pytestmark = [pytest.mark.processes]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        yield broker


def journal(*words: str) -> Any:
    """In a process of its own, for a node of this one has its index open."""
    done = processes.run(
        [sys.executable, "-m", "clusterbroker.broker.cli.main", "journal", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def copied(directory: Path, copy: Path) -> Path:
    """As a user does it: once more, if the node has put a file away meanwhile."""
    while True:
        try:
            return Path(shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.sock")))
        except shutil.Error:
            assert directory.exists()
            shutil.rmtree(copy)


def read_by_command(directory: Path) -> list[int]:
    """The numbers of the messages, oldest first, after all of it was proved."""
    journal("check", str(directory))
    (told,) = [one for one in json.loads(journal("ls", str(directory), "--json")) if one["name"] == "s"]
    out = directory.parent / f"{directory.name}.jsonl"
    journal("export", str(directory), "s", "--to", str(out))
    numbers = [int(b64decode(json.loads(line)["body"]).split()[0]) for line in out.read_text().splitlines()]
    assert told["ready"] == len(numbers)
    return numbers


def test_a_copy_of_a_stopped_node_is_the_stream(node: Broker, tmp_path: Path) -> None:
    declare(node, **{"x-max-length-bytes": 2 << 20})
    for first in range(0, 1000, 250):
        publish(node, first, 250, tmp_path)
    publish(node, 1000, 5)
    node.stop()
    copy = Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
    numbers = read_by_command(copy)
    assert numbers == list(range(numbers[0], 1005))
    with Broker(data_dir=copy) as again:
        told = offsets(again)
        assert (told["first"], told["next"]) == (numbers[0], 1005)
        assert read(again) == {number: number for number in numbers}
        publish(again, 1005, 1)
        assert read(again, 1000) == {number: number for number in range(1000, 1006)}
    node.start()
    assert offsets(node)["next"] == 1005, "the copy is another one's"


def test_a_living_node_and_its_copy_are_read_from_outside(node: Broker, tmp_path: Path) -> None:
    """Beside a node that writes, some of the newest may be left out; nothing is damaged, and nothing comes twice."""
    declare(node)
    publish(node, 0, 300, tmp_path)
    seen: list[int] = []
    for first in range(300, 900, 200):
        publish(node, first, 200)
        numbers = read_by_command(tmp_path / "data")
        (tmp_path / "data.jsonl").unlink()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= len(seen)
        seen = numbers
    publish(node, 900, 1, tmp_path)
    copy = copied(tmp_path / "data", tmp_path / "copy")
    assert read_by_command(copy) == list(range(901))
    shown = journal("inspect", str(copy), "s", "--limit", "2").splitlines()
    assert "streams/" in shown[1]
    assert shown[-1] == "only the first 2 are shown: --limit 0 shows all"
    inspected = json.loads(journal("inspect", str(copy), "s", "--limit", "0", "--json"))
    assert [one["seq"] for one in inspected] == list(range(1, 902))
