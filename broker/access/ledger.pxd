# What a front's compiled deliveries see of the ledger.
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from clusterbroker.broker.queues.ring cimport Taker


cdef struct delivery:
    uint64_t tag
    uint64_t seq
    int64_t at_ms
    PyObject *consumer  # NULL: it left


cdef class Holder(Taker):
    cdef readonly DeliveryLedger ledger
    cdef readonly uint64_t unacked
    cdef size_t place  # where its ledger holds it: 0 nowhere, 1 `sole`, n + 2 in `holders`


cdef class DeliveryLedger:
    cdef public uint64_t prefetch
    cdef public bint flowing
    cdef readonly uint64_t unacked
    cdef readonly uint64_t next_tag
    cdef readonly uint64_t skipped
    cdef readonly uint64_t redelivered
    cdef public object took  # None, or called with (ledger, tag, message) of each delivery that has to be settled
    cdef Holder sole
    cdef list holders
    cdef delivery *entries
    cdef size_t first
    cdef size_t end
    cdef size_t room

    cdef int hold(self, Holder consumer) except -1
    cdef int let_go(self, Holder consumer) except -1
    cdef int make_room(self) except -1
    cdef uint64_t put(self, Holder consumer, uint64_t seq, int64_t now_ms) except 0
    # NULL: the tag is not outstanding
    cdef delivery *find(self, uint64_t tag) noexcept
    cdef void remove(self, delivery *entry) noexcept
    cdef int settle_entry(self, delivery *entry) except -1
    cdef tuple collect_entry(self, delivery *entry)
