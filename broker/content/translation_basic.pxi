# Sections of AMQP 1.0 as a header of AMQP 0-9-1: a part of translation.pyx. A place is an offset in `w.p`, 0 is none.


cdef bint places(walk *w, uint64_t at, uint64_t *found, int most) noexcept:
    # where the fields of a list are; 0: null, or left out
    cdef uint32_t count, place
    if w.p[at] == 0x45:
        return True
    if w.p[at] == 0xC0:
        count = w.p[at + 2]
        at += 3
    elif w.p[at] == 0xD0:
        count = get32(w.p + at + 5)
        at += 9
    else:
        return False
    if count > <uint32_t>most:
        return False
    for place in range(count):
        if w.p[at] != 0x40:
            found[place] = at
        at = skip_value(w, at, 2)
        if at == 0:
            return False
    return True


cdef bint text_at(walk *w, uint64_t at, uint8_t low, span *found) noexcept nogil:
    # the bytes of a string (1), binary (0) or symbol (3); False: the value is another. Nothing is at 0: empty.
    found.at = NULL
    found.length = 0
    if at == 0:
        return True
    if w.p[at] == 0xA0 | low:
        found.at = w.p + at + 2
        found.length = w.p[at + 1]
    elif w.p[at] == 0xB0 | low:
        found.at = w.p + at + 5
        found.length = get32(w.p + at + 1)
    else:
        return False
    return True


cdef inline uint32_t uint_at(walk *w, uint64_t at) noexcept nogil:
    return 0 if w.p[at] == 0x43 else w.p[at + 1] if w.p[at] == 0x52 else get32(w.p + at + 1)


cdef bint id_at(walk *w, uint64_t at, uint8_t *uuid, span *found) noexcept nogil:
    # a message-id as a short string; `uuid`: 45 bytes for one that is made. False: it has a type, or is too long.
    cdef int place
    cdef uint8_t *to
    if at and w.p[at] == 0x98:
        to = put_all(uuid, b"urn:uuid:", 9)
        for place in range(16):
            if place in (4, 6, 8, 10):
                to = put8(to, 45)
            to = put8(put8(to, LOW_HEX[w.p[at + 1 + place] >> 4]), LOW_HEX[w.p[at + 1 + place] & 15])
        found.at = uuid
        found.length = 45
        return True
    return text_at(w, at, 1, found) and found.length <= SHORT_MAX


