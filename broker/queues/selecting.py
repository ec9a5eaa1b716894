"""Consumers of a queue that pass messages over, and what is never theirs again.

A consumer has a filter (AMQP 1.0: selectors and other filters of a source), or its link has returned messages that it
never wants again (modified with undeliverable-here). Either makes it a selecting one: it walks the queue by itself, and
the others get what it leaves, in order, as ever (`ring.dispatch_selected`). Judged by are headers and properties; a
message that is on disk is loaded for that, and leaves memory again if that is short.

What is excluded is known to the owner alone, in memory: another owner begins without, and of very many messages the
oldest are forgotten. Such a message comes to the link once more, as any that has returned.
"""

from __future__ import annotations

from typing import Any, Final

from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.broker.queues.sweeping import Sweeping
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

EXCLUDED_MAX: Final = 4096
"""Pairs of a message and a link, of one queue."""
FORGOTTEN_AT_ONCE: Final = 256
LOOK_MAX: Final = 4096
"""Messages looked at in one turn of a queue."""
WORK_MAX: Final = 20_000
"""What judging may take in one turn of a queue (`Filter.work`), about in us."""
LOAD_COUNT: Final = 512
LOAD_BYTES: Final = 1 << 20


class Selecting:
    """Of one queue."""

    __slots__ = ("_excluded", "_links", "_queue", "_subject", "_sweeping", "_work")

    def __init__(self, queue: LocalQueue, sweeping: Sweeping | None) -> None:
        self._queue = queue
        self._sweeping = sweeping
        self._excluded: dict[tuple[int, str], None] = {}  # in the order in which they came
        self._links: dict[str, set[int]] = {}
        self._subject: Subject | None = None  # the last message that was judged: others judge it next
        self._work = 0

    # -- who selects

    def came(self, member: Member) -> None:
        """A consumer is about to stand in the line."""
        excluded, wanted = self._links.get(member.link) if member.link else None, member.filter
        if excluded is None and wanted is None:
            member.credit.selection = None
            return

        swept = self._sweeping
        if swept is not None and (wanted is None or wanted.digest != swept.digest):
            swept = None  # else what is there has been judged

        def judge(seq: int, message: Message) -> bool | None:
            if excluded is not None and seq in excluded:
                return False
            if wanted is None or (swept is not None and seq < swept.upto):
                return True
            if self._work > WORK_MAX:
                return None
            self._work += wanted.work(message)
            return wanted.takes(self._seen(message))

        member.credit.selection = rings.Selection(judge)

    def _seen(self, message: Message) -> Subject:
        if self._subject is None or self._subject.message is not message:
            self._subject = Subject(message)
        return self._subject

    def rest(self) -> None:
        """A hand-out is over: no message is held for it."""
        self._subject, self._work = None, 0

    # -- what is excluded

    def exclude(self, seq: int, link: str) -> None:
        """The link never gets this message again."""
        if len(self._excluded) >= EXCLUDED_MAX:
            self._forget()
        self._excluded[seq, link] = None
        if link in self._links:
            self._links[link].add(seq)
        else:
            self._links[link] = {seq}
            self._review({link})

    def _forget(self) -> None:
        """Messages that have left the queue; if there are none, the oldest ones."""
        ring = self._queue.ring
        gone = [pair for pair in self._excluded if not ring.living(pair[0], pair[0], 1)]
        changed = set()
        for seq, link in gone or list(self._excluded)[:FORGOTTEN_AT_ONCE]:
            del self._excluded[seq, link]
            self._links[link].discard(seq)
            if not self._links[link]:
                del self._links[link]
            changed.add(link)
        self._review(changed)

    def _review(self, links: set[str]) -> None:
        """These links have other exclusions than before; what was passed over may be theirs now."""
        for member in self._queue.subscriptions:
            if member.link in links:
                self.came(member)
        self._queue.subscriptions.relist()

    # -- for consumers

    def is_dry(self, member: Member) -> bool:
        """Whether a consumer that could take something has seen that there is nothing for it."""
        selection: Any = member.credit.selection
        return selection is not None and selection.cursor >= self._queue.ring.next_seq

    def missing(self, seq: int) -> list[Location]:
        """What is loaded for a consumer that waits at this message."""
        return self._queue.ring.missing_from(seq, LOAD_COUNT, LOAD_BYTES)
