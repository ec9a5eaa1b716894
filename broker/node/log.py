"""The node's log of clients' errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from clusterbroker.broker.pools.known import Started
from clusterbroker.cluster.wiring.entities import Queue, Segment
from clusterbroker.cluster.wiring.pool_entities import Pool


class Fault(Protocol):
    """An error that a client is told, in its protocol's terms."""

    @property
    def line(self) -> tuple[str, int | str, str]:
        """How grave it is for the node (a level of its log), the protocol's code, and the text that the client gets."""


class Log(Protocol):
    """Where the node tells what clients did wrong; never secrets, never message bodies."""

    def fault(self, peer: str, user: str, channel: int, error: Fault) -> None:
        """A channel or connection was closed with an error."""

    def cut(self, peer: str, user: str, why: str) -> None:
        """A connection was dropped without a close."""

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        """A login was refused."""

    def unroutable(self, segment: Segment, rows: int) -> None:
        """So many committed rows of a segment found no queue when they were moved."""

    def begins_late(self, vhost: str, queue: str, offset: int) -> None:
        """A stream that keeps everything is said to begin here, above 0."""

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        """A condition that an operator must see began, or ended."""

    def starts_fail(self, pool: Pool, key: str, for_s: int, why: str) -> None:
        """Workers of a key cannot be started: its callers hear so for a while."""

    def workers_leave(self, pool: Pool, revoked: bool, workers: Sequence[str], why: str) -> None:
        """A pool's controller has these end: they may finish what they hold, unless they are revoked."""

    def worker_ready(self, pool: Pool, one: Started) -> None:
        """A worker that a pool has ordered can take requests."""

    def place_lost(self, pool: Pool, place: str, workers: int) -> None:
        """A place is without its node for long: so many workers of the pool are ended with it."""

    def crashed(self, peer: str, error: BaseException) -> None:
        """A mistake of ours, which costs this client."""

    def link_crashed(self, peer: str, error: BaseException) -> None:
        """A mistake of ours, which costs the link to this node."""

    def set_aside(self, queue: Queue, seq: int, error: Exception) -> None:
        """A mistake of ours, which costs this queue; `seq` of the message if it is known, else 0."""


class Silence:
    """A Log that says nothing; a mistake of ours goes on to whoever runs the node, and could not hear of it."""

    def fault(self, *_: Any, **__: Any) -> None:
        pass

    cut = refused = unroutable = begins_late = alert = starts_fail = workers_leave = worker_ready = place_lost = fault

    def crashed(self, peer: str, error: BaseException) -> None:  # noqa: ARG002
        raise error

    link_crashed = crashed

    def set_aside(self, queue: Queue, seq: int, error: Exception) -> None:  # noqa: ARG002
        raise error
