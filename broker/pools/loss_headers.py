"""Names of annotations and headers about workers that were lost with a request (`losses`)."""

from __future__ import annotations

from typing import Final

LOST: Final = "x-lost-"
LAST: Final = "x-last-return"
POISON: Final = "x-poison"
COUNT: Final = "x-delivery-count"
REASON: Final = "x-last-death-reason"
"""Every death writes it: a client that publishes a dead request again may have kept the first one's."""
