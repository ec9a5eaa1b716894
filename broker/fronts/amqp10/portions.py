"""Events of one read are handled in portions when they are much work; the rest waits for later turns.

A read has thousands of transfers, each with a route of its own or to thousands of queues; no other client is served
meanwhile. After STEPS_AT_ONCE (`broker.routing.labour`) the rest waits in its order for the node's next turn, and the
connection is not read before. So does what comes behind a publish to very many queues (`in_turns`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.routing.labour import METHODS_AT_ONCE, STEPS_AT_ONCE
from clusterbroker.broker.wire.amqp10.codec import FrameReceived


class Handler(Protocol):
    """The connection."""

    @property
    def node(self) -> Node: ...

    @property
    def ending(self) -> str | None: ...

    def handle(self, event: Any) -> None: ...

    def review_reading(self) -> None: ...

    def crashed(self, error: Exception) -> None: ...


class Ticking(Protocol):
    """A session."""

    closing: bool

    def tick(self, now_ms: int, until: int) -> bool:
        """Looks for what is late. False: there may be more, when the node has done so much (`Labour.done`)."""


class Portions:
    """Of one connection."""

    __slots__ = ("_connection", "_looks", "_rest", "_turns")

    def __init__(self, connection: Handler) -> None:
        self._connection = connection
        self._rest: deque[Any] | None = None
        self._turns = 0  # publishes that go on in later turns
        self._looks = False

    @property
    def wait(self) -> bool:
        """Events wait: nothing more is read."""
        return self._rest is not None

    def take(self, events: Sequence[Any]) -> None:
        """Handles events, or the first of them."""
        if self._rest is not None:
            self._rest.extend(events)
            return
        connection, labour = self._connection, self._connection.node.labour
        until = labour.done + STEPS_AT_ONCE
        for place, event in enumerate(events, 1):
            connection.handle(event)
            if connection.ending is not None:
                return
            if type(event) is FrameReceived:
                labour.methods += 1
            if labour.done > until or labour.methods > METHODS_AT_ONCE or self._turns:
                self._rest = deque(events[place:])
                connection.review_reading()
                if not self._turns:
                    connection.node.soon(self._go_on)
                return

    def _go_on(self) -> None:
        """It is this connection's turn again."""
        rest, self._rest = self._rest, None
        connection = self._connection
        if rest and connection.ending is None:
            try:
                self.take(list(rest))
            except Exception as error:
                connection.crashed(error)
        if self._rest is None:
            connection.review_reading()

    def in_turns(self, step: Callable[[], bool]) -> None:
        """Calls `step` now and in later turns until it returns True; nothing else is taken up meanwhile."""
        connection = self._connection
        self._turns += 1

        def go_on() -> None:
            try:
                over = connection.ending is not None or step()
            except Exception as error:
                connection.crashed(error)
                over = True
            if not over:
                connection.node.soon(go_on)
                return
            self._turns -= 1
            if not self._turns and self._rest is not None:
                connection.node.soon(self._go_on)

        go_on()

    def look(self, sessions: Sequence[Ticking], now_ms: int) -> None:
        """Sessions look for what is late, the rest of very much in later turns."""
        if not self._looks:
            self._look(deque(sessions), now_ms)

    def _look(self, sessions: deque[Ticking], now_ms: int) -> None:
        connection, labour = self._connection, self._connection.node.labour
        until = labour.done + STEPS_AT_ONCE
        try:
            while sessions and connection.ending is None:
                if sessions[0].closing or sessions[0].tick(now_ms, until):
                    sessions.popleft()
                if labour.done > until:
                    break
        except Exception as error:
            connection.crashed(error)
            return
        self._looks = bool(sessions) and connection.ending is None
        if self._looks:
            labour.done += STEPS_AT_ONCE
            connection.node.soon(lambda: self._look(sessions, connection.node.now_ms))
