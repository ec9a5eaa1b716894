"""How often the garbage collector looks. What a start makes stays, and messages are no containers: with the usual
thresholds looking takes a twentieth of a start, and with many queues as long as a lease has."""

from __future__ import annotations

import gc


def look_seldom() -> None:
    """From here on, in this process."""
    gc.set_threshold(50_000, 20, 50)
