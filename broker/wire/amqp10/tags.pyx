# Delivery-tags as bytes in a row, and as a set; `tests/model/tags10.py` explains each name.
#
# A tag has at most 32 bytes (2.8.7). An entry of a set is a byte of length + 1 and the tag, in as many words as the longest
# tag of the set needs: no pointer, no object. Clients choose the tags, so an entry's place is found with random numbers of
# this process; entries are packed by moving them back when one goes.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    TAG_MAX = 32
    WORDS_MAX = 5
    PLACES_MIN = 32

cdef uint64_t[WORDS_MAX + 1] FACTORS

cdef int draw() except -1:
    # of the secret that Python's own hashes have in each process
    cdef int place
    for place in range(WORDS_MAX + 1):
        FACTORS[place] = <uint64_t><Py_ssize_t>hash(b"factor %d of delivery-tags" % place) | 1
    return 0

draw()

# of a word in memory its length and so many bytes, and one more in the length
cdef uint64_t[8] MASKS
cdef uint64_t FIRST

cdef void make_masks() noexcept:
    cdef uint64_t length
    cdef uint8_t one = 1
    for length in range(8):
        MASKS[length] = 0
        memset(&MASKS[length], 0xFF, length + 1)
    memcpy(&FIRST, &one, 1)

make_masks()


cdef int too_long(uint64_t length) except -1:
    raise ValueError(f"a delivery-tag of {length} bytes: at most {TAG_MAX}")


@cython.final
cdef class Tags:
    """Delivery-tags in their order."""

    def __init__(self, tags=()):
        for tag in tags:
            self.append(tag)

    def __dealloc__(self):
        free(self.data)

    cdef int put(self, const uint8_t *tag, uint64_t length) except -1:
        cdef uint8_t *grown
        if length > TAG_MAX:
            too_long(length)
        if self.size + length >= self.capacity:
            # a word may be read where the last byte is
            grown = <uint8_t *>realloc(self.data, 2 * self.capacity + TAG_MAX + 1 + sizeof(uint64_t))
            if grown is NULL:
                raise MemoryError
            self.data = grown
            self.capacity = 2 * self.capacity + TAG_MAX + 1
        self.data[self.size] = <uint8_t>length
        memcpy(self.data + self.size + 1, tag, length)
        self.size += length + 1
        self.count += 1
        return 0

    def append(self, bytes tag not None) -> None:
        """Raises ValueError for a tag of more than 32 bytes."""
        self.put(<const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag))

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return iter(self.listed())

    def __eq__(self, other) -> bool:
        return list(other) == self.listed() if isinstance(other, (Tags, list, tuple)) else NotImplemented

    __hash__ = None

    cdef list listed(self):
        cdef list found = []
        cdef const uint8_t *at = self.data
        cdef const uint8_t *end = self.data + self.size
        while at < end:
            found.append(PyBytes_FromStringAndSize(<const char *>at + 1, at[0]))
            at += at[0] + 1
        return found


