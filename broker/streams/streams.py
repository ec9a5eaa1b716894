"""All streams, as the clients of one node read them, and as their owner is asked.

A question goes to the owner that the map names, which may be this node, and stays open until it is answered: after a
change of owner, or with a new link, it is asked again. A node that is alone asks its own queues without a word in
between. An answer counts if its question is open, of this start of this node, and of the epoch that the map has: what
another owner answers late is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.streams.messages import LEAVE, StreamAsk, StreamTold
from clusterbroker.broker.streams.stream import Stream
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.replication.errors import BadMessage

Then = Callable[[StreamTold, bytes | memoryview], None]
Late = Callable[[], None]
UNANSWERED_MS: Final = 20_000


class Peers(Protocol):
    """The other members, and this one."""

    def send(self, peer: str, head: StreamAsk | StreamTold, payload: Iterable[bytes] = ()) -> object:
        """One frame to a member."""


class Host(Protocol):
    """The node."""

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""

    @property
    def agenda(self) -> list[Any]:
        """Rings that are marked get their turn from it."""

    @property
    def low_on_memory(self) -> bool:
        """The memory alarm is raised here."""

    @property
    def queues(self) -> Mapping[int, LocalQueue]:
        """Those that live here, by id."""

    @property
    def role(self) -> Peers | None:
        """None: the node is alone."""


class Reader(Protocol):
    """One consumer's (`broker.access.readers.StreamReader`)."""

    asking: int

    @property
    def number(self) -> int: ...

    @property
    def entity(self) -> QueueEntity: ...

    @property
    def ring(self) -> Ring: ...

    def changed(self) -> bool:
        """The stream has another owner or life; whether the reader can go on."""

    def ended(self) -> None:
        """The stream is gone: closes it."""


class Open(NamedTuple):
    """A question that is not answered."""

    queue: QueueHandle
    ask: StreamAsk
    then: Then
    due_ms: int
    late: Late | None
    """Called instead of `then` when there is no answer by `due_ms`."""


class Streams:
    """Of one node."""

    def __init__(self, node: Host, incarnation: int) -> None:
        self.host = node
        self._readers: dict[int, dict[int, Reader]] = {}
        self._open: dict[int, Open] = {}
        self._requests = self._numbers = 0
        self._incarnation = incarnation

    # -- readers

    def next_reader(self) -> int:
        """A number for a consumer."""
        self._numbers += 1
        return self._numbers

    def open(self, reader: Reader) -> None:
        """It begins to read."""
        self._readers.setdefault(reader.entity.queue_id, {})[reader.number] = reader
        reader.ring.mark()

    def close(self, reader: Reader) -> None:
        """It reads no more. Idempotent."""
        queue_id = reader.entity.queue_id
        readers = self._readers.get(queue_id, {})
        if readers.pop(reader.number, None) is None:
            return
        if not readers:
            del self._readers[queue_id]
        self._open.pop(reader.asking, None)
        self._say(StreamAsk(queue_id, reader.entity.epoch, 0, reader.number, LEAVE), reader.entity)

    # -- questions

    def ask(self, queue: QueueHandle, what: int, then: Then, late: Late | None = None, **wish: Any) -> int:
        """Asks the owner; `then` is called with its answer, in a later turn. Returns the request's number."""
        self._requests += 1
        request, entity = self._requests, queue.entity
        ask = StreamAsk(
            entity.queue_id, entity.epoch, request, wish.pop("reader", 0), what, incarnation=self._incarnation, **wish
        )
        self._open[request] = Open(queue, ask, then, self.host.now_ms + UNANSWERED_MS, late)
        self._say(ask, entity)
        return request

    def _say(self, ask: StreamAsk, entity: QueueEntity) -> None:
        role = self.host.role
        if role is None:
            queue = self.host.queues.get(ask.queue_id)
            if isinstance(queue, Stream):
                queue.ask("", ask, lambda told, records: self._told("", told, records))
        elif entity.owner is not None:
            role.send(entity.owner, ask)

    def _told(self, peer: str, told: StreamTold, records: bytes | memoryview) -> None:
        one = self._open.get(told.request)
        if one is None or one.ask.queue_id != told.queue_id:
            return
        if told.incarnation != self._incarnation or told.asked != one.ask.seq:
            return  # a start before has asked it
        entity = one.queue.entity
        if told.epoch != entity.epoch or (peer and entity.owner != peer):
            return  # it has been asked again
        del self._open[told.request]
        one.then(told, records)

    # -- events of the node

    def asked(self, peer: str, ask: StreamAsk, _: memoryview) -> None:
        """A question of a node, this one included."""
        queue = self.host.queues.get(ask.queue_id)
        role = self.host.role
        assert role is not None, "others ask members only"
        if isinstance(queue, Stream) and queue.ring.epoch == ask.epoch:
            send = role.send

            def tell(told: StreamTold, records: bytes) -> None:
                send(peer, told, (records,))

            queue.ask(peer, ask, tell)

    def answered(self, peer: str, told: StreamTold, payload: memoryview) -> None:
        """An owner's answer. Raises BadMessage."""
        begins = int.from_bytes(payload[24:32], "little") if payload else told.seq
        if not told.asked <= told.seq <= told.next or begins != told.seq:
            raise BadMessage(f"an answer about messages from {told.asked} on begins at {told.seq}, ends at {told.next}")
        self._told(peer, told, payload)

    def deleted(self, queue_id: int) -> None:
        """The stream is gone."""
        for request in [request for request, one in self._open.items() if one.ask.queue_id == queue_id]:
            one = self._open.pop(request)
            if one.late is not None:
                one.late()
        for reader in tuple(self._readers.get(queue_id, {}).values()):
            reader.ended()

    def owner_changed(self, entity: QueueEntity) -> None:
        """By the map. A reader of another life ends: its offsets mean other messages now."""
        for reader in tuple(self._readers.get(entity.queue_id, {}).values()):
            if not reader.changed():
                reader.ended()
        self._ask_again(lambda one: one.ask.queue_id == entity.queue_id)

    def linked(self, peer: str) -> None:
        """A new link to an owner: what was asked over the one before may be lost. Nor does the peer wait for what it
        has asked over that one."""
        self.unlinked(peer)
        self._ask_again(lambda one: one.queue.entity.owner == peer)

    def unlinked(self, peer: str) -> None:
        """What its readers wait for is asked again when there is a link."""
        for queue in tuple(self.host.queues.values()):
            if isinstance(queue, Stream):
                queue.leave(peer)

    def _ask_again(self, concerned: Callable[[Open], bool]) -> None:
        for request, one in tuple(self._open.items()):
            if concerned(one):
                entity = one.queue.entity
                ask = msgspec.structs.replace(one.ask, epoch=entity.epoch)
                self._open[request] = one._replace(ask=ask)
                self._say(ask, entity)

    def tick(self, now_ms: int) -> None:
        """Ends questions with a time limit."""
        for request, one in tuple(self._open.items()):
            if one.late is not None and now_ms >= one.due_ms:
                del self._open[request]
                one.late()
