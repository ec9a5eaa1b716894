"""What came and went at a node since it began: totals, for operators."""

from __future__ import annotations


class Churn:
    """Counted where it happens; nobody decides anything by it."""

    __slots__ = ("channels", "logins", "queues_created", "queues_declared", "queues_deleted", "refused_logins")

    def __init__(self) -> None:
        self.channels = 0
        """Opened."""
        self.logins = 0
        self.refused_logins = 0
        self.queues_declared = 0
        """queue.declare that were answered, whether the queue was new or not."""
        self.queues_created = 0
        """That began, and that this node was the first owner of."""
        self.queues_deleted = 0
        """That ended while this node owned them."""
