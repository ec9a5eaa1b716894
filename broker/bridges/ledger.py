"""What a mover has to know after an interruption: the numbers that it gave to messages its source may hand out again.

A ledger is a list of records, oldest first, in a file (`file_ledger`) or in a queue of this broker (`queue_ledger`):

    record    | size u32 | CRC-32 u32 | body |
    body      b"O" producer                                        a new ledger: the name that goes with the numbers
              b"W" first u64, count u32, marks, prints              these numbers are about to be published
              b"C" next u64, known ...                              all below `next` are acknowledged, but these
              b"D" first u64, known ...                             of all below `first` only these can come again
    known     number u64, mark u8, print 8 bytes

A mark is `priority << 1 | redelivered`, as the message first came. A print is a hash of properties and body. A record
that is torn, and all behind it, was never finished, so nothing of it was published.

A number is `session << 32 | count`, and the producer's name ends in its session and in the priority of the message
("NAME/0b2c5f01/00"). A queue takes a number below another one of its producer for known. In a session, and within a
priority, numbers rise as the source hands out, at first and again; but a message of a new session, or of a higher
priority, may come before one that comes again.

Recognising (`Recognition`): a source hands out again, flagged as redelivered and in their order, what was not
acknowledged. A flagged message that equals a known one gets its number; what is known and lies before it is gone from
the source. It ends when the source is seen empty, when QUIET_WINDOWS brought nothing flagged, or when all is known.
The first message without the flag ends it for what has a twin, of its priority and above: had more been given back, it
would have come before, and the next flagged twin would be another message. (It does not end all: after a crash a quorum
queue of RabbitMQ hands out what its dead consumer had behind what is new.)

A classic queue of RabbitMQ that crashes forgets acknowledgements of the last moments, answered or not, and flags all
messages. So the last PAST_MAX that were closed are known as well, if they come in a run (`weigh`), until a message
comes that is none of them. Of these,
and of what an earlier session than the last one published, those with a twin are not recognised: a copy is better than
a loss.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

PRINT_BYTES: Final = 8
_HEAD: Final = struct.Struct(">II")
_WINDOW: Final = struct.Struct(">QI")
_NEXT: Final = struct.Struct(">Q")
_KNOWN: Final = struct.Struct(">QB8s")
QUIET_WINDOWS: Final = 2
RUN_LEAST: Final = 2
"""Messages that follow each other as they were known: one alone proves nothing."""
PAST_MAX: Final = 1 << 16
SESSION_SHIFT: Final = 32
EPOCH_S: Final = 1_577_836_800
"""2020-01-01"""
RECORD_BYTES_MAX: Final = 64 << 20


class BadLedger(Exception):
    """A ledger that this program cannot read: it has no beginning."""


class Known(NamedTuple):
    """A message that may have been published under a number."""

    number: int
    mark: int
    """priority << 1 | redelivered, when it was first seen"""
    print: bytes
    closed: bool = False
    """acknowledged, as far as the source said"""


class State(NamedTuple):
    """What a ledger says."""

    producer: bytes
    next: int
    """The first number that was never given."""
    window: tuple[Known, ...]
    """Perhaps not acknowledged, and the last that were, in their order."""
    last_session: int = 0
    """The one before this."""


def framed(body: bytes) -> bytes:
    """A body as a record."""
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def opened(producer: bytes) -> bytes:
    """The body with which a ledger begins."""
    return b"O" + producer


def window(first: int, marks: bytes, prints: bytes) -> bytes:
    """The body for messages that are about to be published under `first` and the numbers behind it."""
    assert len(prints) == PRINT_BYTES * len(marks), "a print and a mark for each message"
    return b"W" + _WINDOW.pack(first, len(marks)) + marks + prints


def closed(next_: int, known: Iterable[Known] = ()) -> bytes:
    """The body that says that all below is acknowledged, but what is still `known`."""
    return b"C" + _NEXT.pack(next_) + b"".join(_KNOWN.pack(*one[:3]) for one in known)


def dropped(first: int, known: Iterable[Known]) -> bytes:
    """The body that says that of the numbers below `first` only what is still `known` can come again."""
    return b"D" + closed(first, known)[1:]


def bodies(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """(place behind the record, body) of each whole record from the start on."""
    at = 0
    while at + _HEAD.size <= len(octets):
        size, crc = _HEAD.unpack_from(octets, at)
        body = octets[at + _HEAD.size : at + _HEAD.size + size]
        if size > RECORD_BYTES_MAX or len(body) < size or zlib.crc32(body) != crc:
            return
        at += _HEAD.size + size
        yield at, body


def state(records: Iterable[bytes]) -> State:
    """The state after these bodies. Raises BadLedger. Costs as much as there are messages in them, however many windows
    these are: a node folds a ledger beside its other work."""
    fold = _Fold()
    try:
        for body in records:
            match body[:1]:
                case b"O":
                    fold = _Fold(body[1:])
                case b"W":
                    first, count = _WINDOW.unpack_from(body, 1)
                    fold.window(first, count, body[1 + _WINDOW.size :])
                case b"C" | b"D" as kind:
                    (upto,) = _NEXT.unpack_from(body, 1)
                    fold.over(upto, [Known(*one) for one in _KNOWN.iter_unpack(body[1 + _NEXT.size :])])
                    fold.next = upto if kind == b"C" else fold.next
                case _:
                    raise BadLedger("a record of a later version is in it")
    except (struct.error, IndexError):
        raise BadLedger("one of its records is too short") from None
    if not fold.producer:
        raise BadLedger("it has no beginning")
    return State(fold.producer, fold.next, tuple(sorted((*fold.past.values(), *fold.open.values()))))


class _Fold:
    """What is known so far: `open` may not be acknowledged, `past` is, the last PAST_MAX of them."""

    __slots__ = ("next", "open", "past", "producer")

    def __init__(self, producer: bytes = b"") -> None:
        self.producer, self.next = producer, 1
        self.open: dict[int, Known] = {}
        self.past: dict[int, Known] = {}

    def window(self, first: int, count: int, rest: bytes) -> None:
        """A record W: marks, then prints."""
        if len(rest) < count:
            raise IndexError
        for place in range(count):
            at = count + PRINT_BYTES * place
            self.past.pop(first + place, None)
            self.open[first + place] = Known(first + place, rest[place], rest[at : at + PRINT_BYTES])
        self.next = max(self.next, first + count)

    def over(self, upto: int, still: list[Known]) -> None:
        """All below is acknowledged, but these."""
        numbers = {one.number for one in still}
        for number in [number for number in self.open if number < upto and number not in numbers]:
            self.past[number] = self.open.pop(number)._replace(closed=True)
        for one in still:
            self.past.pop(one.number, None)
            self.open[one.number] = one
        for number in list(islice(self.past, max(0, len(self.past) - PAST_MAX))):
            del self.past[number]


def begun(of: State, now_s: float) -> State:
    """The state in a new session. `now_s`: since 1970; a session that was never recorded is not used again."""
    session = max((of.next >> SESSION_SHIFT) + 1, int(now_s) - EPOCH_S)
    return of._replace(next=(session << SESSION_SHIFT) + 1, last_session=of.next >> SESSION_SHIFT)


def summary(of: State) -> list[bytes]:
    """The fewest bodies with this state."""
    runs: list[list[Known]] = []
    for one in of.window:
        if one.closed and runs and runs[-1][-1].number + 1 == one.number:
            runs[-1].append(one)
        elif one.closed:
            runs.append([one])
    past = [
        window(run[0].number, bytes(one.mark for one in run), b"".join(one.print for one in run)) for run in runs
    ]  # fmt: skip
    return [opened(of.producer), *past, closed(of.next, (one for one in of.window if not one.closed))]


class Recognition:
    """Gives known messages their numbers when they come again."""

    __slots__ = ("_doubtful", "_open", "_twins", "_weighed", "dropped")

    def __init__(self, known: Iterable[Known], last_session: int = 0) -> None:
        self._weighed = False
        self.dropped = False
        """Something that the ledger has cannot come again: it is to be told before new numbers are."""
        self._open: dict[int, deque[Known]] = {}
        """By priority: a source keeps the order within each."""
        times: dict[bytes, int] = {}
        for one in known:
            self._open.setdefault(one.mark >> 1, deque()).append(one)
            times[one.print] = times.get(one.print, 0) + 1
        self._twins = {print_ for print_, count in times.items() if count > 1}
        # Which of two twins came again cannot be told when the source took back its word, for then it flags all, or
        # when a session since then may have been handed the other one and never knew.
        self._doubtful = {
            one.number
            for known in self._open.values()
            for one in known
            if one.print in self._twins and (one.closed or one.number >> SESSION_SHIFT < last_session)
        }

    @property
    def known(self) -> list[Known]:
        """What is not closed and may still come again, in the order of the numbers."""
        return sorted(one for known in self._open.values() for one in known if not one.closed)

    @property
    def is_over(self) -> bool:
        """Nothing more can come again."""
        return not self._open

    @property
    def weighs(self) -> bool:
        """The first messages with the flag have not come yet, and closed ones may be among them."""
        return not self._weighed and any(one.closed for known in self._open.values() for one in known)

    def end(self) -> None:
        """The source has nothing more."""
        self.dropped |= bool(self._open)
        self._open.clear()

    def new(self, priority: int = 256) -> None:
        """A message came that is new: what the source once took is taken. `priority`: it has no flag."""
        for other, known in list(self._open.items()):
            left = deque(
                one for one in known if not one.closed and not (other >= priority and one.print in self._twins)
            )
            self.dropped |= len(left) < len(known)
            if left:
                self._open[other] = left
            else:
                del self._open[other]

    def weigh(self, prints: Sequence[bytes]) -> None:
        """The first messages with the flag that come: closed ones are among them only if all of these follow in the
        order in which they were known, and one alone proves nothing."""
        if self._weighed:
            return
        self._weighed = True
        order = sorted(one for known in self._open.values() for one in known)
        for place, one in enumerate(order):
            if one.print == prints[0]:
                count = min(len(prints), len(order) - place)
                run = [each.print for each in order[place : place + count]]
                if not one.closed or (count > 1 and run == list(prints[:count])):
                    return
        self.new()

    def known_as(self, mark: int, print_: bytes) -> Known | None:
        """The next message of the source, if it is known."""
        known = self._open.get(mark >> 1, deque())
        if mark & 1:
            for place, one in enumerate(known):
                if one.print == print_ and one.number not in self._doubtful:
                    self.dropped |= place > 0
                    for _ in range(place + 1):
                        known.popleft()
                    if not known:
                        del self._open[mark >> 1]
                    return one
        self.new(256 if mark & 1 else mark >> 1)
        return None
