"""Documents of the time line: changes of owners, of members, and where its record begins.

One list, the newest first. A user sees moves of queues in vhosts that it may enter; who may see nodes sees what
happened to members and to the cluster too. The last entry says from when on all is told, so a list is never without it.

Asked with `grouped=true`, moves between the same members for the same reason that followed upon each other within
TOGETHER_MS are one entry with their number: what a member that fails leaves behind is a thousand moves at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from typing import Final

import msgspec

from .errors import object_not_found
from .paging import Listing, newest_first
from .principals import MONITORING
from .reading import Document, Reading, moment
from .timeline import BEGAN, AnyEvent, Event, Happened, Moved, Raised, Since

TOGETHER_MS: Final = 1_000
EXAMPLES: Final = 5


class Group(msgspec.Struct):
    """Moves that belong together."""

    newest: Moved
    oldest: Moved
    count: int
    examples: list[Moved]

    @property
    def number(self) -> int:
        """Of its newest move."""
        return self.newest.number


AnyEntry = AnyEvent | Group


def listing(reading: Reading) -> Listing[AnyEntry]:
    """All that the user may see."""
    timeline, principal = reading.replica.timeline, reading.principal
    monitors = principal.has(MONITORING)
    happened = [event for event in timeline.happened() if monitors or _is_gap(event)]
    opened = frozenset(principal.open_vhosts())
    moved: Iterable[Moved] = (event for event in timeline.moves() if event.vhost in opened)
    if reading.query.get("grouped", "").lower() == "true":
        return _listing(groups(moved), happened, timeline.since)
    return _listing(moved, happened, timeline.since)


def groups(moved: Iterable[Moved]) -> list[Group]:
    """Of moves, the newest first; each stands where its newest move did."""
    found: list[Group] = []
    growing: dict[tuple[str | None, str | None, str], Group] = {}
    for move in moved:
        way = (move.previous, move.owner, move.why)
        group = growing.get(way)
        if group is None or group.oldest.at_ms - move.at_ms > TOGETHER_MS:
            growing[way] = Group(move, move, 1, [move])
            found.append(growing[way])
            continue
        group.oldest = move
        group.count += 1
        if len(group.examples) < EXAMPLES:
            group.examples.append(move)
    return found


def of_queue(reading: Reading, vhost: str, name: str) -> Listing[AnyEntry]:
    """What one queue went through, and gaps. Refused (404) without one."""
    queue = reading.map.queue(vhost, name)
    if queue is None:
        raise object_not_found()
    timeline = reading.replica.timeline
    gaps = filter(_is_gap, timeline.happened())
    moved = timeline.moves_of(queue.queue_id)
    return _listing(moved, gaps, timeline.since_of(queue.queue_id))


def _is_gap(event: Happened | Raised) -> bool:
    return isinstance(event, Happened) and not event.member


def _listing(
    moved: Iterable[Moved] | list[Group], happened: Iterable[Happened | Raised], since: Since
) -> Listing[AnyEntry]:
    both: tuple[Iterable[AnyEntry], ...] = (moved, happened)
    entries = merge(*both, key=lambda entry: entry.number, reverse=True)
    return Listing(
        [*entries, Happened(number=0, at_ms=since.at_ms, index=since.index, what=BEGAN)],
        name=_name,
        place=lambda entry: newest_first(entry.number),
        document=document,
    )


def _name(entry: AnyEntry) -> str:
    match entry:
        case Moved():
            return entry.queue
        case Happened():
            return entry.member
        case Group():
            return " ".join(move.queue for move in entry.examples)
        case Raised():
            return ""


def document(entry: AnyEntry) -> Document:
    """One entry."""
    match entry:
        case Moved():
            return _head(entry) | {
                "kind": "move",
                "vhost": entry.vhost,
                "queue": entry.queue,
                "from": entry.previous,
                "to": entry.owner,
                "epoch": entry.epoch,
                "why": entry.why,
            }
        case Group():
            return _head(entry.newest) | {
                "kind": "moves",
                "began_ms": entry.oldest.at_ms,
                "count": entry.count,
                "examples": [{"vhost": move.vhost, "queue": move.queue} for move in entry.examples],
                "from": entry.newest.previous,
                "to": entry.newest.owner,
                "why": entry.newest.why,
            }
        case Happened(member=""):
            return _head(entry) | {"kind": "record", "what": entry.what}
        case Happened():
            return _head(entry) | {"kind": "member", "member": entry.member, "what": entry.what}
        case Raised():
            return _head(entry) | {"kind": "level", "level": entry.level, "what": f"feature level {entry.level}"}


def _head(event: Event) -> Document:
    return {"number": event.number, "at": moment(event.at_ms), "at_ms": event.at_ms, "index": event.index}
