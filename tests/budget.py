"""With how many examples, or seeds, something is tried: all, or a fifth where the answer is awaited (`scripts/check`).

What `scripts/check` leaves out, `scripts/test` and CI try.
"""

from __future__ import annotations

import os
from typing import Final

BRIEF: Final = "TESTS_BRIEF" in os.environ


def examples(count: int) -> int:
    """`count`, or the part of it that there is time for."""
    return -(-count // 5) if BRIEF else count
