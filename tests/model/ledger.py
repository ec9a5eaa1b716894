"""Deliveries of a session that are not settled: the model of `broker.access.ledger`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from tests.model.ring_cluster import Ring
from tests.model.ring_taker import Taker


class Holder(Taker):
    """A consumer whose deliveries stand in a ledger."""

    __slots__ = ("ledger", "unacked")

    def __init__(self, ring: Ring, ledger: DeliveryLedger, priority: int = 0, owner: Any = None) -> None:
        super().__init__(ring, priority, owner)
        self.ledger = ledger
        self.unacked = 0


Entry = tuple[int, Holder, int]  # delivery tag, consumer, seq


class DeliveryLedger:
    """A session's unacknowledged deliveries by tag: 1, 2, 3 ...

    took      None, or called with (ledger, tag, message) of each delivery that has to be settled

    prefetch  basic.qos global: the limit of all the channel's consumers together, 0 = unlimited
    flowing   False while nothing may be delivered (channel closing)
    skipped, redelivered    totals: deliveries that need no acknowledgement, and those with the flag (not basic.get)
    """

    __slots__ = ("_entries", "flowing", "next_tag", "prefetch", "redelivered", "skipped", "took", "unacked")

    def __init__(self) -> None:
        self.prefetch = 0
        self.took: Any = None
        self.flowing = True
        self.unacked = 0
        self.skipped = self.redelivered = 0
        self.next_tag = 1
        self._entries: OrderedDict[int, tuple[Holder, int, int]] = OrderedDict()

    def add(self, consumer: Holder, seq: int, now_ms: int) -> int:
        tag = self.next_tag
        self.next_tag += 1
        self._entries[tag] = (consumer, seq, now_ms)
        self.unacked += 1
        consumer.unacked += 1
        return tag

    def skip(self) -> int:
        """A delivery that needs no acknowledgement still takes a tag."""
        tag = self.next_tag
        self.next_tag += 1
        self.skipped += 1
        return tag

    def holds(self, tag: int) -> bool:
        """Whether this delivery is not settled."""
        return tag in self._entries

    def _tags(self, tag: int, multiple: bool) -> list[int] | None:
        """amqp-rules 5.5: `multiple` with tag 0 means all; a tag that is not outstanding is an error."""
        if multiple and tag == 0:
            return list(self._entries)
        if tag not in self._entries:
            return None
        if not multiple:
            return [tag]
        tags = []
        for known in self._entries:
            if known > tag:
                break
            tags.append(known)
        return tags

    def collect(self, tag: int, multiple: bool) -> list[Entry] | None:
        """Takes the deliveries out without settling them, in tag order; None when the tag is unknown."""
        tags = self._tags(tag, multiple)
        if tags is None:
            return None
        return [self._collect(known) for known in tags]

    def _collect(self, tag: int) -> Entry:
        consumer, seq, _ = self._entries.pop(tag)
        self.unacked -= 1
        consumer.unacked -= 1
        return tag, consumer, seq

    def restore(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Puts collected deliveries back (a transaction was rolled back)."""
        for tag, consumer, seq in entries:
            assert tag < self.next_tag, "a delivery is put back under its own tag"
            assert tag not in self._entries, "a delivery is put back once"
            self._entries[tag] = (consumer, seq, now_ms)
            self.unacked += 1
            consumer.unacked += 1
        self._entries = OrderedDict(sorted(self._entries.items()))

    def drain(self) -> list[Entry]:
        """Takes all out, in tag order: the channel ends or recovers."""
        return [self._collect(tag) for tag in list(self._entries)]

    def drain_of(self, consumer: Holder) -> list[Entry]:
        """Takes all deliveries of one consumer out, in tag order."""
        tags = [tag for tag, (holder, _, _) in self._entries.items() if holder is consumer]
        return [self._collect(tag) for tag in tags]

    def held(self) -> list[tuple[int, Holder]]:
        """(delivery time in ms of its oldest delivery, consumer) of each that holds one, oldest first."""
        found: dict[int, tuple[int, Holder]] = {}
        for consumer, _, at_ms in self._entries.values():
            found.setdefault(id(consumer), (at_ms, consumer))
        return list(found.values())

    def oldest(self) -> tuple[int, Holder, int] | None:
        """(delivery time in ms, consumer, tag) of the oldest unacknowledged delivery."""
        for tag, (consumer, _, at_ms) in self._entries.items():
            return at_ms, consumer, tag
        return None
