"""The journal's bytes and the message as it is remembered: the compiled half or its twin (`journal.build`).

`journal/record_pure.py` explains the layout and is the specification; `journal/record_fast.pyx` does the same
per message in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.journal.build import COMPILED

if TYPE_CHECKING or not COMPILED:
    from clusterbroker.journal.record_pure import (
        DamagedRecord,
        GroupWriter,
        Message,
        Record,
        RecordBuffer,
        SegmentUse,
        attributes_named,
        bodies_but_last,
        checksum,
        enqueued,
        read_message,
        read_messages,
        read_records,
        read_span,
        scan_group,
        seal,
        size_of,
        verify_records,
    )
else:
    from clusterbroker.journal.record_fast import (
        DamagedRecord,
        GroupWriter,
        Message,
        Record,
        RecordBuffer,
        SegmentUse,
        attributes_named,
        bodies_but_last,
        checksum,
        enqueued,
        read_message,
        read_messages,
        read_records,
        read_span,
        scan_group,
        seal,
        size_of,
        verify_records,
    )

__all__ = [
    "DamagedRecord",
    "GroupWriter",
    "Message",
    "Record",
    "RecordBuffer",
    "SegmentUse",
    "attributes_named",
    "bodies_but_last",
    "checksum",
    "enqueued",
    "read_message",
    "read_messages",
    "read_records",
    "read_span",
    "scan_group",
    "seal",
    "size_of",
    "verify_records",
]
