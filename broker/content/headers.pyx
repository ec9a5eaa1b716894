"""A look for a header's name without decoding; `may_have_header` in Python."""

from libc.string cimport memcmp

from clusterbroker.journal.layout import HAS_HEADERS as _HAS_HEADERS
from clusterbroker.journal.record cimport Message, payload_start

cdef int HAS_HEADERS = _HAS_HEADERS
cdef enum:
    BASIC = 0  # broker/content/formats.py


cdef bint may_name(Message message, const char *name, Py_ssize_t length) noexcept:
    # a name stands in AMQP 0-9-1's properties as it is; a value with the same bytes is taken for it
    cdef const char *header = <const char *>payload_start(message)
    cdef Py_ssize_t at
    if message.format != BASIC:
        return True
    if not message.flags & HAS_HEADERS:
        return False
    for at in range(<Py_ssize_t>message.header_length - length + 1):
        if header[at] == name[0] and memcmp(header + at, name, length) == 0:
            return True
    return False


def may_have_header(Message message not None, bytes name not None) -> bool:
    """Whether a header of this name may be there. Errs on the careful side."""
    return may_name(message, name, len(name))
