"""What finding a route costs, and how much one route may cost.

While a route is found nobody else is served. Its cost is its sender's choice: patterns with `#` and many `*` are all
followed at once, a headers exchange looks at each binding that shares a value with the message, and exchanges may be
bound to exchanges. So the work is counted in *steps* of about a tenth of a microsecond, and a route that would take
more than STEPS_MAX is not found: `TooCostly`, for which a publish is refused (406). Nodes differ in nothing that a step
depends on, so a message that is refused here is refused everywhere.
"""

from __future__ import annotations

from typing import Final

STEPS_MAX: Final = 200_000
STEPS_AT_ONCE: Final = 200_000
"""Of all routes and deliveries of a read, or of a turn; the rest waits for the next turn."""
DELIVERY_STEPS: Final = 2
"""A message that goes into a queue."""
DELIVERIES_AT_ONCE: Final = STEPS_AT_ONCE // DELIVERY_STEPS
METHODS_AT_ONCE: Final = 2_000
"""Of all connections, from one turn to the next: some 10 us each, and a read may bring 30,000 of them."""


class TooCostly(ValueError):
    """The bindings on the way would take too many steps."""

    def __init__(self) -> None:
        super().__init__(
            f"more than {STEPS_MAX:,} steps to find its queues: too many bindings match a part of its key or headers"
        )


class Steps:
    """Of one route."""

    __slots__ = ("left",)

    def __init__(self, most: int = STEPS_MAX) -> None:
        self.left = most

    def take(self, count: int) -> None:
        """So many were done. Raises TooCostly."""
        self.left -= count
        if self.left < 0:
            raise TooCostly


class Labour:
    """Of all routes and deliveries to queues of a node, and of what waited in parked channels. `done`: steps, since it
    began; `until`: when so much is done, channels that are parked go on with the next turn; `methods`: that clients
    have said since the last turn began; `refused`: routes that cost too much."""

    __slots__ = ("done", "methods", "refused", "until")

    def __init__(self) -> None:
        self.done = self.methods = self.refused = self.until = 0
