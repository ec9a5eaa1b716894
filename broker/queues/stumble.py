"""What a queue stumbles over sets it aside, and nothing else.

Clients' bytes are looked at long after they were accepted: when a message is shown to a consumer, when it dies, when a
reader asks for it. A mistake of ours in such code must not cost the node, which would end again at each start, and its
successor too. So whatever raises in a queue's own work *sets the queue aside*: it is paused, an alert says so, the log
names the message, and `clusterbroker queues resume` tries again.

*What a queue that is set aside is.* Its ring is right, for each operation of a ring happens whole or not at all, and so
is its log, which the ring's operations make. So what was published is written, copied and confirmed, and what is
acknowledged is settled. What a queue does with a message between two operations keeps the message where the next try
finds it:

    shown       a message that cannot be shown to who shall have it returns to its place (`dispatch`)
    dying       it stands in its line until its letter is published (`dead_lettering`): the letter may come twice to a
                target, never not at all
    answered    tickets are passed by commits, which go on

Nothing is handed out, expires, is dropped or dies before it is resumed. Copies have its records as before; a hand-over
to another owner works, and that one is paused as well: the pause stands in the wiring.
"""

from __future__ import annotations

from typing import Protocol


class Unfitting(Protocol):
    """A consumer."""

    def unfit(self, why: str) -> None:
        """It cannot be handed what is next, and ends."""


class Stumble(Exception):
    """Something raised over this message of a queue; the cause says what."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"message {seq}")
        self.seq = seq


class Unfit(Exception):
    """A consumer cannot be handed this message, others perhaps can: the consumer ends, and the message returns to its
    place, counted, so that a delivery limit finds one that fits nobody (decision 054). It is still unacknowledged."""

    def __init__(self, seq: int, consumer: Unfitting, why: str) -> None:
        super().__init__(why)
        self.seq = seq
        self.consumer = consumer

    def end(self) -> None:
        """The consumer hears of it."""
        self.consumer.unfit(str(self))
