"""Bounds of numbers and ranges in heads: the decoder refuses everything else, before any handling.

A peer has the cluster's secret, so it is a member; but it may be broken, or newer than expected. Bounds of one field
stand in its type, those of several fields of a message in its `__post_init__`. Both make a wrong head a
`msgspec.ValidationError`, which ends its link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A seq, an id, a group, a count: one more still fits a signed word."""
Word = Annotated[int, msgspec.Meta(ge=0)]
"""Any unsigned 64 bits, all that msgpack can hold: a digest, a dead message's mark."""
Term = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""An epoch, as records hold it."""
Short = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
"""A delivery count, as records hold it."""
Bucket = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
"""Number of a bucket of seqs."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A consumer's priority."""
Producer = Annotated[bytes, msgspec.Meta(min_length=1, max_length=1024)]
"""A producer's name, as records hold it."""

Range = tuple[Whole, Whole]
"""(first, last), inclusive."""


def check_ranges(ranges: Iterable[tuple[int, int]]) -> None:
    """Raises ValueError for a range that ends before it begins."""
    for first, last in ranges:
        if last < first:
            raise ValueError(f"a range from {first} to {last}")
