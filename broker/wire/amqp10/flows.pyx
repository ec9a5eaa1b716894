# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Flows in their usual form (specification 2.7.4): a list of eight numbers and two flags, without properties.

There is one for every few hundred transfers, in both directions. What is not usual is `performatives`' affair, which
says in words what is malformed. The model is `tests/model/flows10.py`.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from libc.stdint cimport uint8_t, uint32_t

from clusterbroker.broker.wire.amqp10.values cimport put_uint
from clusterbroker.broker.wire.big_endian cimport get32, put8

cdef enum:
    NUMBERS = 8
    FIELDS = 10
    ROOM = 64  # of a list of ten fields, each in its widest form


def read(bytes frame, Py_ssize_t offset):
    """(fields, end) of the flow at `offset`; absent numbers are None, absent flags False. None: it is no flow in its
    usual form, and may be malformed."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(frame), at = offset + 6, end
    cdef uint32_t count
    cdef uint8_t code
    cdef int place
    cdef list values
    if offset < 0 or length < at or data[offset] != 0 or data[offset + 1] != 0x53 or data[offset + 2] != 0x13:
        return None
    if data[offset + 3] == 0xC0:
        end, count = offset + 5 + data[offset + 4], data[offset + 5]
    elif data[offset + 3] == 0xD0 and length >= offset + 12:
        end, count = offset + 8 + <Py_ssize_t>get32(data + offset + 4), get32(data + offset + 8)
        at = offset + 12
    else:
        return None
    if end > length or count < 4 or count > FIELDS:
        return None
    values = [None, None, None, None, None, None, None, None, False, False]
    for place in range(<int>count):
        if at >= end:
            return None
        code = data[at]
        at += 1
        if code == 0x40:
            continue
        if place >= NUMBERS:
            if code != 0x41 and code != 0x42:
                return None
            values[place] = code == 0x41
        elif code == 0x43:
            values[place] = 0
        elif code == 0x52 and at < end:
            values[place] = data[at]
            at += 1
        elif code == 0x70 and at + 4 <= end:
            values[place] = get32(data + at)
            at += 4
        else:
            return None
    if at != end or values[1] is None or values[2] is None or values[3] is None:
        return None
    return values, end


cdef uint8_t *put_number(uint8_t *p, object value) except NULL:
    # where what follows stands; the same place: it does not fit
    cdef int overflow = 0
    cdef long long number
    if value is None:
        return put8(p, 0x40)
    if not PyLong_Check(value):
        return p
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or number < 0 or number > 0xFFFFFFFF:
        return p
    return put_uint(p, <uint32_t>number)


def written(
    next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, link_credit, available,
    bint drain, bint echo,
):
    """The performative. None: a number is none of 32 bits."""
    cdef uint8_t body[ROOM]
    cdef uint8_t *p = body + 6
    cdef uint8_t *before
    cdef uint8_t *last = p  # behind the last field that is not null
    cdef int place = 0, count = 0
    body[0], body[1], body[2], body[3] = 0, 0x53, 0x13, 0xC0
    for value in (
        next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, link_credit,
        available,
    ):
        before = p
        p = put_number(p, value)
        if p == before:
            return None
        place += 1
        if value is not None:
            count, last = place, p
    p = put8(p, 0x41 if drain else 0x40)
    if drain:
        count, last = NUMBERS + 1, p
    if echo:
        p = put8(p, 0x41)
        count, last = FIELDS, p
    body[4] = <uint8_t>(last - body - 5)
    body[5] = <uint8_t>count
    return PyBytes_FromStringAndSize(<char *>body, last - body)
