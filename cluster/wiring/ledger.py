"""The producers and segments of one vhost, as `transactions` keeps them."""

from __future__ import annotations

from .entities import Producer, Segment


class Ledger:
    """Both by name, in the order in which they came; segments of a producer in that order too.

    Those that are committed are counted by epoch: there may be thousands, and who moves one asks for those before.
    """

    __slots__ = ("_by_producer", "_moving", "producers", "segments")

    def __init__(self) -> None:
        """Nothing."""
        self.producers: dict[str, Producer] = {}
        self.segments: dict[str, Segment] = {}
        self._by_producer: dict[str, dict[str, None]] = {}
        self._moving: dict[str, dict[int, int]] = {}  # producer -> epoch -> how many of it are committed and there

    def put(self, segment: Segment) -> None:
        """Add it, or replace the one of its name, which keeps its place."""
        before = self.segments.get(segment.name)
        assert before is None or before.producer == segment.producer, "a segment stays its producer's"
        if segment.place is not None and (before is None or before.place is None):
            epochs = self._moving.setdefault(segment.producer, {})
            epochs[segment.epoch] = epochs.get(segment.epoch, 0) + 1
        self.segments[segment.name] = segment
        self._by_producer.setdefault(segment.producer, {})[segment.name] = None

    def remove(self, segment: Segment) -> None:
        """Take it out."""
        assert self.segments[segment.name] is segment, "what is taken out is what is there"
        del self.segments[segment.name]
        of = self._by_producer[segment.producer]
        del of[segment.name]
        if not of:
            del self._by_producer[segment.producer]
        if segment.place is not None:
            epochs = self._moving[segment.producer]
            epochs[segment.epoch] -= 1
            if not epochs[segment.epoch]:
                del epochs[segment.epoch]
            if not epochs:
                del self._moving[segment.producer]

    def moves_before(self, producer: str, epoch: int) -> bool:
        """Whether a segment of an earlier epoch is committed and still there."""
        return any(moving < epoch for moving in self._moving.get(producer, ()))

    def of(self, producer: str) -> tuple[Segment, ...]:
        """The segments of a producer."""
        return tuple(self.segments[name] for name in self._by_producer.get(producer, ()))
