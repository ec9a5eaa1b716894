# Numbers in network byte order, at a pointer. `put` returns the place behind what it wrote; the caller has checked the room.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef inline uint16_t get16(const uint8_t *p) noexcept nogil:
    return <uint16_t>(<uint16_t>p[0] << 8 | p[1])


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t get64(const uint8_t *p) noexcept nogil:
    return <uint64_t>get32(p) << 32 | get32(p + 4)


cdef inline uint8_t *put8(uint8_t *p, uint8_t value) noexcept nogil:
    p[0] = value
    return p + 1


cdef inline uint8_t *put16(uint8_t *p, uint16_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value
    return p + 2


cdef inline uint8_t *put32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value
    return p + 4


cdef inline uint8_t *put64(uint8_t *p, uint64_t value) noexcept nogil:
    return put32(put32(p, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t *put_all(uint8_t *p, const void *data, uint64_t length) noexcept nogil:
    memcpy(p, data, length)
    return p + length
