# Part of ring.pyx: the memory of blocks.
#
# It comes from the system in pieces, and a piece goes back when none of its blocks is in use. In the heap free blocks
# would stand between what lives longer, so that 10,000 queues that once had a message each would keep 60 MB for ever.
# Blocks change hands often when queues are short: a free one is all zeros, and the piece that was the last to get room
# is used first. One piece with room stays, though nothing be in it.

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *at, size_t length, int protection, int flags, int file, long offset)
    int munmap(void *at, size_t length)
    void *MAP_FAILED
    int MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE

cdef struct piece:
    piece *before  # in the list of those with room
    piece *after
    block *free  # those that were in use, linked by the first slot's `message`
    uint32_t used
    uint32_t fresh  # from this one on no block has been in use
    block[63] blocks

cdef piece *roomy = NULL
cdef size_t pieces = 0


def block_pieces() -> int:
    """Pieces of memory that all rings of the process have for their blocks."""
    return pieces


cdef void link_piece(piece *home) noexcept:
    global roomy
    home.before, home.after = NULL, roomy
    if roomy != NULL:
        roomy.before = home
    roomy = home


cdef void unlink_piece(piece *home) noexcept:
    global roomy
    if home.before != NULL:
        home.before.after = home.after
    else:
        roomy = home.after
    if home.after != NULL:
        home.after.before = home.before


cdef block *new_block() except NULL:
    global pieces
    cdef piece *home = roomy
    cdef block *made
    if home == NULL:
        home = <piece *>mmap(NULL, sizeof(piece), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if <void *>home == MAP_FAILED:
            raise MemoryError()
        pieces += 1
        link_piece(home)
    made = home.free
    if made != NULL:
        home.free = <block *>made.slots[0].message
        made.slots[0].message = 0
    else:
        made = &home.blocks[home.fresh]
        made.home = home
        home.fresh += 1
    home.used += 1
    if home.used == PIECE_BLOCKS:
        unlink_piece(home)
    return made


cdef void old_block(block *spent) noexcept:
    global pieces
    cdef piece *home = spent.home
    spent.live = spent.dirty = 0
    free(spent.holders)
    free(spent.links)
    spent.holders = NULL
    spent.links = NULL
    spent.slots[0].message = <uint64_t>home.free
    home.free = spent
    if home.used == PIECE_BLOCKS:
        link_piece(home)
    home.used -= 1
    if home.used == 0 and (home.before != NULL or home.after != NULL):
        unlink_piece(home)
        munmap(home, sizeof(piece))
        pieces -= 1
