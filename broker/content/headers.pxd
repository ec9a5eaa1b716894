# What compiled rooms ask of a message's headers without decoding them.
from libc.stdint cimport int64_t, uint8_t

from clusterbroker.journal.record cimport Message

cdef enum:
    NUMBER = 1
    NO_NUMBER = 2
    DECODED = 3  # Python reads it

# Whether a header of this name may be there. Errs on the careful side, and says so of each format but AMQP 0-9-1's.
cdef bint may_name(Message message, const char *name, Py_ssize_t length) noexcept
# Of a message in AMQP 0-9-1's format with headers: where its table's fields begin and end. False: not to be seen.
cdef bint table_of(Message message, size_t *at, size_t *stop) noexcept
# Behind the field (name, tag, value) at `at`; 0: it does not fit.
cdef size_t next_field(const uint8_t *p, size_t at, size_t stop) noexcept nogil
# The whole number of the value whose tag is at `at`, which fits.
cdef int number_at(const uint8_t *p, size_t at, int64_t *number) noexcept nogil
