"""The bytes of a segment, drawn once. Little endian throughout; all lengths include their own header.

    group   one group commit: written by one write, made durable by one fdatasync, valid as a whole or not at all
        0  u32  magic "CBJ1"
        4  u32  crc32c of bytes 8..32
        8  u32  length of the group in bytes, header included
       12  u32  number of records
       16  u64  lsn: 1, 2, 3 ... over the life of the journal, without a gap
       24  u48  wall clock, ms since 1970
       30  u16  window: every group up to lsn - window was durable when this one was handed to the disk
       32  records, each padded to a multiple of 8 bytes by zeros that its length does not count

    record  one entry of one queue's log
        0  u32  length in bytes, without padding
        4  u32  crc32c of bytes 8..length
        8  u8   kind      (below)
        9  u8   flags     ENQ: the message's flags; SET: the cause; DEAD: the reason
       10  u8   priority  ENQ only
       11  u8   format    ENQ: what the header and the body are encoded in (broker/content/formats.py); else 0
       12  u32  epoch of the queue's owner
       16  u64  queue id
       24  u64  seq
       32  body

    ENQ  a message joins the queue as seq
       32  u64  time_ms, when it was enqueued
       40  i64  ttl_ms of the message, -1 without
       48  u16  length of the address   50  u16  delivery count   52  u32  length of the header
       56  address | header | body
    SET  messages left the queue:  ranges (u64 first, u64 last), inclusive; the record's seq is the first of them
    RSV  every seq up to this one may be handed to a consumer from now on
    REQ  u16 delivery count of seq, after a return that the consumer caused
    DEAD u64 number: seq left its queue's order and is held for its dead-letter targets; the queue's dead are
         numbered 1, 2, 3 ... in the order of these records, over all epochs
    CUT  everything from seq on is gone, its numbers will be used anew (a replica had what its owner has not)
    ATTR  u64 upto | name: the value of an attribute (broker/queues/attributes.py); 0: it is taken out
    EPO  the record's epoch begins: messages from seq on are of it, until the next EPO

A run is one index entry: up to 256 messages of a queue whose seq share all but the low 8 bits. Everybody handles it
like this; what the index keeps of it (format 2) is drawn in packed_run.py.

    run entry, 20 bytes:  u8 seq & 255 | u8 priority | u8 flags | u8 delivery count (255 = 255 or more)
                          u32 segment | u32 offset of the record in it | u32 length of the record
                          u32 length of the body
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

MAGIC: Final = 0x314A4243
GROUP_HEADER: Final = struct.Struct("<IIIIQQ")
RECORD_HEADER: Final = struct.Struct("<IIBBBBIQQ")
ENQ_FIELDS: Final = struct.Struct("<QqHHI")
RANGE: Final = struct.Struct("<QQ")
COUNT: Final = struct.Struct("<H")
NUMBER: Final = struct.Struct("<Q")
REASON_BITS: Final = 8
"""A dead message's mark is `number << 8 | reason`."""
ATTRIBUTE_BYTES_MAX: Final = 1024
RUN_ENTRY: Final = struct.Struct("<BBBBIIII")

SEQ_MAX: Final = 2**62 - 1
"""No queue comes so far; what arithmetic on seqs may count on when records come from another node."""
GROUP_HEADER_BYTES: Final = 32
WINDOW_SHIFT: Final = 48
WINDOW_MAX: Final = 0xFFFF
"""`time_ms | window << WINDOW_SHIFT` is the header's last word."""
RECORD_HEADER_BYTES: Final = 32
ENQ_OVERHEAD_BYTES: Final = 56
RUN_LENGTH: Final = 256

ENQ: Final = 1
SET: Final = 2
RSV: Final = 3
REQ: Final = 4
DEAD: Final = 5
CUT: Final = 6
ATTR: Final = 7
EPO: Final = 8
KIND_NAMES: Final = {
    ENQ: "ENQ", SET: "SET", RSV: "RSV", REQ: "REQ", DEAD: "DEAD", CUT: "CUT", ATTR: "ATTR", EPO: "EPO",
}  # fmt: skip

# Message flags (Message.flags, ENQ flags)
PERSISTENT: Final = 1
HAS_HEADERS: Final = 2
HAS_EXPIRATION: Final = 4
HAS_USER_ID: Final = 8
HAS_REPLY_TO: Final = 16
HAS_BCC: Final = 32  # a BCC header that consumers must not see
ANSWERABLE: Final = 64  # a request of a worker pool whose publisher may have an answer at its reply_to
TTL_MS_MAX: Final = 2**63 - 1
"""A longer time to live counts as this one. No clock comes so far: a message that would expire beyond never does."""
REDELIVERED_BIT: Final = 0x80
"""In the flags of ENQ records that go from node to node: the consumer shall see `redelivered`. Never stored."""

# Run entry flags
REDELIVERED: Final = 1


class Record(NamedTuple):
    """One record of a group as `scan_group` reads it; `offset` counts from the start of the segment.

    `value` is a DEAD's mark (number << 8 | reason) and an ATTR's upto.
    """

    kind: int
    flags: int
    priority: int
    epoch: int
    queue_id: int
    seq: int
    offset: int
    length: int
    body_length: int
    delivery_count: int
    ranges: tuple[tuple[int, int], ...]
    value: int = 0
    name: bytes = b""


Location: TypeAlias = tuple[int, int, int, int]
"""A message on disk: seq, segment, offset in it, length of the record."""
