# A header of AMQP 0-9-1 as sections of AMQP 1.0: a part of translation.pyx. `properties` are in the order of the flags.


cdef inline int place_of(uint16_t bit) noexcept nogil:
    cdef int place = 0
    while not bit & 0x8000:
        bit = <uint16_t>(bit << 1)
        place += 1
    return place


cdef bint put_header(Translation self, span *properties) except -1:
    # header and properties; False: something is unusual
    cdef uint8_t *out = self.room(32)
    cdef uint8_t *start = out
    cdef span mode = properties[place_of(DELIVERY_MODE)], priority = properties[place_of(HAS_PRIORITY)]
    cdef span expiration = properties[place_of(EXPIRATION)]
    cdef bint durable = mode.at != NULL and mode.at[0] == 2
    cdef uint8_t level = PRIORITY if priority.at == NULL else priority.at[0]
    cdef uint64_t ttl = 0, at
    cdef bint has_ttl = expiration.at != NULL and expiration.length > 0
    cdef uint8_t count
    if has_ttl:
        if expiration.length > 19:
            return False
        for at in range(expiration.length):
            if not 48 <= expiration.at[at] <= 57:
                return False
            ttl = ttl * 10 + expiration.at[at] - 48
    if not durable and level == PRIORITY and not has_ttl:
        return put_properties(self, properties)
    count = 3 if has_ttl else 2 if level != PRIORITY else 1
    out = put8(put8(put8(put8(out, 0), 0x53), HEADER), 0xC0) + 2
    out = put8(out, 0x41 if durable else 0x40)
    if count > 1:
        out = put8(out, 0x40) if level == PRIORITY else put8(put8(out, 0x50), level)
    if count > 2:
        out = put_uint(out, <uint32_t>min(ttl, <uint64_t>0xFFFFFFFF))
    start[4] = <uint8_t>(out - start - 5)
    start[5] = count
    self.size = out - self.data
    return put_properties(self, properties)


cdef bint put_properties(Translation self, span *properties) except -1:
    # each of AMQP 1.0's in its order, as far as the last that is there
    cdef span message_id = properties[place_of(MESSAGE_ID)], correlation_id = properties[place_of(CORRELATION_ID)]
    cdef span user_id = properties[place_of(USER_ID)], reply_to = properties[place_of(REPLY_TO)]
    cdef span content_type = properties[place_of(CONTENT_TYPE)], encoding = properties[place_of(CONTENT_ENCODING)]
    cdef span timestamp = properties[place_of(TIMESTAMP)], app_id = properties[place_of(APP_ID)]
    cdef int last = (
        11 if app_id.at != NULL else 10 if timestamp.at != NULL else 8 if encoding.at != NULL
        else 7 if content_type.at != NULL else 6 if correlation_id.at != NULL else 5 if reply_to.at != NULL
        else 2 if user_id.at != NULL else 1 if message_id.at != NULL else 0
    )
    cdef uint64_t start = self.size, listed, seconds
    cdef uint8_t *out
    cdef int place
    if last == 0:
        return True
    for place in range(14):
        if properties[place].at != NULL and place_of(TIMESTAMP) != place and (
            place_of(DELIVERY_MODE) != place and place_of(HAS_PRIORITY) != place
            and not is_text(properties[place].at, properties[place].length)
        ):
            return False
    if is_uuid(message_id) or is_uuid(correlation_id) or not is_ascii(content_type.at, content_type.length) or (
        not is_ascii(encoding.at, encoding.length)
    ):
        return False
    # the list with its wide head, which is narrowed when its size is known
    out = self.room(9 + 3 + 13 + 3 * reply_to.length + QUEUES_LENGTH + 10 * SHORT_MAX + 9 * 3)
    out = put8(put8(put8(out, 0), 0x53), PROPERTIES) + 9
    for place in range(last):
        if place == 0 and message_id.at != NULL:
            out = put_text(out, 0xA1, message_id.at, message_id.length)
        elif place == 1 and user_id.at != NULL:
            out = put_text(out, 0xA0, user_id.at, user_id.length)
        elif place == 4 and reply_to.at != NULL:
            out = put_address(out, reply_to)
        elif place == 5 and correlation_id.at != NULL:
            out = put_text(out, 0xA1, correlation_id.at, correlation_id.length)
        elif place == 6 and content_type.at != NULL:
            out = put_text(out, 0xA3, content_type.at, content_type.length)
        elif place == 7 and encoding.at != NULL:
            out = put_text(out, 0xA3, encoding.at, encoding.length)
        elif place == 9 and timestamp.at != NULL:
            seconds = get64(timestamp.at)
            out = put64(put8(out, 0x83), in_milliseconds(seconds))
        elif place == 10 and app_id.at != NULL:
            out = put_text(out, 0xA1, app_id.at, app_id.length)
        else:
            out = put8(out, 0x40)
    self.size = out - self.data
    close_counted(self, start + 3, 0xC0, <uint32_t>last)
    return True


