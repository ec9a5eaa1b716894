"""The queue of a subscription keeps what its selector takes, and nothing else (Jakarta Messaging 3.1, 8.3.3: what does
not match is never part of a subscription).

The selector is an argument of the queue: it is in the wiring, and whoever owns the queue finds it there. What comes is
judged in the queue's next turn, before any consumer has it, and leaves unless it matches. So it comes to no group
commit, to no copy and to no limit, whichever way it came: routed, as a dead letter, or moved. Its publisher's ticket
passes as for a message that was consumed at once.

How far it was judged the log hears now and then (`attributes.SWEPT`): a new owner, or a node that starts, judges what
came since, and does not read all of a queue again.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.content.selector.filters import BadFilter, Filter, selector_of
from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.attributes import SWEPT
from clusterbroker.broker.queues.states import HEAD_NOT_LOADED, LIMIT
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.record import Message

SUBSCRIPTION: Final = "x-subscription"
"""Argument of a queue that is a subscription: the address of its topic."""
SELECTOR: Final = "x-selector"
"""... which messages it takes: a JMS selector."""
NO_LOCAL: Final = "x-no-local"
"""... the container-id whose messages it does not take (`access.publisher`)."""
LOOK_MAX: Final = 4096
WORK_MAX: Final = 20_000
"""What one turn may cost, as of consumers that pass messages over (`selecting`)."""
NOTED: Final = 4096
"""So many messages are judged again at most by a new owner, besides those that wait."""


class Sweeping:
    """Of one queue.

    digest  of the selector (`Filter.digest`)
    upto    all below it was judged
    """

    __slots__ = ("_noted", "_ring", "_wanted", "_work", "digest", "upto")

    def __init__(self, ring: rings.Ring, wanted: Filter) -> None:
        self._ring = ring
        self._wanted = wanted
        self.digest = wanted.digest
        self.upto = self._noted = self._work = 0

    def begin(self) -> None:
        """The log is known."""
        ring = self._ring
        self.upto = ring.attributes.get(SWEPT, 0) if ring.has_attributes else 0
        if self.upto > ring.next_seq:  # what was judged last came to no log: its numbers are given again
            self.upto = 0
            ring.set_attribute(SWEPT, 0)
        self._noted = self.upto

    @property
    def waits(self) -> bool:
        """Something that came is not judged yet."""
        return self.upto < self._ring.next_seq

    def turn(self) -> tuple[int, bool]:
        """Judges what came. Returns the message that has to be loaded first (0: none), and whether some wait for
        another turn."""
        ring = self._ring
        if not self.waits:
            return 0, False
        self._work = 0
        self.upto, _, why = rings.sweep(ring, self.upto, self._judge, LOOK_MAX)
        if self.upto - self._noted >= NOTED and (ring.journaled or ring.replicated):
            self._noted = self.upto
            ring.set_attribute(SWEPT, self.upto)
        return self.upto if why == HEAD_NOT_LOADED else 0, why == LIMIT

    def _judge(self, message: Message) -> bool | None:
        if self._work > WORK_MAX:
            return None
        self._work += self._wanted.work(message)
        return self._wanted.takes(Subject(message))


def sweeping_of(entity: QueueEntity, ring: rings.Ring) -> Sweeping | None:
    """Of a subscription with a selector. Anybody may declare a queue with such arguments: one that is wrong is none."""
    arguments = entity.arguments
    selector = arguments.get(SELECTOR)
    is_one = isinstance(arguments.get(SUBSCRIPTION), str) and arguments.get("x-queue-type") != STREAM
    if not is_one or not isinstance(selector, str):
        return None
    try:
        return Sweeping(ring, selector_of(selector))
    except BadFilter:
        return None
