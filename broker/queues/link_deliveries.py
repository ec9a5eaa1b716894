"""Deliveries of recoverable sender links that a queue has, by their tags: one that comes again is not stored twice.

A name (`attributes.LINK_DELIVERY`) is written in the group of its message, so every copy has both or neither. It stays
as long as the client may ask for it:

    none --taken--> known --its client settles it, or is known to have read its outcome (`forget`)--> none
                          --another delivery of the tag is taken--> known, of that one
                          --an attach that does not resume it; the link ends (`keep`, `drop_before`)--> none

Whether a delivery comes again its client says, by the unsettled map of its attach. Any other tag is a new delivery,
whatever is known by it. So a name too many does no harm until its tag is used again, and a name too few never is: of
no live link one is taken out for want of room. Without room deliveries are refused.

The value of a name is that of its delivery: attach << NUMBER_BITS | number at the link + 1. Later ones are higher, so
what is said about earlier ones does not touch them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from clusterbroker.broker.queues.attributes import LINK_DELIVERY, LINK_NAME_BYTES, LINK_NAMES_BYTES_MAX
from clusterbroker.broker.queues.ring import Ring

NUMBER_BITS: Final = 40
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 2
NUMBERS_MAX: Final = NUMBER_MAX - (1 << 16)
"""Deliveries of one attach before the link has to be attached again. Others may be on their way when that is asked."""
ATTACH_MAX: Final = (1 << 22) - 1
ATTACHES_MAX: Final = ATTACH_MAX - 1024
"""Attaches of one link before it has to end. Others may be on their way to the wiring when that is asked."""
STALE: Final = "the link is attached elsewhere, or has ended"
IN_TRANSACTION: Final = (
    "has a message of the link that another link's transaction still has at this node: attach it when that is over"
)
NO_ROOM: Final = (
    f"the queue remembers unsettled deliveries of recoverable links that take {LINK_NAMES_BYTES_MAX >> 20} MiB, the "
    "most there may be: their clients have to settle some"
)


def value_of(attach: int, number: int) -> int:
    """Of a delivery with this number, from 0, of this attach."""
    return attach << NUMBER_BITS | number + 1


class Tagged(NamedTuple):
    """Neighbouring deliveries of a recoverable sender link."""

    link: int
    attach: int
    number: int
    """Of the first of them at its attach, from 0; the others follow without a gap."""
    tags: list[bytes]
    again: frozenset[bytes] = frozenset()
    """Those of the tags by which a delivery comes that may be known already."""


class AskedTags(NamedTuple):
    """A question of an attach of a recoverable sender link."""

    link: int
    attach: int
    tags: tuple[bytes, ...]
    everything: bool = False
    """Also for what is known beside these tags."""
    upto: int = 0
    """Not 0: these are to be forgotten, but for deliveries with a higher value."""


class LinkDeliveries:
    """Those of one queue."""

    __slots__ = ("_by_link", "_count", "_ring", "_tag_bytes")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._by_link: dict[int, dict[int, bytes]] = {}  # link -> value -> tag
        self._tag_bytes = 0
        for (link, tag), value in LINK_DELIVERY.of(ring.attributes):
            self._by_link.setdefault(link, {})[value] = tag
            self._tag_bytes += len(tag)
        self._count = sum(map(len, self._by_link.values()))

    def __len__(self) -> int:
        return self._count

    @property
    def links(self) -> list[int]:
        """Of which something is known."""
        return list(self._by_link)

    def counts(self) -> dict[int, int]:
        """Link -> deliveries that are known of it."""
        return {link: len(tags) for link, tags in self._by_link.items()}

    @property
    def bytes_held(self) -> int:
        """Memory that the names take, about."""
        return self._count * LINK_NAME_BYTES + 2 * self._tag_bytes

    def has_room(self, tags: Collection[bytes]) -> bool:
        """For deliveries with these tags."""
        more = len(tags) * LINK_NAME_BYTES + 2 * sum(map(len, tags))
        return self.bytes_held + more <= LINK_NAMES_BYTES_MAX

    def known(self, link: int, since: int, tags: Collection[bytes]) -> list[bytes]:
        """Those of the tags whose deliveries are here; only what attach `since` or a later one has sent counts."""
        known, prefix, least = self._ring.attributes.get, LINK_DELIVERY.name((link, b"")), value_of(since, 0)
        return [tag for tag in tags if known(prefix + tag, 0) >= least]

    def all(self, link: int, since: int) -> list[bytes]:
        """All tags of the link, in the order of their deliveries."""
        least = value_of(since, 0)
        return [tag for value, tag in sorted(self._by_link.get(link, {}).items()) if value >= least]

    def answer(self, asked: AskedTags, since: int) -> list[bytes]:
        """The tags that are asked for and known; the asked ones come first."""
        found = self.known(asked.link, since, asked.tags)
        if asked.everything:
            found = list(dict.fromkeys((*found, *self.all(asked.link, since))))
        return found

    def new(self, tagged: Tagged, since: int) -> list[int] | None:
        """The places of those that are to be stored; None: all of them."""
        if not tagged.again:
            return None
        known = set(self.known(tagged.link, since, tagged.again))
        return [place for place, tag in enumerate(tagged.tags) if tag not in known] if known else None

    def note(self, tagged: Tagged, places: Sequence[int] | None = None) -> None:
        """They are appended in this turn; those at these places only, if they are given."""
        prefix, first = LINK_DELIVERY.name((tagged.link, b"")), value_of(tagged.attach, tagged.number)
        index = self._by_link.setdefault(tagged.link, {})
        before = len(index)
        if places is None:
            self._tag_bytes += self._ring.note_deliveries(prefix, first, tagged.tags, index)
        else:
            for place in places:
                self._tag_bytes += self._ring.note_deliveries(prefix, first + place, [tagged.tags[place]], index)
        self._changed(tagged.link, before)

    def forget(self, link: int, upto: int, tags: list[bytes]) -> None:
        """The client does not ask for these any more; a delivery with a value above `upto` is another one."""
        index = self._by_link.get(link)
        if index is not None:
            before = len(index)
            self._tag_bytes -= self._ring.forget_deliveries(LINK_DELIVERY.name((link, b"")), upto, tags, index)
            self._changed(link, before)

    def keep(self, link: int, attach: int, tags: Collection[bytes]) -> None:
        """Of what earlier attaches have sent the client may ask for these only."""
        kept, upto = frozenset(tags), value_of(attach, 0) - 1
        over = [tag for value, tag in self._by_link.get(link, {}).items() if value <= upto and tag not in kept]
        if over:
            self.forget(link, upto, over)

    def drop(self, link: int) -> None:
        """The link has ended."""
        self.keep(link, ATTACH_MAX, ())

    def _changed(self, link: int, before: int) -> None:
        count = len(self._by_link[link])
        self._count += count - before
        if not count:
            del self._by_link[link]
