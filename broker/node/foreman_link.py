"""The node's end of its foreman: what the map wants at this place, told as differences, and what the foreman tells
back (pure).

    ForemanLink.wants(launches, index, elsewhere)   -> bytes to send    each time that launches changed
    ForemanLink.lease(held, caught_up)              -> bytes to send    with each change of the lease
    ForemanLink.attached()                          -> bytes to send    a foreman's process began: all of it
    ForemanLink.heard(bytes)                        -> events           Hello, PlaceRow, WorkerRow, GoneRow

Who has the link turns GoneRow into the command Gone, PlaceRow into what is told to the controller, and calls `wants`
with all launches of the place that are in the map and have no Gone; and with those of other places, if the foreman has
a driver that sees them (`shared`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterbroker.broker.foreman import frames
from clusterbroker.broker.foreman.frames import Hello, LaunchRow, PlaceRow, TemplateRow, ToNode, WorkerRow

Event = ToNode
"""What a foreman tells."""


class ForemanLink:
    """One place. Survives its foremen."""

    def __init__(self) -> None:
        self.templates: dict[str, TemplateRow] = {}
        """Of the config file, as the foreman read it last."""
        self.place: PlaceRow | None = None
        """None: no foreman has told yet."""
        self.workers: dict[str, WorkerRow] = {}
        self.attached_now = False
        """A foreman is there, and has said Hello."""
        self.shared = False
        """The foreman has a driver that sees workers of other places."""
        self._index = self._sent_index = 0
        self._rows: dict[str, LaunchRow] = {}
        self._elsewhere: dict[str, bool] | None = None
        self._lease = frames.Lease(held=False, caught_up=False)
        self._busy = frames.Busy(replicas={})
        self._known = False
        self._frames = frames.Frames(ToNode)

    # -- to the foreman -----------------------------------------------------------------------------------------------

    def wants(self, launches: Iterable[LaunchRow], index: int, elsewhere: Mapping[str, bool] | None = None) -> bytes:
        """What to send; nothing while no foreman is there, or if nothing is new. `elsewhere`: launches of other places,
        and whether they are revoked."""
        assert index >= self._index, "the map goes forward"
        rows = {row.spec.worker_id: row for row in launches}
        known = self._rows
        put = tuple(row for name, row in rows.items() if (was := known.get(name)) is not row and was != row)
        drop = tuple(self._rows.keys() - rows.keys())
        for worker_id in drop:
            self.workers.pop(worker_id, None)
        before, self._elsewhere = self._elsewhere, None if elsewhere is None else dict(elsewhere)
        first = not self._known or (before is None) != (elsewhere is None)
        self._index, self._rows, self._known = index, rows, True
        if first:
            return self._all() if self.attached_now else b""
        others: dict[str, bool] | None = None
        if before is not None and elsewhere is not None:
            drop += tuple(before.keys() - elsewhere.keys())
            others = {worker_id: state for worker_id, state in elsewhere.items() if before.get(worker_id) is not state}
        risen = elsewhere is not None and index > self._sent_index  # the foreman judges others' workers by it
        if not self.attached_now or not (put or drop or others or risen):
            return b""
        self._sent_index = index
        return frames.encode(frames.Wanted(index=index, full=False, put=put, drop=drop, elsewhere=others))

    def _all(self) -> bytes:
        self._sent_index = self._index
        put = tuple(self._rows.values())
        return frames.encode(frames.Wanted(index=self._index, full=True, put=put, elsewhere=self._elsewhere))

    def lease(self, held: bool, caught_up: bool) -> bytes:
        """`caught_up`: the map has all that was in the wiring log when this node began."""
        self._lease = frames.Lease(held=held, caught_up=caught_up)
        return frames.encode(self._lease) if self.attached_now else b""

    def busy(self, replicas: Mapping[str, bool]) -> bytes:
        """Of launches that stand for several workers."""
        self._busy = frames.Busy(replicas=dict(replicas))
        return frames.encode(self._busy) if self.attached_now else b""

    def attached(self) -> bytes:
        """A foreman began, and knows nothing."""
        self.attached_now = True
        self._frames = frames.Frames(ToNode)
        told = frames.encode(self._lease) + frames.encode(self._busy)
        return told + self._all() if self._known else told

    def detached(self) -> None:
        """It is over. Its workers may go on; what was told of them stays until another foreman tells."""
        self.attached_now = False

    # -- from the foreman ---------------------------------------------------------------------------------------------

    def heard(self, data: bytes) -> list[Event]:
        """What it told, in order. Raises ValueError for what is no frame: the foreman is of no use then."""
        events = []
        for event in self._frames.feed(data):
            if isinstance(event, Hello):
                if event.version != frames.VERSION:
                    raise ValueError(f"a foreman of version {event.version}, and this node speaks {frames.VERSION}")
                self.templates, self.shared = event.templates, event.shared
            elif isinstance(event, PlaceRow):
                self.place = event
            elif isinstance(event, WorkerRow) and event.worker_id in self._rows:
                self.workers[event.worker_id] = event
            events.append(event)
        return events
