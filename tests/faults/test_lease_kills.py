"""Leases at three real nodes whose owners are killed (kill -9) between and amid words and reads: a range that is asked
for again has the same messages, and each message is committed once, or returned."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from itertools import pairwise

import pytest

pytest.importorskip("pyarrow")

from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.connection import Refused
from clusterbroker.pipeline.leases import Lease, LeasedReader, Range
from clusterbroker.pipeline.offsets import Span
from clusterbroker.pipeline.options import Options, parse
from tests.faults.staging import Nodes

ROWS = 4000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    running = Nodes(tmp_path_factory.mktemp("cluster"))
    running.begin()
    yield running
    running.end()
    for node in running.nodes.values():
        assert "Traceback" not in node.log.read_text(errors="replace"), node.log


class Reader:
    """One start of a query."""

    def __init__(self, nodes: Nodes, queue: str, first: str) -> None:
        self._nodes = nodes
        self.options = self.options_at(queue, first)
        self._line = Line(self.options, "reader")
        self.lease = Lease(self._line, self.options)

    def options_at(self, queue: str, first: str) -> Options:
        given = {"endpoints": self._nodes.endpoints(first), "queue": queue, "consumerName": "reader"}
        return parse({**given, "reconnectAttempts": "50"}, reads=True)

    def take(self, life: str | None, start: int | None, rows: int) -> Range:
        found = self.lease.take(life, start, rows)
        assert found is not None, "it is the same queue"
        return found

    def read(self, found: Range, first: str, shot: str = "") -> list[tuple[int, bytes]]:
        """All of the range; `shot` is killed when some of it has come."""
        options = self.options_at(str(self.options.queue), first)
        reader = LeasedReader(
            options, Span(str(options.queue), found.life, found.start, found.end), ("value", "offset")
        )
        rows: list[tuple[int, bytes]] = []
        try:
            for records in reader:
                value, offset = records.columns["value"], records.columns["offset"]
                assert value.offsets is not None
                bodies = [value.data[low:high] for low, high in pairwise(array("i", value.offsets))]
                rows += zip(array("q", offset.data), bodies, strict=True)
                if shot and shot in self._nodes.alive:
                    self._nodes.shoot(shot)
        finally:
            reader.close()
        return rows

    def close(self) -> None:
        self._line.close()


def fill(nodes: Nodes, queue: str) -> None:
    nodes.declare(queue, queue)
    with nodes.connected("b") as connection:
        channel = connection.channel()
        channel.tx_select()
        for number in range(ROWS):
            channel.basic_publish("", queue, b"%d" % number * 20)
        channel.tx_commit()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_owner_is_killed_again_and_again_and_every_row_is_committed_once(nodes: Nodes, seed: int) -> None:
    queue, chance = f"leased{seed}", random.Random(seed)
    for name in "abc":
        if name not in nodes.alive:
            nodes.revive(name)
    fill(nodes, queue)
    reader = Reader(nodes, queue, "b")
    committed: list[tuple[int, bytes]] = []
    life: str | None = None
    start: int | None = None
    deaths = 0
    before: Reader | None = None
    while len(committed) < ROWS - 500:
        owner = nodes.owner(queue)
        moment = chance.choice(["before the word", "amid the reading", "after it", "never"])
        if moment == "before the word":
            nodes.shoot(owner)
        found = reader.take(life, start, 700)
        assert found.rows > 0
        rows = reader.read(found, chance.choice("abc"), owner if moment == "amid the reading" else "")
        assert len(rows) == found.rows
        if moment == "after it":
            nodes.shoot(owner)
        if chance.random() < 0.5:  # it starts again, and its batch with it
            if before is not None:
                before.close()
            before, reader = reader, Reader(nodes, queue, chance.choice("abc"))
            again = reader.take(found.life, found.start, 700)
            assert again[:4] == found[:4]
        assert reader.read(found, chance.choice("abc")) == rows, "the same messages"
        committed += rows
        life, start = found.life, found.end
        for name in "abc":
            if name not in nodes.alive:
                nodes.revive(name)
                deaths += 1
        if before is not None:  # a start that was replaced, and whoever owns the queue by now
            with pytest.raises(Refused, match=r"taken over by run"):
                before.lease.take(None, None, 1)
            with pytest.raises(Refused, match=r"taken over by run"):
                before.lease.release()
    assert deaths >= 2
    assert before is not None
    before.close()
    reader.take(life, start, 1)
    reader.lease.release()
    reader.close()
    rest = nodes.drained(queue)
    assert [body for _, body in committed] + rest == [b"%d" % number * 20 for number in range(ROWS)]
