"""A virtual host at work: its router and its queues, folded from the wiring's changes."""

from __future__ import annotations

from broker.queues.queue import Queue
from broker.routing.router import Router


class VirtualHost:
    """What a channel needs of its virtual host."""

    __slots__ = ("name", "queues", "router")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.router: Router[Queue] = Router(self.queues.get)
