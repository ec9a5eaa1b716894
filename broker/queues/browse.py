"""Looking through a queue without taking anything (AMQP 1.0, 3.5.6: distribution-mode copy): questions and answers.

A browser asks for what is ready from a place on, one question at a time, and is answered when there is something, or
when it has waited for a while. What it was shown it holds itself: in the queue nothing is unacknowledged for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

COUNT_MAX: Final = 512
BYTES_MAX: Final = 256 << 10


class Browse(msgspec.Struct, frozen=True, array_like=True):
    """A question."""

    seq: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The first message that it wants."""
    count_max: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    waits: bool
    """False: it is answered at once, though there be nothing."""
    filter: Annotated[bytes, msgspec.Meta(max_length=16 << 10)] = b""
    """Which messages it wants (`content.selector.filters`); empty: all."""


Browsed = Callable[[int, bytes], None]
"""Where to go on, and ENQ records of messages before that; 0: the queue is gone."""
