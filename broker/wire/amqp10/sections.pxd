# What codec and deliveries see of a message's sections.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from clusterbroker.journal.record cimport Message


# Where the sections of a message lie in a payload; each ends where the next one begins. A section that is absent is
# empty. `annotations` stands behind delivery annotations, which are not kept.
cdef struct sections:
    uint64_t delivery_annotations
    uint64_t annotations
    uint64_t properties
    uint64_t application
    uint64_t body
    bint durable
    uint8_t priority
    int64_t ttl_ms
    bint has_user_id
    bint has_reply_to

# Whether payload[:length] is a message; on the way finds its sections. A body, which 3.2 asks for, need not be there:
# Proton leaves it out where it is null. `most`: values before the body, each of a map twice, for its keys are looked at.
cdef bint find_sections(const uint8_t *payload, uint64_t length, sections *found, uint32_t most=*) noexcept

# Of a stored message's header: where the entries of its annotations stand (`entries` bytes, `count` values), and where
# its properties begin.
cdef struct header_parts:
    uint64_t at
    uint64_t entries
    uint64_t count
    uint64_t rest

# False: an annotation of the node's own is among them.
cdef bint split_header(const uint8_t *header, uint64_t length, header_parts *parts) noexcept

# The message, without its delivery annotations.
cdef Message message_of(bytes address, const uint8_t *payload, uint64_t length, const sections *found, int64_t now_ms)

# Values that are walked: `p[:end]`; `left` of them may still come.
cdef struct walk:
    const uint8_t *p
    uint64_t end
    uint32_t left

# The offset behind the value at `at`, or 0: it is none, or not all there. `depth`: of what it stands in.
cdef uint64_t skip_value(walk *w, uint64_t at, int depth) noexcept

# The number of the section at `at`, and where its value begins; 0: there is none, or it is not known.
cdef uint8_t descriptor_of(const uint8_t *p, uint64_t at, uint64_t end, uint64_t *behind) noexcept nogil