cdef inline uint64_t in_milliseconds(uint64_t seconds) noexcept nogil:
    return seconds * 1000 if seconds < <uint64_t>0x7FFFFFFFFFFFFFFF // 1000 else (
        min(<uint64_t>0x7FFFFFFFFFFFFFFF, seconds * 1000) if seconds == <uint64_t>0x7FFFFFFFFFFFFFFF // 1000
        else <uint64_t>0x7FFFFFFFFFFFFFFF
    )


cdef inline bint is_uuid(span text) noexcept nogil:
    return text.at != NULL and begins(text.at, text.length, b"urn:uuid:", 9)


cdef void close_counted(Translation self, uint64_t start, uint8_t code, uint32_t count) noexcept:
    # a list or map whose items stand behind nine bytes for its head gets the head that they need
    cdef uint8_t *head = self.data + start
    cdef uint64_t items = self.size - start - 9
    cdef uint64_t at
    if items < 255 and count < 256:
        put8(put8(put8(head, code), <uint8_t>(items + 1)), <uint8_t>count)
        for at in range(items):
            head[3 + at] = head[9 + at]
        self.size -= 6
    else:
        put32(put32(put8(head, code | 0x10), <uint32_t>(items + 4)), count)


cdef uint8_t *put_address(uint8_t *p, span queue) noexcept nogil:
    # "/queues/:q", percent-encoded
    cdef uint8_t[8 + 3 * 255] text
    cdef uint8_t *to = put_all(text, QUEUES, QUEUES_LENGTH)
    cdef uint64_t at
    cdef uint8_t octet
    for at in range(queue.length):
        octet = queue.at[at]
        if 48 <= octet <= 57 or 65 <= octet <= 90 or 97 <= octet <= 122 or octet in (45, 46, 95, 126):
            to = put8(to, octet)
        else:
            to = put8(put8(put8(to, 37), HEX[octet >> 4]), HEX[octet & 15])
    return put_text(p, 0xA1, text, to - text)


cdef bint put_tables(Translation self, span table, span *properties) except -1:
    # annotations in front of the properties that are written, application properties behind them
    cdef uint64_t written = self.size, begun, header = 0
    cdef uint64_t at
    cdef name_list names
    cdef span kind = properties[place_of(TYPE)]
    cdef bytes known
    if table.length == 0 and kind.at == NULL:
        return True
    names.count = 0
    # where the header section ends
    if written and self.data[2] == HEADER:
        header = 5 + self.data[4]
    known = PyBytes_FromStringAndSize(<const char *>self.data + header, <Py_ssize_t>(written - header))
    self.size = header
    if not put_map(self, table, &names, kind, ANNOTATIONS):
        return False
    put_all(self.room(written - header), PyBytes_AS_STRING(known), written - header)
    self.size += written - header
    names.count = 0
    kind.at = NULL
    return put_map(self, table, &names, kind, APPLICATION)


cdef bint put_map(Translation self, span table, name_list *names, span kind, uint8_t section) except -1:
    # the headers that belong into this section; `kind`: the property `type`
    cdef uint64_t at = 0, start = self.size, length, size
    cdef uint32_t count = 0
    cdef const uint8_t *p = table.at
    cdef const uint8_t *name
    cdef uint8_t tag
    cdef bint annotates
    cdef uint8_t *out
    out = self.room(12)
    put8(put8(put8(out, 0), 0x53), section)
    self.size += 12
    while at < table.length:
        length = p[at]
        name = p + at + 1
        at += 1 + length
        if at >= table.length or length == 0:
            return False
        if is_special(name, length) or not take_name(names, name, length):
            return False
        tag = p[at]
        size = field_size(p, at, table.length)
        if size == 0:
            return False
        if is_name(name, length, b"BCC", 3):
            at += size
            continue
        annotates = begins(name, length, b"x-", 2) or is_name(name, length, b"CC", 2)
        if annotates != (section == ANNOTATIONS):
            at += size
            continue
        if tag == 65 or tag == 70:  # A, F
            if annotates:
                return False
            at += size  # without counterpart among application properties
            continue
        if tag == 68:  # D
            return False
        # a value takes four bytes more than its field, at most
        out = self.room(length + 6 + size + 8)
        if annotates:
            if not is_ascii(name, length):
                return False
            out = put_renamed(out, name, length)
        else:
            if not is_text(name, length):
                return False
            out = put_text(out, 0xA1, name, length)
        out = put_value(out, p + at)
        if out == NULL:
            return False
        self.size = out - self.data
        count += 2
        at += size
    if section == ANNOTATIONS and kind.at != NULL:
        if is_name(kind.at, kind.length, b"amqp-1.0", 8) or not is_text(kind.at, kind.length):
            return False
        out = put_text(self.room(16 + 6 + kind.length), 0xA3, <const uint8_t *>b"x-basic-type", 12)
        self.size = put_text(out, 0xA1, kind.at, kind.length) - self.data
        count += 2
    if count == 0:
        self.size = start
    else:
        close_counted(self, start + 3, 0xC1, count)
    return True


