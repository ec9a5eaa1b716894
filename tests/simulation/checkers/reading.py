"""I23 to I25: what readers of streams are shown."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from clusterbroker.journal.layout import ENQ, SET
from tests.simulation.checkers.history import Checker
from tests.simulation.workload import KEPT

if TYPE_CHECKING:
    from tests.simulation.sim_journal import Written
    from tests.simulation.site import Site
    from tests.simulation.streams import StreamReader


class I23OneOffsetOneMessage(Checker):
    """An offset means the same message for ever, from when it is committed; only what is committed is shown."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._known: dict[tuple[int, int], bytes] = {}

    def _same(self, queue: str, queue_id: int, seq: int, body: bytes, how: str) -> None:
        known = self._known.setdefault((queue_id, seq), body)
        self.require(known == body, f"offset {seq - 1} of {queue} is {body!r} when it is {how}, and was {known!r}")

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        queue = self.history.queue_name(queue_id)
        if self.world.is_stream(queue):
            for record in records:
                if record.kind == ENQ:
                    self._same(queue, queue_id, record.seq, record.body, "committed")

    def read(self, reader: StreamReader, offset: int, body: bytes) -> None:
        queue_id = self.history.queue_id(reader.queue)
        assert queue_id is not None, "streams stay"
        self.require(
            (queue_id, offset + 1) in self._known,
            f"{reader.name} is shown {offset} {body!r} of {reader.queue}, which is not committed",
        )
        self._same(reader.queue, queue_id, offset + 1, body, "read")


class I24NoGap(Checker):
    """A reader gets every offset from where it began, each once and in order, but for those that retention took; an end
    is told when all before it was delivered, and what is gone is gone."""

    def _gone(self, queue: str, first: int, end: int) -> bool:
        return self.world.checkers.is_gone(queue, first, end)

    def read(self, reader: StreamReader, offset: int, body: bytes) -> None:
        self.world.schedule.counts["read"] += 1
        if reader.at is None:
            return  # it began wherever the end was
        self.require(
            reader.at <= offset and self._gone(reader.queue, reader.at, offset),
            f"{reader.name} is given {offset} {body!r} of {reader.queue} and not {reader.at}",
        )
        if reader.end is not None:
            self.require(offset < reader.end, f"{reader.name} is given {offset} and reads until {reader.end}")
        self.require(reader.at == offset or not reader.exact, f"{reader.name} passes over {reader.at} without a word")

    def read_to_the_end(self, reader: StreamReader) -> None:
        self.require(reader.end is not None, f"{reader.name} is cancelled, and {reader.queue} is there")
        if reader.end is not None and reader.at is not None:
            self.require(
                self._gone(reader.queue, reader.at, reader.end),
                f"{reader.name} is told that {reader.end} of {reader.queue} is reached, and was not given {reader.at}",
            )

    def ended_early(self, reader: StreamReader, why: str) -> None:
        at = reader.at
        self.require(
            reader.exact and at is not None and self._gone(reader.queue, at, at + 1),
            f"{reader.name} does not get {at}, which is there: {why}",
        )


class I25StreamsKeep(Checker):
    """What is confirmed is committed. Retention takes the oldest alone, and not all. Who asks where a stream begins and
    ends is told of no beginning before which something is left, and of no end before what was shown."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._last: dict[int, int] = defaultdict(int)

    def confirmed(self, body: bytes, queues: tuple[str, ...]) -> None:
        for name in queues:
            queue_id = self.history.queue_id(name)
            if self.world.is_stream(name) and queue_id is not None:
                there = body in self.history.places[queue_id]
                self.require(there, f"{body!r} is confirmed and not committed in {name}")

    def committed(self, site: Site, queue_id: int, records: list[Written]) -> None:
        if not self.world.is_stream(self.history.queue_name(queue_id)):
            return
        for record in records:
            if record.kind == ENQ:
                self._last[queue_id] = max(self._last[queue_id], record.seq)
            for first, last in record.ranges if record.kind == SET else ():
                self.world.schedule.counts["retained"] += 1
                kept = self.history.queue_name(queue_id) == KEPT
                self.require(not kept, f"{first} to {last} leave {KEPT} at {site.name}, and are younger than an hour")
                self.require(
                    first == 1 and last < self._last[queue_id],
                    f"{first} to {last} leave stream {queue_id}, which ends with {self._last[queue_id]}",
                )

    def taken_over(self, site: Site, queue_id: int, epoch: int) -> None:
        """The owner's files do not say that the stream begins behind a message that no retention has taken."""
        if not self.world.is_stream(self.history.queue_name(queue_id)):
            return
        assert site.node is not None, "an owner runs"
        first, gone = site.node.queues[queue_id].ring.past.first, self.history.settle_written[queue_id]
        hidden = [seq for seq in self.history.committed[queue_id] if seq < first and seq not in gone]
        self.require(not hidden, f"{site.name} has stream {queue_id} from {first} on, and {hidden[:9]} were not taken")

    def offsets_told(self, queue: str, first: int, end: int, shown: int) -> None:
        queue_id = self.history.queue_id(queue)
        assert queue_id is not None, "streams stay"
        gone = self.history.settle_written[queue_id]
        self.world.schedule.counts["offsets"] += 1
        self.require(
            all(seq in gone for seq in range(1, first + 1)), f"{queue} is said to begin at {first}, and has more"
        )
        self.require(end >= shown, f"{queue} is said to end before {end}, and {shown - 1} was shown")

    def ended(self) -> None:
        for body, queues in self.history.confirmed.items():
            for name in queues:
                queue_id = self.history.queue_id(name)
                if self.world.is_stream(name) and queue_id is not None:
                    there = body in self.history.places[queue_id]
                    self.require(there, f"{body!r} was confirmed in {name} and is lost")
