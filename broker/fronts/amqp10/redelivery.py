"""What a resumed receiver link is sent before anything new: deliveries that it holds, each under its old tag (2.6.13).

Each takes one of the link's credit, like any other. Bodies are read again as they are needed, wherever they are; what
cannot be read any more returns to its queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from clusterbroker.broker.access.readers import RangeReader
from clusterbroker.broker.fronts.amqp10.delivery import LinkConsumer
from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.fronts.amqp10.positions import BEGINNING, resumed_at
from clusterbroker.broker.fronts.amqp10.resuming import WITHDRAWN, ReceiverResumption
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.wire.amqp10.performatives import Composite, Received
from clusterbroker.journal.record import Message

NOTHING: Final[Mapping[bytes, int]] = {}
AHEAD: Final = 64
"""Messages that are read at once."""


class Resumed(Protocol):
    """A receiver's link (`receiver_link`)."""

    @property
    def credit(self) -> LinkConsumer: ...

    @property
    def queue(self) -> QueueHandle | RangeReader: ...

    @property
    def session(self) -> SessionCore: ...

    @property
    def default_outcome(self) -> Composite: ...

    backlog: Redelivery | None

    def go_on(self) -> None:
        """More can be sent."""

    def takes(self, outcome: Composite) -> bool: ...

    def unfit(self, why: str) -> None:
        """It cannot be handed what is next, and ends."""


class Item(NamedTuple):
    """One delivery."""

    seq: int
    is_new: bool = False
    """The client has not seen it."""
    place: Received | None = None
    """So far the client has it."""
    outcome: Composite | None = None
    """The client has said what becomes of it, and that is done: it is settled."""


class Redelivery:
    """Of one link, until all is sent. `is_partial`: nothing new follows, for one of the maps was incomplete; `rest`:
    what the link holds besides."""

    __slots__ = ("_items", "_link", "_looked", "_read", "_reading", "is_partial", "left", "over", "rest", "waits")

    def __init__(self, link: Resumed, items: Iterable[Item], rest: Sequence[int], is_partial: bool) -> None:
        self._link = link
        self._items = deque(items)
        self._read: dict[int, Message] = {}
        self._looked: set[int] = set()
        self._reading = False
        self.rest = list(rest)
        self.is_partial = is_partial
        self.left = 0
        """Link credit."""
        self.over = False
        """The link goes on without it."""
        self.waits = False
        """The client's attach is not answered yet."""

    @property
    def is_done(self) -> bool:
        return not self._items and not self.is_partial and not self.waits

    def take_back(self) -> list[int]:
        """It ends: what was not sent, and the link holds."""
        self.over = True
        seqs = [item.seq for item in self._items if item.outcome is None] + self.rest
        self._items.clear()
        self.rest = []
        return seqs

    def go_on(self) -> None:
        """Sends what credit, window and socket allow."""
        if self.waits:
            return
        link = self._link
        credit, session = link.credit, link.session
        before = self.left
        while self._items and self.left and credit.writable and not self.over:
            if not self._send(self._items[0]):
                break
        if self.left != before:
            session.want_send()
        if self._items and self.left and not self._reading and not self.over and self._is_full:
            session.access.node.soon(link.go_on)  # when what is in the buffer has gone

    @property
    def _is_full(self) -> bool:
        """The buffer has enough for now, though window and socket are open: nobody says when it has room."""
        ledger, out = self._link.session.ledger, self._link.session.connection.out
        return bool(ledger.window) and not ledger.is_cut and not out.paused and not self._link.credit.writable

    def _send(self, item: Item) -> bool:
        """False: its body has to be read first."""
        link, seq = self._link, item.seq
        credit, node = link.credit, link.session.access.node
        queue = link.queue
        assert not isinstance(queue, RangeReader), "readers of streams and leases hold nothing"
        content, state = b"", item.outcome
        if item.outcome is None:
            if seq not in self._looked:
                return self._fetch(queue)
            message = self._read.pop(seq, None)
            if message is None:
                self._items.popleft()
                node.setting_aside.work(queue, queue.requeue, seq, False)
                return True
            content = credit.content(seq, message, credit.ring.delivery_count(seq), node.now_ms)
            if why := credit.too_large(seq, content):
                self._items.popleft()
                node.setting_aside.work(queue, queue.requeue, seq, True)
                self.waits = True  # for the end
                node.soon(partial(link.unfit, why))
                return False
            if not item.is_new:
                state, offset = resumed_at(content, item.place) if item.place is not None else (BEGINNING, 0)
                content = content[offset:]
        self._items.popleft()
        self._looked.discard(seq)
        encoded = None if state is None else state.encoded()
        link.session.ledger.resend(credit, seq, content, encoded, item.outcome is not None, node.now_ms)
        self.left -= 1
        return True

    def _fetch(self, queue: QueueHandle) -> bool:
        """Whether it came at once."""
        if self._reading:
            return False
        self._reading = True
        asking = True
        wanted = [item.seq for item in self._items if item.outcome is None and item.seq not in self._looked]
        seqs = sorted(wanted[:AHEAD])

        def read(messages: Mapping[int, Message], count: int) -> None:
            self._reading = False
            self._read.update(messages)
            self._looked.update(seqs[:count])
            if not asking and count and not self.over:
                self._link.go_on()

        queue.reread(seqs, read)
        asking = False
        return not self._reading and self._items[0].seq in self._looked


def begin_again(link: Resumed) -> None:
    """The link is about to be resumed: it gets nothing before it is known what comes first. Credit that its client has
    given already counts from then on."""
    credit = link.credit
    link.backlog = Redelivery(link, (), (), is_partial=True)
    link.backlog.left = max(0, credit.limit - credit.delivered)
    credit.limit = credit.delivered


def resume(
    link: Resumed, seqs: Mapping[bytes, int], found: ReceiverResumption, withdrawn: Mapping[bytes, int] = NOTHING
) -> list[tuple[int, Composite]]:
    """The link goes on with what it holds, by tag; `withdrawn`: what it held, by tag. What the client has said
    meanwhile of its credit counts. Returns what its deliveries come to: that is to be carried out."""
    left = link.backlog.left if link.backlog is not None else 0
    rest = dict(seqs)
    items = [Item(rest.pop(tag), is_new=True) for tag in found.first]
    items += [Item(rest.pop(tag), place=place) for tag, place in found.resumed]
    outcomes = [
        (rest.pop(tag), outcome if link.takes(outcome) else link.default_outcome) for tag, outcome in found.outcomes
    ]
    items += [Item(seq, outcome=outcome) for seq, outcome in outcomes]
    items += [Item(withdrawn[tag], outcome=WITHDRAWN) for tag in found.withdrawn]
    link.backlog = Redelivery(link, items, tuple(rest.values()), found.is_partial)
    link.backlog.left = left
    return outcomes