@cython.final
cdef class TagSet:
    """Delivery-tags in use."""

    cdef uint64_t *table  # `places` entries of `words` words, or NULL
    cdef uint64_t places
    cdef uint64_t count
    cdef int words
    cdef int shift

    def __init__(self):
        self.words = 1

    def __dealloc__(self):
        free(self.table)

    @property
    def bytes_held(self) -> int:
        """Of memory, for its entries."""
        return 8 * self.words * self.places

    def __len__(self) -> int:
        return self.count

    def __contains__(self, bytes tag not None) -> bool:
        cdef uint64_t[WORDS_MAX] entry
        if self.table is NULL or PyBytes_GET_SIZE(tag) + 1 > 8 * self.words:
            return False
        make_entry(entry, self.words, <const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag))
        return self.table[self.find(entry) * self.words] != 0

    def __iter__(self):
        cdef list found = []
        cdef uint64_t place
        cdef const uint8_t *entry
        for place in range(self.places):
            entry = <const uint8_t *>(self.table + place * self.words)
            if entry[0]:
                found.append(PyBytes_FromStringAndSize(<const char *>entry + 1, entry[0] - 1))
        return iter(found)

    def add(self, bytes tag not None) -> bool:
        """False: it is there already. Raises ValueError for one of more than 32 bytes."""
        return self.put(<const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag))

    def hold(self, tags) -> bool:
        """Adds all of them; False: one is there already, or is there twice now."""
        cdef Tags row
        cdef const uint8_t *at
        cdef const uint8_t *end
        cdef bint new = True
        if type(tags) is not Tags:
            for tag in tags:
                new = self.add(tag) and new
            return new
        row = <Tags>tags
        self.grow_for(row.count, self.words)
        at, end = row.data, row.data + row.size
        while at < end:
            if self.words == 1 and at[0] < 8:
                if not self.put_word(word_of(at)):
                    new = False
            elif not self.put(at + 1, at[0]):
                new = False
            at += at[0] + 1
        return new

    def release(self, tags) -> None:
        """Takes out those of them that are there."""
        cdef Tags row
        cdef bytes tag
        cdef const uint8_t *at
        cdef const uint8_t *end
        if type(tags) is not Tags:
            for one in tags:
                tag = one
                self.drop(<const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag))
        else:
            row = <Tags>tags
            at, end = row.data, row.data + row.size
            while at < end and self.count:
                if self.words == 1 and at[0] < 8:
                    self.drop_word(word_of(at))
                else:
                    self.drop(at + 1, at[0])
                at += at[0] + 1
        if self.count == 0 and self.places > PLACES_MIN:
            free(self.table)
            self.table = NULL
            self.places = 0
            self.words = 1

    cdef bint put(self, const uint8_t *tag, uint64_t length) except -1:
        # False: it is there already
        cdef uint64_t[WORDS_MAX] entry
        cdef uint64_t place
        if length > TAG_MAX:
            too_long(length)
        self.grow_for(1, max(self.words, <int>(length // 8 + 1)))
        make_entry(entry, self.words, tag, length)
        place = self.find(entry)
        if self.table[place * self.words]:
            return False
        memcpy(self.table + place * self.words, entry, 8 * self.words)
        self.count += 1
        return True

    cdef inline bint put_word(self, uint64_t entry) noexcept nogil:
        # the same in a set of single words that has room
        cdef uint64_t place = self.home_of(entry)
        while self.table[place]:
            if self.table[place] == entry:
                return False
            place = (place + 1) & (self.places - 1)
        self.table[place] = entry
        self.count += 1
        return True

    cdef inline void drop_word(self, uint64_t entry) noexcept nogil:
        # the same as `drop` in a set of single words
        cdef uint64_t hole = self.home_of(entry), place, mask = self.places - 1
        while self.table[hole] != entry:
            if self.table[hole] == 0:
                return
            hole = (hole + 1) & mask
        self.count -= 1
        place = (hole + 1) & mask
        while self.table[place]:
            if ((place - self.home_of(self.table[place])) & mask) >= ((place - hole) & mask):
                self.table[hole] = self.table[place]
                hole = place
            place = (place + 1) & mask
        self.table[hole] = 0

    cdef inline uint64_t home_of(self, uint64_t entry) noexcept nogil:
        # `home` of a single word
        cdef uint64_t mixed = entry * FACTORS[0]
        return (mixed ^ mixed >> 32) * FACTORS[WORDS_MAX] >> self.shift

    cdef uint64_t home(self, const uint64_t *entry) noexcept nogil:
        # the place that an entry has when no other has it
        cdef uint64_t mixed = 0
        cdef int word
        for word in range(self.words):
            mixed += entry[word] * FACTORS[word]
        return (mixed ^ mixed >> 32) * FACTORS[WORDS_MAX] >> self.shift

    cdef uint64_t find(self, const uint64_t *entry) noexcept nogil:
        # where an entry is, or would be
        cdef uint64_t place = self.home(entry)
        cdef uint64_t *at = self.table + place * self.words
        while at[0]:
            if at[0] == entry[0] and (self.words == 1 or memcmp(at, entry, 8 * self.words) == 0):
                break
            place = (place + 1) & (self.places - 1)
            at = self.table + place * self.words
        return place

    cdef inline int grow_for(self, uint64_t more, int words) except -1:
        # room for so many more, of so many words
        if 2 * (self.count + more) > self.places or words != self.words:
            self.grow(more, words)
        return 0

    cdef int grow(self, uint64_t more, int words) except -1:
        cdef uint64_t places = max(<uint64_t>PLACES_MIN, self.places), before = self.places, place
        cdef uint64_t *old = self.table
        cdef uint64_t *table
        cdef uint64_t[WORDS_MAX] entry
        cdef int old_words = self.words
        while 2 * (self.count + more) > places:
            places *= 2
        table = <uint64_t *>calloc(places * words, 8)
        if table is NULL:
            raise MemoryError
        self.table, self.places, self.words, self.shift = table, places, words, 64
        while places > 1:
            places //= 2
            self.shift -= 1
        for place in range(before):
            if old[place * old_words]:
                memset(entry, 0, 8 * words)
                memcpy(entry, old + place * old_words, 8 * old_words)
                memcpy(table + self.find(entry) * words, entry, 8 * words)
        free(old)
        return 0

    cdef void drop(self, const uint8_t *tag, uint64_t length) noexcept nogil:
        cdef uint64_t[WORDS_MAX] entry
        cdef uint64_t hole, place, mask = self.places - 1
        cdef uint64_t *at
        if self.table is NULL or length + 1 > <uint64_t>(8 * self.words):
            return
        make_entry(entry, self.words, tag, length)
        hole = place = self.find(entry)
        if self.table[hole * self.words] == 0:
            return
        self.count -= 1
        while True:
            place = (place + 1) & mask
            at = self.table + place * self.words
            # one that would be found before the hole, or in it, moves there
            if at[0] == 0:
                break
            if ((place - self.home(at)) & mask) >= ((place - hole) & mask):
                memcpy(self.table + hole * self.words, at, 8 * self.words)
                hole = place
        memset(self.table + hole * self.words, 0, 8 * self.words)


cdef inline uint64_t word_of(const uint8_t *at) noexcept nogil:
    # the entry of a tag of a row, of at most seven bytes
    cdef uint64_t word
    memcpy(&word, at, 8)
    return (word & MASKS[at[0]]) + FIRST


cdef inline void make_entry(uint64_t *entry, int words, const uint8_t *tag, uint64_t length) noexcept nogil:
    cdef int word
    for word in range(words):
        entry[word] = 0
    (<uint8_t *>entry)[0] = <uint8_t>(length + 1)
    memcpy(<uint8_t *>entry + 1, tag, length)
