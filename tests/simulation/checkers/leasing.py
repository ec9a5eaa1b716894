"""I26, I27: what a reader by leases is told and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.checkers.history import Checker

if TYPE_CHECKING:
    from tests.simulation.leases import LeaseReader, Range


class Leased(Checker):
    """Looks at what a queue holds."""

    def living(self, queue: str, first: int, end: int) -> dict[int, bytes]:
        """Seq to body of what is committed and has not left."""
        queue_id = self.history.queue_id(queue)
        assert queue_id is not None, "leased queues stay"
        committed, gone = self.history.committed[queue_id], self.history.left[queue_id]
        return {seq: committed[seq][1] for seq in range(first, end) if seq in committed and seq not in gone}


class I26LeasedIsLeased(Leased):
    """What is leased stays leased until it is settled or given back, over every owner: who asks again is told of the
    same range or a longer one, and of as many messages as it holds; what was settled stays settled."""

    def __init__(self, history: Any) -> None:
        super().__init__(history)
        self._settled = 0

    def lease_told(self, reader: LeaseReader, now: Range, word: dict[str, Any]) -> None:
        before, upto = reader.leased, word.get("from") or 0
        self.world.schedule.counts["leases"] += 1
        self.require(now.start >= upto, f"{reader.name} settles up to {upto}, and its lease begins at {now.start}")
        if before is None:
            return
        self.require(now.end >= before.end, f"{reader.name} had {before}, and has {now}")
        starts = {max(before.start, upto, unheard) for unheard in (0, reader.unheard)}
        self.require(
            now.start in starts,
            f"{reader.name} had {before} and settled up to {upto}, perhaps to {reader.unheard}, and its lease begins "
            f"at {now.start}",
        )
        here = self.living(reader.queue, now.start, now.end)
        self.require(
            len(here) == now.rows or any(seq < reader.settled for seq in here),
            f"{reader.name} is told of {now}, which holds {len(here)}",
        )


class I27SameRangeAgain(Leased):
    """A range that is leased is read as it is, any number of times: all of it that lives, in order, nothing else."""

    def lease_read(self, reader: LeaseReader, seq: int, body: bytes) -> None:
        queue_id = self.history.queue_id(reader.queue)
        assert queue_id is not None, "leased queues stay"
        known = self.history.committed[queue_id].get(seq)
        self.require(known is not None and known[1] == body, f"{reader.name} reads {body!r} at {seq}, where {known} is")
        self.require(seq not in self.history.settled[queue_id], f"{reader.name} reads {seq} {body!r}, which has left")
        self.world.schedule.counts["leased reads"] += 1
        self.history.delivered[reader.queue][body] = self.history.delivered[reader.queue].get(body, 0) + 1

    def lease_was_read(self, reader: LeaseReader, first: int, end: int, seqs: list[int]) -> None:
        here = list(self.living(reader.queue, first, end))
        self.require(
            seqs == here,
            f"{reader.name} reads {first} to {end} and gets {seqs[:9]} ({len(seqs)}), not {here[:9]} ({len(here)})",
        )

    def lease_done(self, queue: str, upto: int) -> None:
        """All below is settled next: it may leave."""
        queue_id = self.history.queue_id(queue)
        assert queue_id is not None, "leased queues stay"
        self.history.acknowledged[queue].update(
            body for seq, (_, body) in self.history.committed[queue_id].items() if seq < upto
        )
