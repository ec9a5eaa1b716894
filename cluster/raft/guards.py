"""Guard rails on incoming messages: pure functions from (own log, message) to the message for pysyncobj.

pysyncobj 0.3.17 cuts its log after `prev_index` regardless of the following entries, and so loses acknowledged
entries when a message is repeated or late (G4). It raises its commit index by entries never compared with the
leader's log (G5). Its followers ask for entries one conflict at a time, each from another place (G6).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from .fold import REGULAR, unseal
from .journal import NO_OP, Journal
from .messages import AnyMessage, Append, PreVoted, Snapshot

MEMBERSHIP: Final = b"\x02"
TERMS_AHEAD_MAX: Final = 1 << 32
"""More elections than anybody misses: a member with a later term is broken, and numbers do not go on for ever."""
_CHANGE: Final[msgspec.msgpack.Decoder[tuple[str, str]]] = msgspec.msgpack.Decoder(tuple[str, str])


class Normalised(NamedTuple):
    """An Append that never cuts what matches."""

    append: Append
    match: int | None
    """The follower may acknowledge up to here and no further; None: up to the end of the message."""


def normalised(journal: Journal, message: Append) -> Normalised | None:
    """Strip the entries that the log has already; None: nothing in the message can be true (G4).

    If nothing new is left and the log is longer, the message becomes a heartbeat at the log's own end: entries
    beyond the match may be false, but nothing in this message says so. Its commit index then reaches to the match.
    """
    message = _after_snapshot(journal, message)
    first, end = journal[0][1], journal[-1][1]
    previous, entries = message.prev_index, message.entries
    if not first <= previous <= end:
        return Normalised(message, None)
    if journal[previous - first][2] != message.prev_term:
        if previous == first:
            return None  # the snapshot's own entry cannot be wrong
        return Normalised(message, None)
    known = 0
    mine = journal[previous + 1 - first :]
    while known < min(len(entries), len(mine)) and mine[known][2] == entries[known][2]:
        known += 1
    match = previous + known
    if known == len(entries) and match < end:
        tail = journal[-1]
        commit = min(message.commit, match)
        return Normalised(Append(message.term, commit, tail[1], tail[2], ()), match)
    term = journal[match - first][2]
    return Normalised(Append(message.term, message.commit, match, term, entries[known:]), None)


def objection(journal: Journal, message: AnyMessage, *, term: int, leads: bool, committed: int) -> str | None:
    """Why no correct member can have sent this to one in this term; None: it may be true.

    Only its sender is wrong, so the link to it ends, and not the node.
    """
    theirs: int | None = getattr(message, "term", None)
    if theirs is None:
        return None
    newest = max(theirs, message.current) if isinstance(message, PreVoted) else theirs
    if newest > term + TERMS_AHEAD_MAX:
        return f"it speaks of term {newest}, and this is term {term}"
    if not isinstance(message, Append | Snapshot) or theirs < term:
        return None
    if leads and theirs == term:
        return f"two lead in term {term}, it and this node"
    return _entries_objection(journal, message, committed) if isinstance(message, Append) else None


def _entries_objection(journal: Journal, message: Append, committed: int) -> str | None:
    first = journal[0][1]
    before = message.prev_term
    terms: list[tuple[int, int]] = [(message.prev_index, message.prev_term)]
    for place, entry in enumerate(message.entries, start=message.prev_index + 1):
        stored, index, term = entry
        if index != place or not before <= term <= message.term or not _is_entry(stored):
            return f"entry {index} of term {term} does not follow entry {place - 1} of term {before}, or is none"
        before = term
        terms.append((index, term))
    for index, term in terms:
        if first < index <= min(committed, journal[-1][1]) and journal[index - first][2] != term:
            return f"entry {index} is of term {journal[index - first][2]} and committed, and it says {term}"
    return None


def _is_entry(stored: bytes) -> bool:
    try:
        if stored[:1] == REGULAR:
            unseal(stored)
        elif stored[:1] == MEMBERSHIP:
            return change_of(stored)[0] in ("add", "rem")
        else:
            return stored == NO_OP
    except ValueError:
        return False
    return True


def change_of(stored: bytes) -> tuple[str, str]:
    """Verb and Raft id of a change of voters."""
    return _CHANGE.decode(stored[1:])


def _after_snapshot(journal: Journal, message: Append) -> Append:
    """Drop what lies before the beginning of the log: it is committed, so it is the same."""
    first = journal[0]
    skipped = first[1] - message.prev_index
    if skipped <= 0 or skipped > len(message.entries):
        return message
    return Append(message.term, message.commit, first[1], message.entries[skipped - 1][2], message.entries[skipped:])


def resend_from(asked: int, committed: int) -> int:
    """Whence a follower asks for entries again: the committed prefix matches always, so all askings agree (G6)."""
    return min(asked, committed + 1)


def is_current_ack(term: int, current: int, next_index: int, end: int) -> bool:
    """Whether an acknowledgement is of this term and of entries that exist (G7)."""
    return term == current and next_index <= end + 1
