"""Consumers of a queue that pass messages over, and what is never theirs again.

A consumer has a filter (AMQP 1.0: selectors and other filters of a source), or its link has returned messages that it
never wants again (modified with undeliverable-here). Either makes it a selecting one: it walks the queue by itself, and
the others get what it leaves, in order, as ever (`ring.dispatch_selected`). Judged by are headers and properties; a
message that is on disk is loaded for that, and leaves memory again if that is short.

What is excluded the owner has in memory. Of a recoverable link the log has it as well (`attributes.EXCLUDED`), in the
group that says that the link has returned the message: so the next owner knows it. It is forgotten when the link
ends. Of other links another owner begins
without, and of very many messages the oldest are forgotten. Such a message comes to the link once more, as any that has
returned. A link is known by its container-id and name, also when it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.attributes import EXCLUDED
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.broker.queues.sweeping import Sweeping
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

EXCLUDED_MAX: Final = 4096
"""Pairs of a message and a link, of one queue."""
FORGOTTEN_AT_ONCE: Final = 256
LINK_BYTES: Final = 16
BUCKET: Final = 62
"""Messages in one value of `attributes.EXCLUDED`."""
LOOK_MAX: Final = 4096
"""Messages looked at in one turn of a queue."""
WORK_MAX: Final = 20_000
"""What judging may take in one turn of a queue (`Filter.work`), about in us."""
LOAD_COUNT: Final = 512
LOAD_BYTES: Final = 1 << 20


class Selecting:
    """Of one queue."""

    __slots__ = ("_excluded", "_links", "_queue", "_room", "_subject", "_sweeping", "_work")

    def __init__(self, queue: LocalQueue, sweeping: Sweeping | None) -> None:
        self._queue = queue
        self._sweeping = sweeping
        self._excluded: dict[tuple[int, bytes], None] = {}  # in the order in which they came
        self._links: dict[bytes, set[int]] = {}
        self._room = min(FORGOTTEN_AT_ONCE, EXCLUDED_MAX)  # so many pairs before it is seen which messages have left
        self._subject: Subject | None = None  # the last message that was judged: others judge it next
        self._work = 0

    # -- who selects

    def came(self, member: Member) -> None:
        """A consumer is about to stand in the line."""
        excluded, wanted = self._links.get(_digest(member.link)) if member.link else None, member.filter
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

    def selects(self, member: Member) -> bool:
        """Whether a consumer passes messages over of its own accord, or its link's."""
        return member.filter is not None or bool(member.link and _digest(member.link) in self._links)

    def _seen(self, message: Message) -> Subject:
        if self._subject is None or self._subject.message is not message:
            self._subject = Subject(message)
        return self._subject

    def rest(self) -> None:
        """A hand-out is over: no message is held for it."""
        self._subject, self._work = None, 0

    # -- what is excluded

    def restore(self) -> None:
        """What the log knows of links goes on."""
        for (link, bucket), bits in EXCLUDED.of(self._queue.ring.attributes):
            for at in range(BUCKET):
                if bits >> at & 1:
                    self._add(BUCKET * bucket + at, link)
        self._room = max(self._room, len(self._excluded))

    def exclude(self, seqs: Iterable[int], link: str, lasting: bool) -> None:
        """The link never gets these messages again; `lasting`: the log is told."""
        digest = _digest(link)
        for seq in seqs:
            if len(self._excluded) >= self._room:
                self._forget()
            if lasting:
                self._note(seq, digest, True)
            if self._add(seq, digest):
                self._review({digest})

    def forget(self, link: str) -> None:
        """The link has ended: one of that name that comes later is another."""
        self._end({_digest(link)})

    def sweep(self, links: Iterable[str]) -> None:
        """The log speaks of links that have ended: these have not."""
        told = {link for (link, _), _ in EXCLUDED.of(self._queue.ring.attributes)}
        self._end(told.difference(map(_digest, links)))

    def _end(self, links: set[bytes]) -> None:
        ended = links & self._links.keys()
        for link in ended:
            for seq in self._links.pop(link):
                del self._excluded[seq, link]
                self._note(seq, link, False)
        if ended:
            self._review(ended)

    def _add(self, seq: int, link: bytes) -> bool:
        """Whether it is the link's first one."""
        self._excluded[seq, link] = None
        known = link in self._links
        self._links.setdefault(link, set()).add(seq)
        return not known

    def _note(self, seq: int, link: bytes, is_excluded: bool) -> None:
        """The log hears of it."""
        ring, bit = self._queue.ring, 1 << seq % BUCKET
        name = EXCLUDED.name((link, seq // BUCKET))
        before = ring.attributes.get(name, 0)
        if bool(before & bit) != is_excluded:
            ring.set_attribute(name, before ^ bit)

    def _forget(self) -> None:
        """Messages that have left the queue; if there are none and all room is taken, the oldest ones."""
        ring = self._queue.ring
        gone = [pair for pair in self._excluded if not ring.living(pair[0], pair[0], 1)]
        changed = set()
        if not gone and len(self._excluded) >= EXCLUDED_MAX:
            gone = list(self._excluded)[:FORGOTTEN_AT_ONCE]
            changed = {link for _, link in gone}
        for seq, link in gone:
            del self._excluded[seq, link]
            self._note(seq, link, False)
            self._links[link].discard(seq)
            if not self._links[link]:
                del self._links[link]
                changed.add(link)
        self._room = min(EXCLUDED_MAX, max(FORGOTTEN_AT_ONCE, 2 * len(self._excluded)))
        self._review(changed)

    def _review(self, links: set[bytes]) -> None:
        """These links have exclusions, or have none any more; what was passed over may be theirs now."""
        for member in self._queue.subscriptions:
            if member.link and _digest(member.link) in links:
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


def _digest(link: str) -> bytes:
    return blake2b(link.encode(), digest_size=LINK_BYTES).digest()
