# What compiled rooms ask of a message's headers without decoding them.
from clusterbroker.journal.record cimport Message

# Whether a header of this name may be there. Errs on the careful side, and says so of each format but AMQP 0-9-1's.
cdef bint may_name(Message message, const char *name, Py_ssize_t length) noexcept
