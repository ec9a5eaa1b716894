"""Messages that come back from disk (waits): page-in for queues, and the end of segments.

Everything here runs on the reader thread. A segment is unlinked by the same thread, behind every read that was
asked for before, so no read misses its file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.record import DamagedRecord, Message, read_messages, read_span, verify_records
from clusterbroker.journal.segments import Segments

OPEN_FILES_MAX = 64
EPOCH_MAX = 2**32 - 1
_PADDING = tuple(bytes(count) for count in range(8))

Wanted = tuple[int, int, int, int]
"""seq, segment, offset of the record, its length"""


class Reader:
    def __init__(self, segments: Segments, options: JournalOptions) -> None:
        self._segments = segments
        self._options = options
        self._files: OrderedDict[int, int] = OrderedDict()

    def read(self, queue_id: int, wanted: Sequence[Wanted]) -> list[Message] | DamagedRecord:
        """The messages in the order of `wanted`; neighbours in a segment come with one read. Damage is returned,
        with the file and the queue in its words."""
        together = self._together(wanted)
        if together is not None:
            return self._read_together(queue_id, wanted, *together)
        return self._read_apart(queue_id, wanted)

    def records(self, queue_id: int, wanted: Sequence[Wanted]) -> bytes:
        """The records themselves, padded, one behind the other. Raises DamagedRecord, OSError."""
        lengths = {(segment, offset): length for _, segment, offset, length in wanted}
        parts: list[bytes] = []
        for segment, start, end, places in self._spans(wanted):
            data = os.pread(self._file(segment), end - start, start)
            for _, offset in places:
                length = lengths[segment, offset]
                parts += data[offset - start : offset - start + length], _PADDING[-length % 8]
        whole = b"".join(parts)
        if verify_records(whole, queue_id, EPOCH_MAX) != len(wanted):
            raise DamagedRecord(0, "records of another size than the index has")
        return whole

    def _read_apart(self, queue_id: int, wanted: Sequence[Wanted]) -> list[Message] | DamagedRecord:
        messages: list[Message] = []
        for segment, start, end, places in self._spans(wanted):
            try:
                data = os.pread(self._file(segment), end - start, start)
                messages += read_messages(data, start, queue_id, places)
            except (DamagedRecord, OSError) as error:
                offset = error.offset if isinstance(error, DamagedRecord) else start
                what = error.args[1] if isinstance(error, DamagedRecord) else error
                return DamagedRecord(offset, f"{what} ({self._segments.path(segment)}, queue {queue_id:#x})")
        return messages

    def _together(self, wanted: Sequence[Wanted]) -> tuple[int, int] | None:
        """(first byte, end) when all of it seems to stand together in one segment, as a backlog does.

        Only the ends are looked at: a message in the middle may stand elsewhere. Reading it then fails, and the
        careful way finds it.
        """
        if not wanted:
            return None
        _, segment, start, length = wanted[0]
        _, last_segment, last, last_length = wanted[-1]
        end = last + last_length
        near = segment == last_segment and 0 < end - start <= 2 * self._options.read_bytes_max
        return (start, end) if near and end - start <= 2 * len(wanted) * max(length, last_length) else None

    def _read_together(
        self, queue_id: int, wanted: Sequence[Wanted], start: int, end: int
    ) -> list[Message] | DamagedRecord:
        try:
            return read_span(os.pread(self._file(wanted[0][1]), end - start, start), start, queue_id, wanted)
        except (DamagedRecord, OSError):
            return self._read_apart(queue_id, wanted)

    def _spans(self, wanted: Sequence[Wanted]) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
        """(segment, first byte, end, places) of the reads that bring all of it."""
        segment, start, end = 0, 0, 0
        places: list[tuple[int, int]] = []
        for seq, in_segment, offset, length in wanted:
            near = in_segment == segment and 0 <= offset - end <= self._options.read_gap_bytes
            if not near or offset + length - start > self._options.read_bytes_max:
                if places:
                    yield segment, start, end, places
                segment, start, places = in_segment, offset, []
            end = offset + length
            places.append((seq, offset))
        if places:
            yield segment, start, end, places

    def _file(self, segment: int) -> int:
        fd = self._files.pop(segment, -1)
        if fd < 0:
            fd = os.open(self._segments.path(segment), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._files) >= OPEN_FILES_MAX:
                os.close(self._files.popitem(last=False)[1])
        self._files[segment] = fd
        return fd

    def unlink(self, segment: int) -> None:
        fd = self._files.pop(segment, -1)
        if fd >= 0:
            os.close(fd)
        self._segments.unlink(segment)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
