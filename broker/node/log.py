"""Where a node tells what clients did wrong."""

from __future__ import annotations

from typing import Protocol

from broker.amqp.errors import AmqpError
from cluster.entities import Segment


class Log(Protocol):
    """Where the node tells what clients did wrong; never secrets, never message bodies."""

    def fault(self, peer: str, user: str, channel: int, error: AmqpError) -> None:
        """A channel or connection was closed with an error."""

    def cut(self, peer: str, user: str, why: str) -> None:
        """A connection was dropped without a close."""

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        """A login was refused."""

    def unroutable(self, segment: Segment, rows: int) -> None:
        """So many committed rows of a segment found no queue when they were moved."""

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        """A condition that an operator must see began, or ended."""


class Silence:
    """A Log that says nothing."""

    def fault(self, peer: str, user: str, channel: int, error: AmqpError) -> None:
        pass

    def cut(self, peer: str, user: str, why: str) -> None:
        pass

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        pass

    def unroutable(self, segment: Segment, rows: int) -> None:
        pass

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        pass