cdef bytes put_basic(Translation self, walk *w, bint has_header, const uint64_t *header, const uint64_t *known,
                     uint64_t application, uint64_t annotations):
    cdef uint16_t flags = 0
    cdef span message_id, correlation_id, user_id, to, subject, reply_to, content_type, encoding, group_id, reply_group
    cdef uint8_t[45] message_uuid
    cdef uint8_t[45] correlation_uuid
    cdef uint8_t priority = PRIORITY
    cdef bint durable = False
    cdef int64_t created = -1
    cdef uint64_t at, table
    cdef uint8_t *out
    if not (
        id_at(w, known[0], message_uuid, &message_id) and text_at(w, known[1], 0, &user_id)
        and text_at(w, known[2], 1, &to) and text_at(w, known[3], 1, &subject) and text_at(w, known[4], 1, &reply_to)
        and id_at(w, known[5], correlation_uuid, &correlation_id) and text_at(w, known[6], 3, &content_type)
        and text_at(w, known[7], 3, &encoding) and text_at(w, known[10], 1, &group_id)
        and text_at(w, known[12], 1, &reply_group)
    ):
        return None
    if begins(reply_to.at, reply_to.length, QUEUES, QUEUES_LENGTH):
        for at in range(reply_to.length):
            if reply_to.at[at] == 37:  # percent-encoded
                return None
        reply_to.at += QUEUES_LENGTH
        reply_to.length -= QUEUES_LENGTH
    if user_id.length > SHORT_MAX or reply_to.length > SHORT_MAX or content_type.length > SHORT_MAX or (
        encoding.length > SHORT_MAX or group_id.length > SHORT_MAX
    ):
        return None
    if has_header:
        durable = header[0] != 0 and (w.p[header[0]] == 0x41 or (w.p[header[0]] == 0x56 and w.p[header[0] + 1] == 1))
        if header[1]:
            priority = w.p[header[1] + 1]
    if known[9]:
        created = <int64_t>get64(w.p + known[9] + 1)
    out = self.room(2 + 10 * (SHORT_MAX + 1) + 32)
    out += 2
    if content_type.at != NULL:
        flags |= CONTENT_TYPE
        out = put_short(out, content_type.at, content_type.length)
    if encoding.at != NULL:
        flags |= CONTENT_ENCODING
        out = put_short(out, encoding.at, encoding.length)
    self.size = out - self.data
    table = self.size
    self.room(4)
    self.size += 4
    if not put_extras(self, w, known, created, to, subject, reply_group):
        return None
    if not put_fields(self, w, application, False) or not put_fields(self, w, annotations, True):
        return None
    if self.size == table + 4:
        self.size = table
    else:
        flags |= HEADERS
        put32(self.data + table, <uint32_t>(self.size - table - 4))
    out = self.room(8 * (SHORT_MAX + 1) + 32)
    if has_header:
        flags |= DELIVERY_MODE
        out = put8(out, 2 if durable else 1)
        if priority != PRIORITY:
            flags |= HAS_PRIORITY
            out = put8(out, priority)
    if correlation_id.at != NULL:
        flags |= CORRELATION_ID
        out = put_short(out, correlation_id.at, correlation_id.length)
    if reply_to.at != NULL:
        flags |= REPLY_TO
        out = put_short(out, reply_to.at, reply_to.length)
    if has_header and header[2]:
        flags |= EXPIRATION
        out = put_digits(out, uint_at(w, header[2]))
    if message_id.at != NULL:
        flags |= MESSAGE_ID
        out = put_short(out, message_id.at, message_id.length)
    if created >= 0:
        flags |= TIMESTAMP
        out = put64(out, <uint64_t>created // 1000)
    if user_id.at != NULL:
        flags |= USER_ID
        out = put_short(out, user_id.at, user_id.length)
    if group_id.at != NULL:
        flags |= APP_ID
        out = put_short(out, group_id.at, group_id.length)
    self.size = out - self.data
    self.data[0] = <uint8_t>(flags >> 8)
    self.data[1] = <uint8_t>flags
    return PyBytes_FromStringAndSize(<const char *>self.data, <Py_ssize_t>self.size)


cdef inline uint8_t *put_name(uint8_t *p, const char *name, uint64_t length) noexcept nogil:
    return put_short(p, <const uint8_t *>name, length)


cdef bint put_extras(Translation self, walk *w, const uint64_t *known, int64_t created, span to, span subject,
                     span reply_group) except -1:
    # headers that stand for properties which AMQP 0-9-1 has not
    cdef uint8_t *out = self.room(160 + to.length + subject.length + reply_group.length)
    if created >= 0:
        out = put64(put8(put_name(out, b"timestamp_in_ms", 15), 108), <uint64_t>created)
    if to.at != NULL:
        out = put_long(put_name(out, b"x-opt-to", 8), 83, to.at, to.length)
    if subject.at != NULL:
        out = put_long(put_name(out, b"x-opt-subject", 13), 83, subject.at, subject.length)
    if known[8]:
        out = put64(put8(put_name(out, b"x-opt-absolute-expiry-time", 26), 108), get64(w.p + known[8] + 1))
    if known[11]:
        out = put32(put8(put_name(out, b"x-opt-group-sequence", 20), 105), uint_at(w, known[11]))
    if reply_group.at != NULL:
        out = put_long(put_name(out, b"x-opt-reply-to-group-id", 23), 83, reply_group.at, reply_group.length)
    self.size = out - self.data
    return True


cdef bint put_fields(Translation self, walk *w, uint64_t at, bint annotates) except -1:
    # the entries of a map as fields; False: one of them is unusual
    cdef uint32_t count, place
    cdef span name
    cdef uint64_t value, behind
    cdef name_list names
    cdef uint8_t *out
    if at == 0:
        return True
    if w.p[at] == 0xC1:
        count = w.p[at + 2]
        at += 3
    elif w.p[at] == 0xD1:
        count = get32(w.p + at + 5)
        at += 9
    else:
        return False
    names.count = 0
    for place in range(count // 2):
        value = skip_value(w, at, 2)
        behind = skip_value(w, value, 2) if value else 0
        if behind == 0:
            return False
        if not text_at(w, at, 3 if annotates else 1, &name):
            if not annotates:
                return False
            at = behind  # an annotation that a number names
            continue
        at = behind
        if annotates and not begins(name.at, name.length, b"x-", 2):
            continue
        if name.length > SHORT_MAX:
            continue
        if not take_name(&names, name.at, name.length):
            return False
        if annotates:
            if is_name(name.at, name.length, b"x-basic-type", 12) or (
                name.length and is_special(name.at, name.length) and not is_renamed(name)
            ) or is_name(name.at, name.length, b"x-death", 7) or is_name(name.at, name.length, b"x-producer", 10) or (
                is_name(name.at, name.length, b"x-seq", 5)
            ):
                return False
        elif begins(name.at, name.length, b"x-", 2) or is_name(name.at, name.length, b"CC", 2) or (
            is_name(name.at, name.length, b"timestamp_in_ms", 15) or is_name(name.at, name.length, b"BCC", 3)
        ):
            return False
        if w.p[value] == 0x45 or w.p[value] >= 0xC0:  # lists, maps, arrays
            if annotates:
                return False
            continue
        out = self.room(16 + name.length + 40 + (behind - value))
        if annotates:
            out = put_back(out, name)
        else:
            out = put_short(out, name.at, name.length)
        out = put_field(out, w.p + value)
        if out == NULL:
            return False
        self.size = out - self.data
    return True


cdef inline bint is_renamed(span name) noexcept nogil:
    return (
        is_name(name.at, name.length, b"x-cc", 4) or is_name(name.at, name.length, b"x-opt-deaths", 12)
        or is_name(name.at, name.length, b"x-opt-producer", 14) or is_name(name.at, name.length, b"x-opt-seq", 9)
    )


cdef inline uint8_t *put_back(uint8_t *p, span name) noexcept nogil:
    if is_name(name.at, name.length, b"x-cc", 4):
        return put_name(p, b"CC", 2)
    if is_name(name.at, name.length, b"x-opt-deaths", 12):
        return put_name(p, b"x-death", 7)
    if is_name(name.at, name.length, b"x-opt-producer", 14):
        return put_name(p, b"x-producer", 10)
    if is_name(name.at, name.length, b"x-opt-seq", 9):
        return put_name(p, b"x-seq", 5)
    return put_short(p, name.at, name.length)


cdef uint8_t *put_field(uint8_t *out, const uint8_t *value) noexcept:
    # a value of AMQP 1.0; NULL: there is no quick way
    cdef uint8_t code = value[0]
    cdef const uint8_t *raw = value + 1
    cdef uint64_t number
    cdef int64_t moment
    if code == 0xA1 or code == 0xA3:
        return put_long(out, 83, raw + 1, raw[0])
    if code == 0xB1 or code == 0xB3:
        return put_long(out, 83, raw + 4, get32(raw))
    if code == 0xA0:
        return put_long(out, 120, raw + 1, raw[0])
    if code == 0xB0:
        return put_long(out, 120, raw + 4, get32(raw))
    if code == 0x40:
        return put8(out, 86)
    if code == 0x41 or code == 0x42:
        return put8(put8(out, 116), 1 if code == 0x41 else 0)
    if code == 0x56:
        return put8(put8(out, 116), raw[0])
    if code == 0x50 or code == 0x51:
        return put8(put8(out, 66 if code == 0x50 else 98), raw[0])
    if code == 0x60 or code == 0x61:
        return put_all(put8(out, 117 if code == 0x60 else 115), raw, 2)
    if code == 0x43 or code == 0x52 or code == 0x70:
        return put32(put8(out, 105), 0 if code == 0x43 else raw[0] if code == 0x52 else get32(raw))
    if code == 0x54 or code == 0x71:
        return put32(put8(out, 73), <uint32_t><int32_t><int8_t>raw[0] if code == 0x54 else get32(raw))
    if code == 0x55 or code == 0x81:
        return put64(put8(out, 108), <uint64_t><int64_t><int8_t>raw[0] if code == 0x55 else get64(raw))
    if code == 0x44 or code == 0x53 or code == 0x80:
        number = 0 if code == 0x44 else raw[0] if code == 0x53 else get64(raw)
        return NULL if number >> 63 else put64(put8(out, 108), number)
    if code == 0x72:
        return put_all(put8(out, 102), raw, 4)
    if code == 0x82:
        return NULL if raw[0] & 0x7F == 0x7F and raw[1] >= 0xF0 else put_all(put8(out, 100), raw, 8)
    if code == 0x83:
        moment = <int64_t>get64(raw)
        return put64(put8(out, 84), <uint64_t>max(<int64_t>0, moment) // 1000)
    return NULL
