"""What a message's headers say to an exchange of type `x-recent-history`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NO_STORE: Final = "x-recent-history-no-store"


def is_kept(headers: Mapping[str, object] | None) -> bool:
    """Whether the exchange keeps the message for those that are bound to it later."""
    return headers is None or headers.get(NO_STORE) is not True
