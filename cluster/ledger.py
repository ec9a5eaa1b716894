"""The producers and segments of one vhost, as `transactions` keeps them."""

from __future__ import annotations

from .entities import Producer, Segment


class Ledger:
    """Both by name, in the order in which they came; segments of a producer in that order too."""

    __slots__ = ("_by_producer", "producers", "segments")

    def __init__(self) -> None:
        """Nothing."""
        self.producers: dict[str, Producer] = {}
        self.segments: dict[str, Segment] = {}
        self._by_producer: dict[str, dict[str, None]] = {}

    def put(self, segment: Segment) -> None:
        """Add it, or replace the one of its name, which keeps its place."""
        self.segments[segment.name] = segment
        self._by_producer.setdefault(segment.producer, {})[segment.name] = None

    def remove(self, segment: Segment) -> None:
        """Take it out."""
        del self.segments[segment.name]
        of = self._by_producer[segment.producer]
        del of[segment.name]
        if not of:
            del self._by_producer[segment.producer]

    def moves_before(self, producer: str, epoch: int) -> bool:
        """Whether a segment of an earlier epoch is committed and still there."""
        segments = (self.segments[name] for name in self._by_producer.get(producer, ()))
        return any(segment.epoch < epoch and segment.place is not None for segment in segments)

    def of(self, producer: str) -> tuple[Segment, ...]:
        """The segments of a producer."""
        return tuple(self.segments[name] for name in self._by_producer.get(producer, ()))