cdef inline uint8_t *put_renamed(uint8_t *p, const uint8_t *name, uint64_t length) noexcept nogil:
    # headers that are annotations of another name (content.sections.RENAMED)
    if is_name(name, length, b"CC", 2):
        return put_text(p, 0xA3, <const uint8_t *>b"x-cc", 4)
    if is_name(name, length, b"x-death", 7):
        return put_text(p, 0xA3, <const uint8_t *>b"x-opt-deaths", 12)
    if is_name(name, length, b"x-producer", 10):
        return put_text(p, 0xA3, <const uint8_t *>b"x-opt-producer", 14)
    if is_name(name, length, b"x-seq", 5):
        return put_text(p, 0xA3, <const uint8_t *>b"x-opt-seq", 9)
    return put_text(p, 0xA3, name, length)


cdef uint64_t field_size(const uint8_t *p, uint64_t at, uint64_t end) noexcept nogil:
    # of a tag and its value; 0: it is unknown, or not all there
    cdef uint8_t tag = p[at]
    cdef uint64_t size
    if tag == 83 or tag == 120 or tag == 65 or tag == 70:  # S, x, A, F
        if at + 5 > end:
            return 0
        size = 5 + <uint64_t>get32(p + at + 1)
    elif tag == 116 or tag == 98 or tag == 66:  # t, b, B
        size = 2
    elif tag == 115 or tag == 117:  # s, u
        size = 3
    elif tag == 73 or tag == 105 or tag == 102:  # I, i, f
        size = 5
    elif tag == 108 or tag == 76 or tag == 84 or tag == 100:  # l, L, T, d
        size = 9
    elif tag == 68:  # D
        size = 6
    elif tag == 86:  # V
        size = 1
    else:
        return 0
    return size if at + size <= end else 0


cdef uint8_t *put_value(uint8_t *out, const uint8_t *field) noexcept:
    # a field's value; NULL: there is no quick way
    cdef uint8_t tag = field[0]
    cdef const uint8_t *raw = field + 1
    cdef int64_t number
    if tag == 83:  # S
        return put_text(out, 0xA1 if is_text(raw + 4, get32(raw)) else 0xA0, raw + 4, get32(raw))
    if tag == 120:  # x
        return put_text(out, 0xA0, raw + 4, get32(raw))
    if tag == 116:  # t
        return put8(out, 0x41 if raw[0] else 0x42)
    if tag == 98:  # b
        return put8(put8(out, 0x51), raw[0])
    if tag == 66:  # B
        return put8(put8(out, 0x50), raw[0])
    if tag == 115 or tag == 117:  # s, u
        return put8(put8(put8(out, 0x61 if tag == 115 else 0x60), raw[0]), raw[1])
    if tag == 73:  # I
        number = <int32_t>get32(raw)
        return put8(put8(out, 0x54), <uint8_t>number) if -128 <= number <= 127 else put_all(put8(out, 0x71), raw, 4)
    if tag == 105:  # i
        return put_uint(out, get32(raw))
    if tag == 108 or tag == 76:  # l, L
        number = <int64_t>get64(raw)
        return put8(put8(out, 0x55), <uint8_t>number) if -128 <= number <= 127 else put_all(put8(out, 0x81), raw, 8)
    if tag == 102:  # f
        return put_all(put8(out, 0x72), raw, 4)
    if tag == 100:  # d; what is no number may have bits that Python does not keep
        return NULL if raw[0] & 0x7F == 0x7F and raw[1] >= 0xF0 else put_all(put8(out, 0x82), raw, 8)
    if tag == 84:  # T
        return put64(put8(out, 0x83), in_milliseconds(get64(raw)))
    return put8(out, 0x40) if tag == 86 else NULL  # V
