"""A read of several messages with damage: repeated one by one (waits for the journal's reader).

Readable messages go to the asking queue, as far as the damage leaves one (`broker.node.damages`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clusterbroker.broker.node.effects import Load, StreamLoad
from clusterbroker.journal.record import DamagedRecord, Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.journal.journal import Journal


class Apart:
    """`fail` gets what a mistake of the node's raises, `schedule()` asks for a turn."""

    def __init__(
        self, journal: Journal, node: Node, schedule: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._journal = journal
        self._node = node
        self._schedule = schedule
        self._fail = fail

    def read(self, load: Load | StreamLoad, damage: DamagedRecord) -> None:
        """The load met this damage. Of a stream's file nothing is read apart: its readers at that place wait."""
        if not load.wanted():
            return
        if isinstance(load, StreamLoad):
            self._node.damages.found(load.queue_id, (), damage.args[1])
            self._schedule()
            return
        read: list[Message | DamagedRecord] = []
        for location in load.locations:
            self._journal.read(load.queue_id, (location,), partial(self._came, load, read))

    def _came(self, load: Load, read: list[Message | DamagedRecord], messages: list[Message] | DamagedRecord) -> None:
        """They come in the order in which they were asked for."""
        read.append(messages if isinstance(messages, DamagedRecord) else messages[0])
        if len(read) == len(load.locations) and load.wanted():
            try:
                self._tell(load, read)
            except Exception as error:
                self._fail(error)
            self._schedule()

    def _tell(self, load: Load, read: list[Message | DamagedRecord]) -> None:
        sound = [None if isinstance(one, DamagedRecord) else one for one in read]
        pairs = zip(load.locations, read, strict=True)
        damaged = {seq: one.args[1] for (seq, *_), one in pairs if isinstance(one, DamagedRecord)}
        if damaged:
            self._node.damages.found(load.queue_id, damaged, next(iter(damaged.values())), lambda: load.unread(sound))
        else:
            load.then([one for one in sound if one is not None])
