# Values of AMQP 1.0 in their shortest encodings (1.6), and the usual body of a message, at a pointer.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from clusterbroker.broker.wire.big_endian cimport get32, put8, put32, put_all


cdef inline uint8_t *put_uint(uint8_t *p, uint32_t value) noexcept nogil:
    if value == 0:
        return put8(p, 0x43)
    if value < 256:
        return put8(put8(p, 0x52), <uint8_t>value)
    return put32(put8(p, 0x70), value)


cdef inline uint8_t *put_text(uint8_t *p, uint8_t short_code, const uint8_t *text, uint64_t length) noexcept nogil:
    # a string, symbol or binary
    if length < 256:
        p = put8(put8(p, short_code), <uint8_t>length)
    else:
        p = put32(put8(p, short_code | 0x10), <uint32_t>length)
    return put_all(p, text, length)


cdef inline uint64_t one_data(const uint8_t *body, uint64_t length) noexcept nogil:
    # where the bytes of a body begin that is one section of data (3.2.6); 0: it is not
    if length >= 5 and body[0] == 0 and body[1] == 0x53 and body[2] == 0x75:
        if body[3] == 0xA0 and body[4] == length - 5:
            return 5
        if body[3] == 0xB0 and length >= 8 and get32(body + 4) == length - 8:
            return 8
    return 0
