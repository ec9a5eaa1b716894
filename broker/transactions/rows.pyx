"""What a mover does with each row of a group; tests/model/rows.py is the specification."""

from libc.stdint cimport int64_t, uint64_t

from clusterbroker.broker.content.headers cimport may_name
from clusterbroker.journal.record cimport Message, make_message

cdef bint is_alone(Message message) noexcept:
    return may_name(message, b"CC", 2) or may_name(message, b"x-producer", 10)


def looks_alone(Message message not None) -> bool:
    """Whether the row's own headers matter: copies, or a producer that numbers it. May err on the careful side."""
    return is_alone(message)


def next_rows(ring, uint64_t first, uint64_t last, uint64_t rows_max, uint64_t bytes_max) -> tuple:
    """The next rows of `first` to `last`: seqs, messages (None: on disk only), and the places of those on disk."""
    cdef list seqs = [], messages = [], absent = []
    cdef uint64_t size = 0
    cdef tuple place, location = None
    cdef Message message
    message_of = ring.message
    for place in <list>ring.living(first, last, rows_max):
        seq = place[0]
        message = message_of(seq)
        if message is None:
            location = ring.location(seq)
            size += <uint64_t>location[3]
        else:
            size += <uint64_t>message.size
        if seqs and size > bytes_max:
            break
        seqs.append(seq)
        messages.append(message)
        if message is None:
            absent.append(location)
    return seqs, messages, absent


def divide(list seqs not None, list messages not None, dict ways not None, way_of, int64_t now_ms) -> list:
    """Puts each row into its parts, with its address of then and the time of now; the seqs of those that have none."""
    cdef Message message, row
    cdef Py_ssize_t at
    cdef bint alone
    cdef tuple way = None
    cdef bytes last = None
    cdef list lists = None, lost = []
    for at in range(len(messages)):
        message = <Message?>messages[at]
        alone = is_alone(message)
        if alone or last is None or message.address is not last:
            way = None if alone else <tuple>ways.get(message.address)
            if way is None:
                way = <tuple?>way_of(message, alone)
            last = None if alone or message.address not in ways else message.address
            lists = [(part.messages, part.seqs) for part in way[1]]
        if not lists:
            lost.append(seqs[at])
            continue
        row = make_message(
            <bytes>way[0], message.payload, message.header_length, message.flags, message.priority, now_ms,
            message.ttl_ms, message.format,
        )
        for pair in lists:
            (<list>(<tuple>pair)[0]).append(row)
            (<list>(<tuple>pair)[1]).append(seqs[at])
    return lost


def settle_rows(ring, list seqs not None) -> None:
    """They have left their segment."""
    settle = ring.settle
    for seq in seqs:
        settle(seq)
