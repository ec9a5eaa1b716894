"""Deliveries of senders that wait for their queues, and the dispositions that answer them (3.4, 2.6.12).

A batch of neighbouring transfers has one ticket. When it is done its deliveries have an outcome: accepted by all queues
of the route, rejected by one of them, or released, for there is no queue to go to. Dispositions name ranges of delivery
ids over all links of a session, and go out once a turn. With rcv-settle-mode first they are settled with that; with
second the client settles them, and until then they are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from clusterbroker.broker.fronts.amqp10.sender_memory import Memory
from clusterbroker.broker.queues.ticket import Outcome, Ticket
from clusterbroker.broker.wire.amqp10.errors import RESOURCE_LIMIT
from clusterbroker.broker.wire.amqp10.fitting import fitted
from clusterbroker.broker.wire.amqp10.frames import accepted
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Composite, Disposition, Error, Rejected, Released
from clusterbroker.broker.wire.amqp10.serials import SERIALS

RECEIVER: Final = True
"""Role of who answers transfers (2.8.1)."""


class Sender(Protocol):
    """A link whose sender is the client."""

    settles_first: bool
    """Its deliveries are settled with their outcome (rcv-settle-mode first)."""

    memory: Memory | None
    """Of one that is suspended."""

    def settled(self, tags: Collection[bytes], accepted: bool) -> None:
        """These deliveries are over. `accepted`: and the client is told so with that."""

    def unheard(self, tags: Collection[bytes]) -> None:
        """Deliveries of `Outcomes.unheard` have their outcome."""


class Unsettled(Ticket):
    """Neighbouring deliveries `first` to `last` (ids, which do not wrap here) of a link."""

    __slots__ = ("link", "state", "tags")

    def __init__(self, link: Sender, first: int, tags: Collection[bytes], on_done: Callable[[Ticket], None]) -> None:
        super().__init__(first, first + len(tags) - 1, on_done)
        self.link = link
        self.tags = tags
        self.state: Composite | None = None
        """The outcome, where the front itself says it; None: the queues do."""

    def refuse(self, error: Error) -> None:
        """The front refuses the deliveries before any queue has seen them."""
        self.state = Rejected(error=error)


class Outcomes:
    """Of one session. `on_ready` is called once when there is something to send; `flush` sends it."""

    __slots__ = ("_done", "_on_ready", "answered", "waiting")

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._done: list[Unsettled] = []
        self.answered: dict[int, tuple[Sender, bytes, bool]] = {}
        """Link, tag, and whether it was accepted, by id: deliveries with an outcome that their client has not settled
        (rcv-settle-mode second)."""
        self.waiting = 0
        """Deliveries without an outcome."""

    def ticket(self, link: Sender, first: int, tags: Collection[bytes]) -> Unsettled:
        """For neighbouring deliveries of a link."""
        self.waiting += len(tags)
        return Unsettled(link, first, tags, self._ready)

    def unheard(self, link: Sender, first: int, tags: Collection[bytes]) -> Unsettled:
        """The same for deliveries that their client has settled: it hears nothing of them."""
        self.waiting += len(tags)
        return Unsettled(link, first, tags, self._unheard)

    def is_unheard(self, ticket: Unsettled) -> bool:
        """Whether it is a ticket of `unheard`."""
        return ticket.on_done == self._unheard

    def _unheard(self, ticket: Ticket) -> None:
        assert isinstance(ticket, Unsettled), "a session's tickets are made here"
        self.waiting -= len(ticket.tags)
        ticket.link.unheard(ticket.tags)

    def discard(self, ticket: Unsettled) -> None:
        """Nobody will have an outcome for these: their link ends."""
        self.waiting -= len(ticket.tags)

    def apart(self, ticket: Unsettled) -> list[Unsettled]:
        """A ticket for each of its deliveries, in the place of one that nobody was given yet."""
        return [
            Unsettled(ticket.link, ticket.first + place, [tag], ticket.on_done) for place, tag in enumerate(ticket.tags)
        ]

    def _ready(self, ticket: Ticket) -> None:
        assert isinstance(ticket, Unsettled), "a session's tickets are made here"
        if (memory := ticket.link.memory) is not None:
            self._remember(ticket, memory)
            return
        if not self._done:
            self._on_ready()
        self._done.append(ticket)

    def _remember(self, ticket: Unsettled, memory: Memory) -> None:
        """Its link is suspended: the client hears when it comes back."""
        self.waiting -= len(ticket.tags)
        memory.decided(ticket.tags, outcome_of(ticket) == _ACCEPTED)

    def hand_over(self, link: Sender, memory: Memory) -> None:
        """The link is suspended: what is known of its deliveries, and will be, is its memory's."""
        done, self._done = self._done, []
        for ticket in done:
            if ticket.link is link:
                self._remember(ticket, memory)
            else:
                self._done.append(ticket)
        for _, tag, is_accepted in self.forget(link):
            memory.decided((tag,), is_accepted)

    def flush(self, channel: int, size_max: int) -> tuple[bytes, int]:
        """Frames of at most `size_max` bytes, and how many deliveries were accepted."""
        done, self._done = self._done, []
        frames, taken, place = [], 0, 0
        done.sort(key=lambda one: one.first)
        while place < len(done):
            ticket = done[place]
            state, first, last, settled = outcome_of(ticket), ticket.first, ticket.last, ticket.link.settles_first
            behind = place + 1
            while (
                behind < len(done)
                and done[behind].first == last + 1
                and done[behind].link.settles_first is settled
                and _same(state, outcome_of(done[behind]))
            ):
                last = done[behind].last
                behind += 1
            for one in done[place:behind]:
                self._answer(one, settled)
            place = behind
            if type(state) is Accepted:
                taken += last - first + 1
                frames.append(accepted(channel, RECEIVER, first % SERIALS, last % SERIALS, settled))
            else:
                frames.append(
                    fitted(
                        channel,
                        Disposition(
                            role=RECEIVER, first=first % SERIALS, last=last % SERIALS, settled=settled, state=state
                        ),
                        size_max,
                    )
                )
        return b"".join(frames), taken

    def _answer(self, ticket: Unsettled, settled: bool) -> None:
        link, count = ticket.link, len(ticket.tags)
        self.waiting -= count
        is_accepted = outcome_of(ticket) == _ACCEPTED
        if ticket.counts is not None and is_accepted:
            ticket.counts.confirm += count
        if settled:
            link.settled(ticket.tags, is_accepted)
        else:
            for place, tag in enumerate(ticket.tags):
                self.answered[(ticket.first + place) % SERIALS] = (link, tag, is_accepted)

    def settle(self, first: int, last: int) -> None:
        """The client settles these ids; those that it may not, or not yet, mean nothing."""
        count = (last - first) % SERIALS
        ids = ((first + place) % SERIALS for place in range(count + 1))
        if count >= len(self.answered):
            ids = (one for one in tuple(self.answered) if (one - first) % SERIALS <= count)
        for one in ids:
            if (known := self.answered.pop(one, None)) is not None:
                known[0].settled((known[1],), False)

    def forget(self, link: Sender) -> list[tuple[Sender, bytes, bool]]:
        """The link is gone, and nobody settles its deliveries any more: those that had an outcome."""
        return [self.answered.pop(one) for one in [one for one, known in self.answered.items() if known[0] is link]]


_ACCEPTED: Final = Accepted()
_RELEASED: Final = Released()


def outcome_of(ticket: Unsettled) -> Composite:
    """The state of deliveries whose ticket is done."""
    if ticket.state is not None:
        return ticket.state
    if ticket.outcome is Outcome.ACCEPTED:
        return _ACCEPTED
    if ticket.outcome is Outcome.RELEASED:
        return _RELEASED
    assert ticket.refused is not None, "a rejected ticket knows why"
    reason, queue = ticket.refused
    text = f"queue '{queue}': {reason}" if queue else reason
    return Rejected(error=Error(condition=RESOURCE_LIMIT, description=text, info={"queue": queue, "reason": reason}))


def _same(one: Composite, other: Composite) -> bool:
    """Whether two outcomes may be told in one range."""
    return one is other or (type(one) is type(other) and one == other)
