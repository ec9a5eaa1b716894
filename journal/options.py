"""What may be set about a journal; `broker/config.py` composes it into the node's configuration."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Sizes in bytes, times in seconds."""

    segment_bytes: int = 64 * MIB
    """Size of a segment file. Two are allocated from the start (the one in use and the next); an embedded node for
    tests may take 1 MiB. A group larger than a segment gets a segment of its own size."""

    group_bytes_max: int = 8 * MIB
    """Size at which a group calls itself full, so that one commit does not hold up the next for long."""

    flush_interval_s: float = 0.05
    """Longest time that a group of durability `disk` waits for its fdatasync."""

    checkpoint_bytes: int = 64 * MIB
    """A checkpoint is due when so many bytes were written since the last one: bounds what recovery replays."""

    checkpoint_interval_s: float = 1.0
    """A checkpoint is due so long after the first write since the last one."""

    sparse_percent: int = 25
    """A segment with less than this share of live bytes is worth copying forward."""

    read_bytes_max: int = 4 * MIB
    """Longest single read of a page-in."""

    read_gap_bytes: int = 16384
    """Records of one queue that lie no further apart than this are read together."""

    full_retry_s: float = 0.2
    """How often a write that found no space is tried again."""

    reserve_bytes: int = 4 * MIB
    """Size of a file that is given up when the index finds no space, so that a checkpoint can free segments.
    0 keeps none."""

    scrub_rate_bytes: int = 4 * MIB
    """So fast segments that are complete are read and proved; 0: not at all."""

    map_bytes: int = 1 << 40
    """Address space of the index. It costs no memory and no disk; it is never grown at run time."""
