"""The node's end of its foreman: what the map wants at this place, told as differences, and what the foreman tells
back (pure).

    ForemanLink.wants(launches, index)    -> bytes to send      each time that launches of this place changed
    ForemanLink.lease(held, caught_up)    -> bytes to send      with each change of the lease
    ForemanLink.attached()                -> bytes to send      a foreman's process began: all of it
    ForemanLink.heard(bytes)              -> events             Hello, PlaceRow, WorkerRow, GoneRow

Who has the link turns GoneRow into the command Gone, PlaceRow into what is told to the controller, and calls `wants`
with all launches of the place that are in the map and have no Gone.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        self._index = 0
        self._rows: dict[str, LaunchRow] = {}
        self._lease = frames.Lease(held=False, caught_up=False)
        self._known = False
        self._frames = frames.Frames(ToNode)

    # -- to the foreman -----------------------------------------------------------------------------------------------

    def wants(self, launches: Iterable[LaunchRow], index: int) -> bytes:
        """What to send; nothing while no foreman is there, or if nothing is new."""
        assert index >= self._index, "the map goes forward"
        rows = {row.spec.worker_id: row for row in launches}
        known = self._rows
        put = tuple(row for name, row in rows.items() if (was := known.get(name)) is not row and was != row)
        drop = tuple(self._rows.keys() - rows.keys())
        for worker_id in drop:
            self.workers.pop(worker_id, None)
        first = not self._known
        self._index, self._rows, self._known = index, rows, True
        if not self.attached_now or not (put or drop or first):
            return b""
        return frames.encode(frames.Wanted(index=index, full=first, put=put, drop=() if first else drop))

    def lease(self, held: bool, caught_up: bool) -> bytes:
        """`caught_up`: the map has all that was in the wiring log when this node began."""
        self._lease = frames.Lease(held=held, caught_up=caught_up)
        return frames.encode(self._lease) if self.attached_now else b""

    def attached(self) -> bytes:
        """A foreman began, and knows nothing."""
        self.attached_now = True
        self._frames = frames.Frames(ToNode)
        told = frames.encode(self._lease)
        if self._known:
            told += frames.encode(frames.Wanted(index=self._index, full=True, put=tuple(self._rows.values())))
        return told

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
                self.templates = event.templates
            elif isinstance(event, PlaceRow):
                self.place = event
            elif isinstance(event, WorkerRow) and event.worker_id in self._rows:
                self.workers[event.worker_id] = event
            events.append(event)
        return events
