# A message as the node remembers it, and the records of a group commit; layout.py draws the bytes. The same in plain
# Python, which is the specification and explains every name, is tests/model/record.py.
# What is here and not there: a group is built in one growing buffer, checksums run on the processor's own
# crc32c instruction without the interpreter lock, and a message costs one object from a free list.
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from clusterbroker.journal.errors import DamagedRecord
from clusterbroker.journal.layout import KIND_NAMES, Record

# Castagnoli's polynomial, reflected. `crc_portable` takes eight bytes a step through eight tables and runs
# anywhere; `crc_sse42` uses the instruction on three neighbouring blocks at once, because it takes three cycles to
# answer but accepts one word per cycle. To join the blocks the checksum of the left one is moved over as many zero
# bytes as the right one is long; moving is linear, so four tables of 256 words do it. Little-endian hosts only.
cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>
    #include <sys/mman.h>

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "clusterbroker wants a little-endian machine"
    #endif

    #define CRC_LONG 2048
    #define CRC_SHORT 128
    #define COPY_PIECE (256 << 10)

    static uint32_t crc_table[8][256];
    static uint32_t crc_zeros_long[4][256];
    static uint32_t crc_zeros_short[4][256];
    static int crc_has_instruction = 0;

    static uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t n)
    {
        crc = ~crc;
        while (n >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            w ^= crc;
            crc = crc_table[7][w & 255] ^ crc_table[6][(w >> 8) & 255] ^ crc_table[5][(w >> 16) & 255]
                ^ crc_table[4][(w >> 24) & 255] ^ crc_table[3][(w >> 32) & 255] ^ crc_table[2][(w >> 40) & 255]
                ^ crc_table[1][(w >> 48) & 255] ^ crc_table[0][w >> 56];
            p += 8;
            n -= 8;
        }
        while (n--)
            crc = crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
        return ~crc;
    }

    /* what `crc` becomes after n zero bytes, the slow way; n is a multiple of 8 */
    static uint32_t crc_over_zeros(uint32_t crc, size_t n)
    {
        while (n--)
            crc = crc_table[0][crc & 255] ^ (crc >> 8);
        return crc;
    }

    static void crc_fill_zeros(uint32_t table[4][256], size_t n)
    {
        uint32_t moved[32];
        for (int bit = 0; bit < 32; bit++)
            moved[bit] = crc_over_zeros((uint32_t)1 << bit, n);
        for (int k = 0; k < 4; k++)
            for (int b = 0; b < 256; b++) {
                uint32_t sum = 0;
                for (int bit = 0; bit < 8; bit++)
                    if (b >> bit & 1)
                        sum ^= moved[8 * k + bit];
                table[k][b] = sum;
            }
    }

    #define CRC_MOVE(t, c) (t[0][(c) & 255] ^ t[1][((c) >> 8) & 255] ^ t[2][((c) >> 16) & 255] ^ t[3][(c) >> 24])

    #if defined(__x86_64__) && defined(__GNUC__)
    #define CRC_X86 1
    static inline uint64_t crc_word(const uint8_t *p)
    {
        uint64_t w;
        memcpy(&w, p, 8);
        return w;
    }

    #define CRC_THREE(block, table) \\
        while (n >= 3 * (block)) { \\
            uint64_t b = 0, c = 0; \\
            for (const uint8_t *end = p + (block); p < end; p += 8) { \\
                a = __builtin_ia32_crc32di(a, crc_word(p)); \\
                b = __builtin_ia32_crc32di(b, crc_word(p + (block))); \\
                c = __builtin_ia32_crc32di(c, crc_word(p + 2 * (block))); \\
            } \\
            a = CRC_MOVE(table, (uint32_t)a) ^ b; \\
            a = CRC_MOVE(table, (uint32_t)a) ^ c; \\
            p += 2 * (block); \\
            n -= 3 * (block); \\
        }

    #if defined(__clang__) && __clang_major__ >= 14
    __attribute__((target("sse4.2,crc32")))  /* which counts as one of its own */
    #else
    __attribute__((target("sse4.2")))
    #endif
    static uint32_t crc_sse42(uint32_t crc, const uint8_t *p, size_t n)
    {
        uint64_t a = (uint32_t)~crc;
        CRC_THREE(CRC_LONG, crc_zeros_long)
        CRC_THREE(CRC_SHORT, crc_zeros_short)
        for (; n >= 8; p += 8, n -= 8)
            a = __builtin_ia32_crc32di(a, crc_word(p));
        uint32_t rest = (uint32_t)a;
        while (n--)
            rest = __builtin_ia32_crc32qi(rest, *p++);
        return ~rest;
    }
    #endif

    static void crc_prepare(void)
    {
        for (int b = 0; b < 256; b++) {
            uint32_t crc = b;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
            crc_table[0][b] = crc;
        }
        for (int b = 0; b < 256; b++)
            for (int k = 1; k < 8; k++)
                crc_table[k][b] = crc_table[0][crc_table[k - 1][b] & 255] ^ (crc_table[k - 1][b] >> 8);
        crc_fill_zeros(crc_zeros_long, CRC_LONG);
        crc_fill_zeros(crc_zeros_short, CRC_SHORT);
    #ifdef CRC_X86
        __builtin_cpu_init();
        crc_has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    #endif
    }

    static inline uint32_t crc_of(const uint8_t *p, size_t n)
    {
    #ifdef CRC_X86
        if (crc_has_instruction)
            return crc_sse42(0, p, n);
    #endif
        return crc_portable(0, p, n);
    }

    /* Copies into memory that nobody has touched yet. The kernel is asked for the pages of a piece at once: a fault for
       each of them takes twice as long as the copy, and a piece is still in the cache when it is written. */
    static void copy_fresh(uint8_t *to, const uint8_t *from, size_t n)
    {
    #ifdef __linux__
        const uintptr_t page = 4096, populate_write = 23;  /* MADV_POPULATE_WRITE, Linux 5.14; an older kernel refuses */
        static int refused = 0;
        while (!refused && n) {
            size_t piece = n < COPY_PIECE ? n : COPY_PIECE;
            uintptr_t start = (uintptr_t)to & ~(page - 1), end = ((uintptr_t)to + piece + page - 1) & ~(page - 1);
            refused = madvise((void *)start, end - start, populate_write) != 0;
            memcpy(to, from, piece);
            to += piece;
            from += piece;
            n -= piece;
        }
    #endif
        memcpy(to, from, n);
    }

    #pragma pack(push, 1)
    typedef struct { uint32_t magic, crc, length, records; uint64_t lsn, time_ms; } group_head;
    typedef struct {
        uint32_t length, crc; uint8_t kind, flags, priority, format; uint32_t epoch; uint64_t queue_id, seq;
    } record_head;
    typedef struct { uint64_t time_ms; int64_t ttl_ms; uint16_t address, delivery_count; uint32_t header; } enq_head;
    #pragma pack(pop)

    /* Fills in every checksum of a group; -1 when the group is not what a GroupWriter builds. */
    static int seal_group(uint8_t *p, size_t n)
    {
        group_head head;
        if (n < sizeof head)
            return -1;
        memcpy(&head, p, sizeof head);
        if (head.length != n)
            return -1;
        size_t at = sizeof head;
        for (uint32_t i = 0; i < head.records; i++) {
            uint32_t length, crc;
            if (n - at < sizeof(record_head))
                return -1;
            memcpy(&length, p + at, 4);
            size_t padded = ((size_t)length + 7) & ~(size_t)7;
            if (length < sizeof(record_head) || padded > n - at)
                return -1;
            crc = crc_of(p + at + 8, length - 8);
            memcpy(p + at + 4, &crc, 4);
            at += padded;
        }
        uint32_t crc = crc_of(p + 8, sizeof head - 8);
        memcpy(p + 4, &crc, 4);
        return at == n ? 0 : -1;
    }
    """
    ctypedef struct group_head:
        uint32_t magic
        uint32_t crc
        uint32_t length
        uint32_t records
        uint64_t lsn
        uint64_t time_ms
    ctypedef struct record_head:
        uint32_t length
        uint32_t crc
        uint8_t kind
        uint8_t flags
        uint8_t priority
        uint8_t format
        uint32_t epoch
        uint64_t queue_id
        uint64_t seq
    ctypedef struct enq_head:
        uint64_t time_ms
        int64_t ttl_ms
        uint16_t address
        uint16_t delivery_count
        uint32_t header
    void crc_prepare() nogil
    uint32_t crc_of(const uint8_t *p, size_t n) nogil
    uint32_t crc_portable(uint32_t crc, const uint8_t *p, size_t n) nogil
    void copy_fresh(uint8_t *to, const uint8_t *source, size_t n) nogil
    int seal_group(uint8_t *p, size_t n) nogil

cdef extern from "commit_thread.h":
    ctypedef struct commit_thread:
        int[2] pipe
    int put_group(int fd, const uint8_t *p, size_t n, int64_t offset, bint sync) nogil
    commit_thread *commit_open() nogil
    void commit_ask(commit_thread *t, int fd, uint8_t *data, size_t length, int64_t offset, bint sync,
                    int before) nogil
    int commit_take(commit_thread *t, bint wait, int *result) nogil
    void commit_close(commit_thread *t) nogil

crc_prepare()

cdef enum:
    MAGIC = 0x314A4243
    GROUP_HEADER_BYTES = 32
    RECORD_HEADER_BYTES = 32
    ENQ_OVERHEAD_BYTES = 56
    ENQ = 1
    SET = 2
    RSV = 3
    REQ = 4
    DEAD = 5
    CUT = 6
    ATTR = 7
    EPO = 8
    REDELIVERED_BIT = 0x80
    ATTRIBUTE_BYTES_MAX = 1024
    PERSISTENT = 1
    FIRST_CAPACITY = 16384
    LARGE_BYTES = 1 << 25  # of a group: the system gives it a mapping of its own
    FRESH_BYTES = 1 << 16  # of a payload in it: worth a call to the system


cdef inline uint64_t padded(uint64_t length) noexcept nogil:
    return (length + 7) & ~<uint64_t>7


def checksum(data) -> int:
    """crc32c (Castagnoli) of the bytes."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < 65536:
        crc = crc_of(<const uint8_t *>view.buf, view.len)
    else:
        with nogil:
            crc = crc_of(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def _checksum_portable(data) -> int:
    """The same without the processor's instruction; for the tests."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    cdef uint32_t crc = crc_portable(0, <const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class Message:
    """One published message."""

    def __init__(self, bytes address not None, bytes payload not None, uint32_t header_length, uint8_t flags=0,
                 uint8_t priority=0, int64_t time_ms=0, int64_t ttl_ms=-1, uint8_t format=0):
        self.address = address
        self.payload = payload
        self.header_length = header_length
        self.flags = flags
        self.priority = priority
        self.time_ms = time_ms
        self.ttl_ms = ttl_ms
        self.format = format

    @property
    def exchange(self) -> bytes:
        return self.address[1 : 1 + <uint8_t>self.address[0]]

    @property
    def routing_key(self) -> bytes:
        return self.address[2 + <uint8_t>self.address[0] :]

    @property
    def header(self) -> bytes:
        return self.payload[: self.header_length]

    @property
    def body(self) -> bytes:
        return self.payload[self.header_length :]

    @property
    def body_length(self) -> int:
        return <Py_ssize_t>payload_size(self) - <Py_ssize_t>self.header_length

    @property
    def persistent(self) -> bool:
        return (self.flags & PERSISTENT) != 0

    @property
    def size(self) -> int:
        return padded(ENQ_OVERHEAD_BYTES + address_size(self) + payload_size(self))

    def __repr__(self) -> str:
        return f"<Message {self.exchange!r} {self.routing_key!r} {self.body_length} bytes>"


cdef Message make_message(bytes address, bytes payload, uint32_t header_length, uint8_t flags, uint8_t priority,
                          int64_t time_ms, int64_t ttl_ms, uint8_t format):
    cdef Message message = Message.__new__(Message)
    message.address = address
    message.payload = payload
    message.header_length = header_length
    message.flags = flags
    message.priority = priority
    message.time_ms = time_ms
    message.ttl_ms = ttl_ms
    message.format = format
    return message


@cython.final
cdef class GroupWriter:
    """Collects the records of one group commit."""

    def __init__(self, uint32_t segment, uint64_t offset, uint64_t bytes_max=8 << 20, uint64_t expected=0):
        """`expected`: about so many bytes of records. Of a large group they are given a place at once, so that none of
        them is moved when it grows."""
        self.segment = segment
        self.offset = offset
        self.bytes_max = bytes_max
        self.expected = expected
        self.records = 0
        self.size = GROUP_HEADER_BYTES

    @property
    def full(self) -> bool:
        return self.size >= self.bytes_max

    cdef uint64_t put_enqueue(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message,
                              uint16_t delivery_count) except 0:
        cdef size_t address = address_size(message), payload = payload_size(message)
        cdef uint64_t length = ENQ_OVERHEAD_BYTES + address + payload
        cdef uint64_t offset = self.offset + self.size
        cdef uint8_t *at = room(self, length)
        cdef record_head *head = <record_head *>at
        cdef enq_head *fields = <enq_head *>(at + RECORD_HEADER_BYTES)
        head.length = <uint32_t>length
        head.crc = 0
        head.kind = ENQ
        head.flags = message.flags
        head.priority = message.priority
        head.format = message.format
        head.epoch = epoch
        head.queue_id = queue_id
        head.seq = seq
        fields.time_ms = <uint64_t>message.time_ms
        fields.ttl_ms = message.ttl_ms
        fields.address = <uint16_t>address
        fields.delivery_count = delivery_count
        fields.header = message.header_length
        memcpy(at + ENQ_OVERHEAD_BYTES, address_start(message), address)
        if payload < FRESH_BYTES or self.capacity < LARGE_BYTES:
            memcpy(at + ENQ_OVERHEAD_BYTES + address, payload_start(message), payload)
        else:
            copy_fresh(at + ENQ_OVERHEAD_BYTES + address, payload_start(message), payload)
        close_record(self, at, length)
        return offset

    cdef int put_settle(self, uint64_t queue_id, uint32_t epoch, const uint64_t *ranges, size_t n,
                        uint8_t cause) except -1:
        cdef uint64_t length = RECORD_HEADER_BYTES + 16 * n
        cdef uint8_t *at
        if n == 0:
            raise IndexError("a SET record has at least one range")
        at = open_record(self, length, SET, cause, queue_id, epoch, ranges[0])
        memcpy(at + RECORD_HEADER_BYTES, ranges, 16 * n)
        close_record(self, at, length)
        return 0

    cdef int put_reserve(self, uint64_t queue_id, uint32_t epoch, uint64_t upto) except -1:
        close_record(self, open_record(self, RECORD_HEADER_BYTES, RSV, 0, queue_id, epoch, upto), RECORD_HEADER_BYTES)
        return 0

    cdef int put_count(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint16_t delivery_count) except -1:
        cdef uint8_t *at = open_record(self, RECORD_HEADER_BYTES + 2, REQ, 0, queue_id, epoch, seq)
        memcpy(at + RECORD_HEADER_BYTES, &delivery_count, 2)
        close_record(self, at, RECORD_HEADER_BYTES + 2)
        return 0

    cdef int put_dead(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint64_t mark) except -1:
        cdef uint8_t *at = open_record(self, RECORD_HEADER_BYTES + 8, DEAD, mark & 255, queue_id, epoch, seq)
        cdef uint64_t number = mark >> 8
        memcpy(at + RECORD_HEADER_BYTES, &number, 8)
        close_record(self, at, RECORD_HEADER_BYTES + 8)
        return 0

    def enqueue(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message not None,
                uint16_t delivery_count) -> int:
        """Adds an ENQ record; returns the offset at which it will stand in the segment."""
        return self.put_enqueue(queue_id, epoch, seq, message, delivery_count)

    def settle(self, uint64_t queue_id, uint32_t epoch, ranges, uint8_t cause=0) -> None:
        """Adds a SET record for the inclusive (first, last) ranges; there is at least one."""
        cdef size_t n = len(ranges), i
        cdef uint64_t *numbers = NULL
        if n == 0:
            raise IndexError("a SET record has at least one range")
        numbers = <uint64_t *>realloc(NULL, 16 * n)
        if numbers == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                first, last = ranges[i]
                numbers[2 * i] = first
                numbers[2 * i + 1] = last
            self.put_settle(queue_id, epoch, numbers, n, cause)
        finally:
            free(numbers)

    def reserve(self, uint64_t queue_id, uint32_t epoch, uint64_t upto) -> None:
        self.put_reserve(queue_id, epoch, upto)

    def count_delivery(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint16_t delivery_count) -> None:
        self.put_count(queue_id, epoch, seq, delivery_count)

    def dead(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint64_t mark) -> None:
        """Adds a DEAD record; `mark` is number << 8 | reason."""
        self.put_dead(queue_id, epoch, seq, mark)

    def cut(self, uint64_t queue_id, uint32_t epoch, uint64_t from_seq) -> None:
        close_record(self, open_record(self, RECORD_HEADER_BYTES, CUT, 0, queue_id, epoch, from_seq),
                     RECORD_HEADER_BYTES)

    def set_attribute(self, uint64_t queue_id, uint32_t epoch, bytes name not None, uint64_t upto) -> None:
        cdef size_t size = PyBytes_GET_SIZE(name)
        cdef uint64_t length = RECORD_HEADER_BYTES + 8 + size
        cdef uint8_t *at
        if not 0 < size <= ATTRIBUTE_BYTES_MAX:
            raise ValueError(f"an attribute's name has 1 to {ATTRIBUTE_BYTES_MAX} bytes")
        at = open_record(self, length, ATTR, 0, queue_id, epoch, 0)
        memcpy(at + RECORD_HEADER_BYTES, &upto, 8)
        memcpy(at + RECORD_HEADER_BYTES + 8, PyBytes_AS_STRING(name), size)
        close_record(self, at, length)

    def begin_epoch(self, uint64_t queue_id, uint32_t epoch, uint64_t first_seq) -> None:
        close_record(self, open_record(self, RECORD_HEADER_BYTES, EPO, 0, queue_id, epoch, first_seq),
                     RECORD_HEADER_BYTES)

    def append(self, data) -> int:
        """Adds records that `verify_records` has passed."""
        cdef Py_buffer view
        cdef record_view record
        cdef uint64_t offset = self.offset + self.size
        cdef uint8_t *at
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            at = room(self, view.len)
            memcpy(at, view.buf, view.len)
            record.next = 0
            while next_record(at, view.len, &record, False):
                if record.kind == ENQ:
                    at[record.at + 9] &= <uint8_t>~REDELIVERED_BIT
                self.records += 1
            self.size += view.len
        finally:
            PyBuffer_Release(&view)
        return offset

    def span(self, uint64_t start, uint64_t end) -> bytes:
        """The records between two values that `size` had, with their checksums."""
        if not GROUP_HEADER_BYTES <= start <= end <= self.size:
            raise ValueError("a span lies within the group")
        return sealed(self.data + start, end - start)

    def finish(self, uint64_t lsn, uint64_t time_ms) -> bytearray:
        """The group's bytes, complete but for the checksums. The writer is spent afterwards."""
        cdef group_head *head
        if self.data == NULL:
            room(self, 0)
        head = <group_head *>self.data
        head.magic = MAGIC
        head.crc = 0
        head.length = <uint32_t>self.size
        head.records = <uint32_t>self.records
        head.lsn = lsn
        head.time_ms = time_ms
        PyByteArray_Resize(self.group, self.size)  # cut where it lies: a large group takes as long to copy as to fill
        group = self.group
        forget(self)
        return group


cdef uint8_t *room(GroupWriter writer, uint64_t length) except NULL:
    # The place of the next record; padding is zeroed here, the rest is the caller's.
    cdef uint64_t whole = padded(length), capacity = writer.capacity
    if writer.size + whole > capacity:
        capacity = max(capacity, writer.expected if writer.expected >= LARGE_BYTES else <uint64_t>FIRST_CAPACITY)
        while capacity < writer.size + whole:
            capacity *= 2
        if writer.group is None:
            writer.group = PyByteArray_FromStringAndSize(NULL, capacity)
        else:
            PyByteArray_Resize(writer.group, capacity)
        writer.data = <uint8_t *>PyByteArray_AS_STRING(writer.group)
        writer.capacity = capacity
    return writer.data + writer.size


cdef inline void forget(GroupWriter writer) noexcept:
    writer.group = None
    writer.data = NULL
    writer.capacity = 0


cdef inline void close_record(GroupWriter writer, uint8_t *at, uint64_t length) noexcept:
    cdef uint64_t whole = padded(length)
    memset(at + length, 0, whole - length)
    writer.size += whole
    writer.records += 1


cdef uint8_t *open_record(GroupWriter writer, uint64_t length, uint8_t kind, uint8_t flags, uint64_t queue_id,
                          uint32_t epoch, uint64_t seq) except NULL:
    cdef uint8_t *at = room(writer, length)
    cdef record_head *head = <record_head *>at
    head.length = <uint32_t>length
    head.crc = 0
    head.kind = kind
    head.flags = flags
    head.priority = 0
    head.format = 0
    head.epoch = epoch
    head.queue_id = queue_id
    head.seq = seq
    return at


cdef bytes sealed(const uint8_t *data, size_t size):
    # a copy of the records with their checksums
    cdef bytes made = PyBytes_FromStringAndSize(<const char *>data, size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(made)
    cdef size_t at = 0
    cdef uint32_t length, crc
    while at < size:
        memcpy(&length, p + at, 4)
        crc = crc_of(p + at + 8, length - 8)
        memcpy(p + at + 4, &crc, 4)
        at += padded(length)
    return made


@cython.final
cdef class RecordBuffer:
    """ENQ records on their way to another node."""

    def __cinit__(self):
        self.writer = GroupWriter(0, 0, 0)

    def __init__(self, uint64_t size_max=1 << 20):
        self.size_max = size_max

    cdef int put(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message, uint16_t delivery_count,
                 bint redelivered) except -1:
        cdef uint64_t offset = self.writer.put_enqueue(queue_id, epoch, seq, message, delivery_count)
        cdef record_head *head = <record_head *>(self.writer.data + offset)
        head.flags = (head.flags & <uint8_t>~REDELIVERED_BIT) | (REDELIVERED_BIT if redelivered else 0)
        self.size = self.writer.size - GROUP_HEADER_BYTES
        self.count += 1
        return 0

    def enqueue(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message not None,
                uint16_t delivery_count, bint redelivered) -> None:
        self.put(queue_id, epoch, seq, message, delivery_count, redelivered)

    def enqueue_all(self, uint64_t queue_id, uint32_t epoch, uint64_t first_seq, messages, size_t start=0) -> int:
        """New messages with rising seqs."""
        cdef list batch = messages if type(messages) is list else list(messages)
        cdef size_t place
        cdef uint64_t seq = first_seq
        for place in range(start, len(batch)):
            self.put(queue_id, epoch, seq, <Message?>batch[place], 0, False)
            seq += 1
        return seq - first_seq

    def take(self) -> bytes:
        """All records with their checksums; the buffer is empty then."""
        cdef bytes taken
        if self.count == 0:
            return b""
        taken = sealed(self.writer.data + GROUP_HEADER_BYTES, self.size)
        forget(self.writer)
        self.writer.size = GROUP_HEADER_BYTES
        self.writer.records = 0
        self.size = self.count = 0
        return taken


def size_of(messages) -> int:
    """Bytes of all these messages."""
    cdef uint64_t size = 0
    cdef Message message
    for item in messages:
        message = <Message?>item
        size += padded(ENQ_OVERHEAD_BYTES + address_size(message) + payload_size(message))
    return size


def seal(group: bytearray) -> None:
    """Fills in every checksum of a finished group, in place, without the interpreter lock."""
    cdef Py_buffer view
    cdef int wrong
    PyObject_GetBuffer(group, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    with nogil:
        wrong = seal_group(<uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    if wrong:
        raise AssertionError("a group is sealed whole")


def write_group(int fd, group: bytearray, int64_t offset, bint sync) -> int:
    """seal, pwrite and fdatasync in one go without the interpreter lock."""
    cdef Py_buffer view
    cdef int wrong, error = 0
    PyObject_GetBuffer(group, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    with nogil:
        wrong = seal_group(<uint8_t *>view.buf, view.len)
        if not wrong:
            error = put_group(fd, <const uint8_t *>view.buf, view.len, offset, sync)
    PyBuffer_Release(&view)
    if wrong:
        raise AssertionError("a group is sealed whole")
    return error


@cython.final
cdef class CommitThread:
    """Writes one group at a time without the interpreter lock; see commit_thread.h. Called from one thread."""

    cdef commit_thread *thread
    cdef Py_buffer view
    cdef bint asked

    def __init__(self):
        self.thread = commit_open()
        if self.thread == NULL:
            raise OSError("no thread or pipe for the journal")

    def __dealloc__(self):
        if self.thread != NULL:
            self.close()

    def fileno(self) -> int:
        """Becomes readable when the group is done."""
        return self.thread.pipe[0]

    def start(self, int fd, group: bytearray, int64_t offset, bint sync, int before=-1) -> None:
        """The group belongs to the thread until `take` has answered. `before` is flushed first."""
        assert not self.asked, "one group at a time"
        PyObject_GetBuffer(group, &self.view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.asked = True
        commit_ask(self.thread, fd, <uint8_t *>self.view.buf, self.view.len, offset, sync, before)

    def take(self, bint wait=False) -> int | None:
        """The group's result, as `write_group` gives it; None when it is not done or none was started."""
        cdef int result = 0, done
        if not self.asked:
            return None
        with nogil:
            done = commit_take(self.thread, wait, &result)
        if not done:
            return None
        self.asked = False
        PyBuffer_Release(&self.view)
        return result

    def close(self) -> None:
        """Waits for the group under way; its result is lost unless it was taken."""
        if self.thread != NULL:
            self.take(True)
            with nogil:
                commit_close(self.thread)
            self.thread = NULL


# What can be wrong with a record; `told` has the words. Nothing is wrong: 0.
cdef enum fault:
    SOUND = 0
    HEADER_CUT
    DOES_NOT_FIT
    WRONG_CHECKSUM
    ENQ_CUT
    ENQ_PARTS
    SET_RANGES
    REQ_LENGTH
    DEAD_LENGTH
    DEAD_NUMBER
    ATTR_LENGTH
    UNKNOWN_KIND
    PADDING


cdef int fault_of(const uint8_t *data, int64_t at, int64_t end, record_head *head) noexcept nogil:
    # Proves the record at data[at] and copies its header out.
    cdef enq_head fields
    if at < 0 or end - at < RECORD_HEADER_BYTES:
        return HEADER_CUT
    memcpy(head, data + at, RECORD_HEADER_BYTES)
    if head.length < RECORD_HEADER_BYTES or at + <int64_t>head.length > end:
        return DOES_NOT_FIT
    if head.crc != crc_of(data + at + 8, head.length - 8):
        return WRONG_CHECKSUM
    if head.kind == ENQ:
        if head.length < ENQ_OVERHEAD_BYTES:
            return ENQ_CUT
        memcpy(&fields, data + at + RECORD_HEADER_BYTES, sizeof(enq_head))
        if <uint64_t>ENQ_OVERHEAD_BYTES + fields.address + fields.header > head.length:
            return ENQ_PARTS
    elif head.kind == SET:
        if head.length == RECORD_HEADER_BYTES or (head.length - RECORD_HEADER_BYTES) % 16:
            return SET_RANGES
    elif head.kind == REQ:
        if head.length != RECORD_HEADER_BYTES + 2:
            return REQ_LENGTH
    elif head.kind == DEAD:
        if head.length != RECORD_HEADER_BYTES + 8:
            return DEAD_LENGTH
        if data[at + RECORD_HEADER_BYTES + 7]:
            return DEAD_NUMBER
    elif head.kind == ATTR:
        if not RECORD_HEADER_BYTES + 8 < head.length <= RECORD_HEADER_BYTES + 8 + ATTRIBUTE_BYTES_MAX:
            return ATTR_LENGTH
    elif head.kind != RSV and head.kind != CUT and head.kind != EPO:
        return UNKNOWN_KIND
    return SOUND


cdef int padding_fault(const uint8_t *data, int64_t at, int64_t end, uint32_t length) noexcept nogil:
    cdef int64_t i
    for i in range(at + length, min(at + <int64_t>padded(length), end)):
        if data[i]:
            return PADDING
    return SOUND


cdef str told(int fault, record_head *head):
    if fault == HEADER_CUT:
        return "a record header is cut off"
    if fault == DOES_NOT_FIT:
        return f"a record of {head.length} bytes does not fit its group"
    if fault == WRONG_CHECKSUM:
        return "a record has a wrong checksum"
    if fault == ENQ_CUT:
        return "an ENQ record is cut off"
    if fault == ENQ_PARTS:
        return "an ENQ record's parts exceed its length"
    if fault == SET_RANGES:
        return "a SET record holds no whole ranges"
    if fault == REQ_LENGTH:
        return "a REQ record has a wrong length"
    if fault == DEAD_LENGTH:
        return "a DEAD record has a wrong length"
    if fault == DEAD_NUMBER:
        return "a DEAD record's number is too high"
    if fault == ATTR_LENGTH:
        return "an ATTR record has a wrong length"
    if fault == PADDING:
        return "a record's padding is not zero"
    return f"record kind {head.kind} is unknown"


cdef object scan_record(const uint8_t *data, int64_t at, int64_t end, int64_t base, record_head *head):
    cdef int fault = fault_of(data, at, end, head)
    if fault:
        raise DamagedRecord(base + at, told(fault, head))


cdef bint prove_group(const uint8_t *data, int64_t at, int64_t end, group_view *view) noexcept nogil:
    cdef group_head head
    if at < 0 or end - at < GROUP_HEADER_BYTES:
        return False
    memcpy(&head, data + at, GROUP_HEADER_BYTES)
    view.length = head.length
    view.records = head.records
    return (head.magic == MAGIC and head.length >= GROUP_HEADER_BYTES
            and head.crc == crc_of(data + at + 8, GROUP_HEADER_BYTES - 8))


cdef bint prove_record(const uint8_t *data, int64_t at, int64_t end, record_view *view) noexcept nogil:
    cdef record_head head
    if fault_of(data, at, end, &head) or padding_fault(data, at, end, head.length):
        return False
    view.kind = head.kind
    view.queue_id = head.queue_id
    view.seq = head.seq
    view.next = at + <int64_t>padded(head.length)
    return True


cdef list scan_records(const uint8_t *data, int64_t at, int64_t end, uint32_t count, int64_t base):
    cdef list records = []
    cdef record_head head
    cdef enq_head fields
    cdef uint16_t delivery_count
    cdef uint32_t body_length
    cdef uint64_t[2] pair
    cdef int64_t position = at, i
    cdef uint32_t k
    cdef uint64_t value
    cdef bytes name
    make = tuple.__new__
    for k in range(count):
        scan_record(data, position, end, base, &head)
        body_length = delivery_count = 0
        value = 0
        name = b""
        ranges = ()
        if head.kind == ENQ:
            memcpy(&fields, data + position + RECORD_HEADER_BYTES, sizeof(enq_head))
            delivery_count = fields.delivery_count
            body_length = head.length - ENQ_OVERHEAD_BYTES - fields.address - fields.header
        elif head.kind == REQ:
            memcpy(&delivery_count, data + position + RECORD_HEADER_BYTES, 2)
        elif head.kind == SET:
            pairs = []
            for i in range(RECORD_HEADER_BYTES, head.length, 16):
                memcpy(pair, data + position + i, 16)
                pairs.append((pair[0], pair[1]))
            ranges = tuple(pairs)
        elif head.kind == DEAD:
            memcpy(&value, data + position + RECORD_HEADER_BYTES, 8)
            value = value << 8 | head.flags
        elif head.kind == ATTR:
            memcpy(&value, data + position + RECORD_HEADER_BYTES, 8)
            name = PyBytes_FromStringAndSize(<const char *>data + position + RECORD_HEADER_BYTES + 8,
                                                 head.length - RECORD_HEADER_BYTES - 8)
        records.append(make(Record, (head.kind, head.flags, head.priority, head.epoch, head.queue_id, head.seq,
                                     base + position, head.length, body_length, delivery_count, ranges, value, name)))
        if padding_fault(data, position, end, head.length):
            raise DamagedRecord(base + position, told(PADDING, &head))
        position += <int64_t>padded(head.length)
    if position != end:
        raise DamagedRecord(base + position, f"the group's {count} records do not fill its {end - at + 32} bytes")
    return records


def scan_group(data, int64_t at, int64_t base=0) -> tuple:
    """Reads and verifies the group at data[at]; returns (lsn, length in bytes, records)."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef group_head head
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *>view.buf
        if at < 0 or view.len - at < GROUP_HEADER_BYTES:
            raise DamagedRecord(base + at, "a group header is cut off")
        memcpy(&head, p + at, GROUP_HEADER_BYTES)
        if head.magic != MAGIC:
            raise DamagedRecord(base + at, "no group starts here")
        if head.crc != crc_of(p + at + 8, GROUP_HEADER_BYTES - 8):
            raise DamagedRecord(base + at, "a group header has a wrong checksum")
        if head.length < GROUP_HEADER_BYTES or at + <int64_t>head.length > view.len:
            raise DamagedRecord(base + at, f"a group of {head.length} bytes is cut off")
        records = scan_records(p, at + GROUP_HEADER_BYTES, at + head.length, head.records, base)
        return head.lsn, head.length, records
    finally:
        PyBuffer_Release(&view)


cdef Message message_at(const uint8_t *data, int64_t at, int64_t end, uint64_t queue_id, uint64_t seq,
                        int64_t base, Message before=None):
    # `before`: a message whose address is shared when it is the same
    cdef bytes address
    cdef record_head head
    cdef enq_head fields
    cdef const char *start
    scan_record(data, at, end, base, &head)
    if head.kind != ENQ or head.queue_id != queue_id or head.seq != seq:
        raise DamagedRecord(base + at, f"not message {seq} of queue {queue_id}")
    memcpy(&fields, data + at + RECORD_HEADER_BYTES, sizeof(enq_head))
    start = <const char *>data + at + ENQ_OVERHEAD_BYTES
    if (before is not None and address_size(before) == fields.address
            and memcmp(address_start(before), start, fields.address) == 0):
        address = before.address
    else:
        address = PyBytes_FromStringAndSize(start, fields.address)
    return make_message(
        address,
        PyBytes_FromStringAndSize(start + fields.address, head.length - ENQ_OVERHEAD_BYTES - fields.address),
        fields.header, head.flags, head.priority, <int64_t>fields.time_ms, fields.ttl_ms, head.format)


cdef int next_record(const uint8_t *data, int64_t end, record_view *view, bint proved) except -1:
    # 0 at the end of the span; with the refusals of the model's _spans and _scan_record
    cdef record_head head
    cdef enq_head fields
    cdef int64_t at = view.next
    if at >= end:
        view.kind = 0
        return 0
    if end - at < RECORD_HEADER_BYTES:
        raise DamagedRecord(at, "a record is cut off")
    memcpy(&head, data + at, RECORD_HEADER_BYTES)
    view.at = at
    view.next = at + <int64_t>padded(head.length)
    if head.length < RECORD_HEADER_BYTES or view.next > end:
        raise DamagedRecord(at, "a record is cut off")
    if proved:
        scan_record(data, at, end, 0, &head)
        if padding_fault(data, at, end, head.length):
            raise DamagedRecord(at, told(PADDING, &head))
        if head.seq >> 62:  # SEQ_MAX
            raise DamagedRecord(at, f"seq {head.seq} is beyond any queue")
    view.kind = head.kind
    view.flags = head.flags
    view.priority = head.priority
    view.format = head.format
    view.epoch = head.epoch
    view.queue_id = head.queue_id
    view.seq = head.seq
    view.length = head.length
    view.body = data + at + RECORD_HEADER_BYTES
    if head.kind == ENQ:
        if head.length < ENQ_OVERHEAD_BYTES:
            raise DamagedRecord(at, "an ENQ record is cut off")
        memcpy(&fields, view.body, sizeof(enq_head))
        if <uint64_t>ENQ_OVERHEAD_BYTES + fields.address + fields.header > head.length:
            raise DamagedRecord(at, "an ENQ record's parts exceed its length")
        view.body += sizeof(enq_head)
        view.address_length = fields.address
        view.header_length = fields.header
        view.body_length = head.length - ENQ_OVERHEAD_BYTES - fields.address - fields.header
        view.delivery_count = fields.delivery_count
        view.time_ms = <int64_t>fields.time_ms
        view.ttl_ms = fields.ttl_ms
    elif head.kind == SET:
        view.body_length = (head.length - RECORD_HEADER_BYTES) // 16
    elif head.kind == REQ:
        if head.length < RECORD_HEADER_BYTES + 2:
            raise DamagedRecord(at, "a REQ record has a wrong length")
        memcpy(&view.delivery_count, view.body, 2)
    elif head.kind == DEAD or head.kind == ATTR:
        if head.length < RECORD_HEADER_BYTES + 8:
            raise DamagedRecord(at, f"a {'DEAD' if head.kind == DEAD else 'ATTR'} record has a wrong length")
        memcpy(&view.value, view.body, 8)
        if head.kind == DEAD:
            view.value = view.value << 8 | head.flags
        view.body += 8
        view.body_length = head.length - RECORD_HEADER_BYTES - 8
    return 1


cdef Message view_message(record_view *view, Message before):
    cdef bytes address
    cdef const char *start = <const char *>view.body
    if (before is not None and address_size(before) == view.address_length
            and memcmp(address_start(before), start, view.address_length) == 0):
        address = before.address
    else:
        address = PyBytes_FromStringAndSize(start, view.address_length)
    return make_message(
        address,
        PyBytes_FromStringAndSize(start + view.address_length, view.header_length + view.body_length),
        view.header_length, view.flags & <uint8_t>~REDELIVERED_BIT, view.priority, view.time_ms, view.ttl_ms,
        view.format)


def verify_records(data, uint64_t queue_id, uint32_t epoch, bint messages=False) -> int:
    """Proves a span of records that came from another node."""
    cdef Py_buffer view
    cdef record_view record
    cdef int64_t count = 0
    record.next = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while next_record(<const uint8_t *>view.buf, view.len, &record, True):
            if messages and record.kind != ENQ:
                raise DamagedRecord(record.at, f"an ENQ record is expected, not {KIND_NAMES[record.kind]}")
            if record.queue_id != queue_id or record.epoch > epoch:
                raise DamagedRecord(record.at, f"a record of queue {record.queue_id}, epoch {record.epoch}: "
                                               f"not of queue {queue_id}, epoch {epoch}")
            count += 1
    finally:
        PyBuffer_Release(&view)
    return count


def enqueued(data) -> tuple:
    """What a proved span enqueues: ([(first seq, last seq)], how many)."""
    cdef Py_buffer view
    cdef record_view record
    cdef list ranges = []
    cdef uint64_t first = 0, last = 0
    cdef int64_t count = 0
    record.next = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while next_record(<const uint8_t *>view.buf, view.len, &record, False):
            if record.kind != ENQ:
                continue
            if count == 0 or record.seq != last + 1:
                if count:
                    ranges.append((first, last))
                first = record.seq
            last = record.seq
            count += 1
    finally:
        PyBuffer_Release(&view)
    if count:
        ranges.append((first, last))
    return ranges, count


def bodies_but_last(data) -> int:
    """What the bodies of a span take but for the last one."""
    cdef Py_buffer view
    cdef record_view record
    cdef uint64_t before = 0, last = 0
    record.next = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while next_record(<const uint8_t *>view.buf, view.len, &record, False):
            if record.kind == ENQ:
                before += last
                last = record.body_length
    finally:
        PyBuffer_Release(&view)
    return before


def attributes_named(data) -> set:
    """Of whom the ATTR records of a proved span speak."""
    cdef Py_buffer view
    cdef record_view record
    cdef set named = set()
    record.next = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while next_record(<const uint8_t *>view.buf, view.len, &record, False):
            if record.kind == ATTR:
                named.add(PyBytes_FromStringAndSize(<const char *>record.body, record.body_length))
    finally:
        PyBuffer_Release(&view)
    return named


def read_records(data) -> list:
    """(seq, message, delivery count, redelivered) of each ENQ record of a span."""
    cdef Py_buffer view
    cdef record_view record
    cdef Message message = None
    cdef list found = []
    record.next = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while next_record(<const uint8_t *>view.buf, view.len, &record, True):
            if record.kind != ENQ:
                raise DamagedRecord(record.at, f"an ENQ record is expected, not {KIND_NAMES[record.kind]}")
            message = view_message(&record, message)
            found.append((record.seq, message, record.delivery_count, record.flags & REDELIVERED_BIT != 0))
    finally:
        PyBuffer_Release(&view)
    return found


def read_message(data, int64_t at, uint64_t queue_id, uint64_t seq, int64_t base=0) -> Message:
    """The message of the ENQ record at data[at], verified to be the one asked for."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return message_at(<const uint8_t *>view.buf, at, view.len, queue_id, seq, base)
    finally:
        PyBuffer_Release(&view)


def read_messages(data, int64_t base, uint64_t queue_id, wanted) -> list:
    """The messages of `wanted` (seq, offset in the segment), where data[0] is byte `base` of the segment."""
    cdef Py_buffer view
    cdef uint64_t seq
    cdef int64_t offset
    cdef list messages = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for seq, offset in wanted:
            messages.append(message_at(<const uint8_t *>view.buf, offset - base, view.len, queue_id, seq, base))
    finally:
        PyBuffer_Release(&view)
    return messages


cdef struct place:
    uint64_t seq
    uint32_t segment
    uint32_t offset
    uint32_t length
    uint32_t unused


def read_span(data, int64_t base, uint64_t queue_id, wanted) -> list:
    """As `read_messages` for `wanted` of (seq, segment, offset, length), all of the segment that `data` is from.

    `wanted` may be a buffer of such places (u64, u32, u32, u32, u32 without meaning) as a compiled ring names them.
    """
    cdef Py_buffer view, places
    cdef uint64_t seq
    cdef int64_t offset
    cdef list messages = []
    cdef tuple found
    cdef Message message = None
    cdef place *at
    cdef Py_ssize_t i
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if PyObject_CheckBuffer(wanted):
            PyObject_GetBuffer(wanted, &places, PyBUF_SIMPLE)
            try:
                at = <place *>places.buf
                for i in range(places.len // <Py_ssize_t>sizeof(place)):
                    message = message_at(<const uint8_t *>view.buf, <int64_t>at[i].offset - base, view.len, queue_id,
                                         at[i].seq, base, message)
                    messages.append(message)
            finally:
                PyBuffer_Release(&places)
            return messages
        for found in wanted:
            seq, offset = found[0], found[2]
            message = message_at(<const uint8_t *>view.buf, offset - base, view.len, queue_id, seq, base, message)
            messages.append(message)
    finally:
        PyBuffer_Release(&view)
    return messages


@cython.final
cdef class SegmentUse:
    """Live bytes of each segment."""

    def __dealloc__(self):
        free(self.counts)

    cdef int add_bytes(self, uint32_t segment, uint32_t length) except -1:
        cdef size_t slots = self.slots
        cdef int64_t *grown
        if segment >= slots:
            slots = max(slots, <size_t>64)
            while slots <= segment:
                slots *= 2
            grown = <int64_t *>realloc(self.counts, slots * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError()
            memset(grown + self.slots, 0, (slots - self.slots) * sizeof(int64_t))
            self.counts = grown
            self.slots = slots
        self.counts[segment] += length
        return 0

    cdef int release_bytes(self, uint32_t segment, uint32_t length) except -1:
        if segment >= self.slots or self.counts[segment] < length:
            raise AssertionError(f"segment {segment} released more than was added")
        self.counts[segment] -= length
        return 0

    def add(self, uint32_t segment, uint32_t length) -> None:
        self.add_bytes(segment, length)

    def release(self, uint32_t segment, uint32_t length) -> None:
        self.release_bytes(segment, length)

    def live(self, uint32_t segment) -> int:
        return self.counts[segment] if segment < self.slots else 0

    def forget(self, uint32_t segment) -> None:
        """The segment's file is gone."""
        if segment < self.slots and self.counts[segment] != 0:
            raise AssertionError(f"segment {segment} still holds live messages")
