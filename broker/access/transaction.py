"""Publishes and settlements of one session that take effect together.

Until the commit publishes are staged, and settled deliveries are out of the session's ledger but not out of their
queues. A commit does everything within one turn, so it stands in one group of the journal: after a crash all of it is
there or none. Settled messages are HELD or SETTLED until that group is durable, and the answer waits for it.

Each queue gets its part at once (`QueueHandle.commit`): all of it or, when it refuses one of the messages, none of it.

In a cluster a commit hands each queue's part to the queue's owner, and is answered when all parts are committed. This
node sends each again until it is, and each takes effect once, in one group of its owner's. So a transaction is atomic
per queue whatever fails. Over several queues it is all or nothing as long as this node lives: if it dies within a
commit, some queues may have their parts and others not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from clusterbroker.broker.access.errors import resource_error
from clusterbroker.broker.access.publisher import DELIVERY_STEPS, Named, Publisher, is_reply, way_of
from clusterbroker.broker.access.together import Numbers, Together
from clusterbroker.broker.queues.handle import CommitPart, Decided, QueueHandle
from clusterbroker.broker.queues.subscription import attach_of
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.router import Route
from clusterbroker.journal.record import Message

Entry = tuple[int, Any, int]  # delivery tag, consumer (a taker of the ring), seq

TRANSACTION_BYTES_MAX: Final = 32 << 20
"""Staged messages are in memory and cannot be slowed down: they wait for a commit that the publisher alone can send.
And what goes into one queue must fit one frame between nodes."""
TRANSACTION_STEPS_MAX: Final = 1_000_000
MESSAGE_OVERHEAD_BYTES: Final = 64
"""About what a message takes besides its own bytes."""
BATCH_STEPS: Final = 15
"""Some messages that go into one queue, besides each of them."""
BYTES_A_STEP: Final = 128
"""Each queue writes down what goes into it: of each message's queues one is free, all others get at most 122 MiB."""
NAMED_STEPS: Final = 90
"""One that its producer has numbered."""
SETTLED_STEPS: Final = 5
LETTER_STEPS: Final = 1_000
"""A delivery that is rejected, and may die by it; and as many for each 400 bytes of its header."""
LETTER_HEADER_BYTES: Final = 400


class Transaction:
    """What a session has staged. `settles`: deliveries, what becomes of them ("ack", "reject", "requeue"), and the
    annotations of letters."""

    __slots__ = ("publishes", "settles", "size", "steps")

    def __init__(self) -> None:
        self.publishes: list[tuple[Route[QueueHandle], Sequence[Message], bool, Named | None]] = []
        self.settles: list[tuple[list[Entry], str, bytes]] = []
        self.size = 0  # bytes of the staged messages
        self.steps = 0  # that a commit will take

    def publish(
        self, route: Route[QueueHandle], messages: Sequence[Message], mandatory: bool, named: Named | None
    ) -> None:
        """Refuses what is too much."""
        size = sum(message.size + MESSAGE_OVERHEAD_BYTES for message in messages)
        self.size += size
        if self.size > TRANSACTION_BYTES_MAX:
            raise resource_error(f"a transaction holds more than {TRANSACTION_BYTES_MAX} bytes of messages")
        each = BATCH_STEPS + DELIVERY_STEPS * len(messages) if named is None else NAMED_STEPS
        self._works(each * (1 + len(route.targets)) + size * max(0, len(route.targets) - 1) // BYTES_A_STEP)
        self.publishes.append((route, messages, mandatory, named))

    def settle(self, entries: list[Entry], outcome: str, change: bytes = b"") -> None:
        """`change`: what the letters of those that are rejected are annotated with. Refuses what is too much."""
        self.settles.append((entries, outcome, change))
        dies = outcome == "reject" and any(_buries(consumer.ring.owner) for _, consumer, _ in entries)
        self._works((LETTER_STEPS if dies else SETTLED_STEPS) * len(entries))

    def letters(self, queue: QueueHandle, seqs: Sequence[int]) -> None:
        """These are rejected, and in memory by now. Refuses headers that are too much."""
        if _buries(queue):
            messages = (queue.ring.message(seq) for seq in seqs)
            size = sum(message.header_length for message in messages if message is not None)
            self._works(size * LETTER_STEPS // LETTER_HEADER_BYTES)

    def _works(self, steps: int) -> None:
        self.steps += steps
        if self.steps > TRANSACTION_STEPS_MAX:
            raise resource_error(
                f"the commit of a transaction takes more than {TRANSACTION_STEPS_MAX:,} steps: too many messages, "
                "queues that they go to, bytes in all of those, or acknowledgements"
            )

    def abandoned(self) -> list[list[Entry]]:
        """The session ends: what was acknowledged in vain has to go back to its queues."""
        settles, self.settles = self.settles, []
        return [entries for entries, *_ in settles]

    def numbers(self) -> Numbers:
        """Of what it would publish, by the queues that would get it."""
        numbers: Numbers = {}
        for route, _, _, named in self.publishes:
            if named is not None:
                for queue in route.targets:
                    numbers.setdefault(queue, []).append(named)
        return numbers

    def rejected(self) -> dict[QueueHandle, list[int]]:
        """Rejected deliveries: the bodies of those that will be dead letters may be on disk only, and a commit is one
        turn, so they are fetched before it (`QueueHandle.bring`)."""
        rejected: dict[QueueHandle, list[int]] = {}
        for entries, outcome, _ in self.settles:
            for _, consumer, seq in entries:
                if outcome == "reject":
                    rejected.setdefault(consumer.ring.owner, []).append(seq)
        return rejected

    def commit(self, publisher: Publisher, done: Callable[[Ticket], None]) -> None:
        """`done` when all of it is durable, or a queue has refused its part (`Ticket.rejected`)."""
        node = publisher.node
        node.labour.done += self.steps
        ticket = Ticket(1, 1, done)
        for queue, part in self._parts(publisher).items():
            if queue.ring.journaled:
                node.published(sum(message.size for messages, _ in part.publishes for message in messages))
            queue.commit(part, ticket, node.now_ms)
        node.barrier(ticket)

    def commit_together(
        self, publisher: Publisher, may_go_on: Callable[[], str], done: Callable[[Ticket, bool], None],
        handed: Callable[[], None],
    ) -> Together:  # fmt: skip
        """As `commit`, and over several queues all or nothing (`together`). It is to be begun."""
        publisher.node.labour.done += self.steps
        return Together(publisher.node, self._parts(publisher), may_go_on, done, handed)

    def _parts(self, publisher: Publisher) -> dict[QueueHandle, CommitPart]:
        """What each queue gets of it. What has no queue to go to is returned."""
        parts: dict[QueueHandle, CommitPart] = {}
        for route, messages, mandatory, named in self.publishes:
            now = publisher.anew(route, messages[0], named)
            way = publisher.replied(messages[0]) if is_reply(messages[0]) else way_of(now, mandatory)
            departed = publisher.depart(way, messages, mandatory, None)
            for queue in way.targets:
                parts.setdefault(queue, CommitPart()).publishes.append((departed, named))
        for entries, outcome, change in self.settles:
            publisher.counts.ack += len(entries) if outcome == "ack" else 0
            for _, consumer, seq in entries:
                parts.setdefault(consumer.ring.owner, CommitPart()).settles.append(
                    Decided(seq, outcome, attach_of(consumer), change)
                )
        return parts


def _buries(queue: QueueHandle) -> bool:
    return not queue.deleted and queue.settings.dead_letter_exchange is not None
