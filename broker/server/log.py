"""The node's log: one structured line per event, limited in number.

Lines that clients can cause (a refused login, a broken frame, a dropped connection) pass a bucket per kind of event:
a number at once, a number per second; the next line that passes has the count of suppressed ones. No line holds a
password, a hash or a message body: the callers hand in names and reasons only.

`structured` writes JSON or console lines to stderr through structlog, imported with the first line: the import takes
longer than the start of an empty node. `library` goes to the `logging` logger "clusterbroker", for nodes inside another
program's process.

Strangers choose much of the text on a console: user names of refused logins, names of queues, a library's words about a
request. Unprintable characters therefore never reach a line as they are (`broker.visible`), tracebacks included, whose
texts would otherwise begin lines of their own.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from clusterbroker.broker.visible import visible
from clusterbroker.cluster.wiring.entities import Queue, Segment
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Pool

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import SocketCore
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.log import Fault
    from clusterbroker.broker.pools.known import Started

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
BURST: Final = 50
PER_S: Final = 5.0

Sink = Callable[[str, str, dict[str, Any]], None]
"""Takes level, event, facts."""


def structured(form: str, node: str = "", stream: TextIO | None = None) -> Sink:
    """Lines on `stream`, else on stderr; `form` is "json" or "console". JSON lines name the node, for collections of
    several nodes' lines."""
    logger: Any = None

    def write(level: str, event: str, facts: dict[str, Any]) -> None:
        nonlocal logger
        if node and form == "json" and facts.setdefault("node", node) != node:
            facts["logged_by"] = node  # the line is about another one
        if logger is None:
            logger = _structlog_logger(form, stream)
        getattr(logger, level)(event, **facts)

    return write


def _structlog_logger(form: str, stream: TextIO | None) -> Any:
    import sys

    import structlog

    drawn: Any = (
        structlog.processors.JSONRenderer(default=str) if form == "json" else console_renderer(sys.stderr.isatty())
    )
    # a logger of our own: nothing of the process's structlog configuration is touched
    return structlog.wrap_logger(
        structlog.WriteLogger(stream or sys.stderr),  # a line and its end in one write: a kill leaves no half
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if form == "json" else _unchanged,
            drawn,
        ],
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _unchanged(_logger: Any, _method: str, event: Any) -> Any:
    return event


def console_renderer(colors: bool) -> Any:
    """The last of structlog's processors. Tracebacks have no local variables: passwords and hashes are among them."""
    import structlog

    drawn = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)

    def render(logger: Any, method: str, event: Any) -> Any:
        return drawn(logger, method, {_shown(name): _shown(value) for name, value in event.items()})

    return render


def _shown(value: Any) -> Any:
    """Strings are written out; of other values structlog draws the repr, which has nothing but what prints."""
    return visible(value) if isinstance(value, str) and not value.isprintable() else value


def _traceback(out: TextIO, exc_info: Any) -> None:
    """No line of it begins where lines of the log begin, whatever the exception's text is."""
    import structlog

    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    for line in plain.getvalue().strip().splitlines():
        out.write(f"\n    {_shown(line)}")


def library() -> Sink:
    logger = logging.getLogger("clusterbroker")

    def write(level: str, event: str, facts: dict[str, Any]) -> None:
        number = LEVELS[level]
        if logger.isEnabledFor(number):
            error = facts.pop("exc_info", None)
            text = " ".join(f"{name}={value!r}" for name, value in facts.items())
            logger.log(number, "%s %s", event, text, exc_info=error)

    return write


class Bucket:
    """BURST at once, PER_S each second; `held_back` counts the others."""

    __slots__ = ("at_s", "held_back", "tokens")

    def __init__(self, at_s: float) -> None:
        self.tokens = float(BURST)
        self.at_s = at_s
        self.held_back = 0

    def passes(self, at_s: float) -> bool:
        """Whether one more passes now."""
        self.tokens = min(BURST, self.tokens + (at_s - self.at_s) * PER_S)
        self.at_s = at_s
        if self.tokens < 1:
            self.held_back += 1
            return False
        self.tokens -= 1
        return True


class Libraries(logging.Handler):
    """Lines of libraries as lines of the node, through a bucket, for clients can cause them."""

    def __init__(self, write: Sink, event: str) -> None:
        super().__init__(logging.WARNING)
        self._write = write
        self._event = event
        self._bucket = Bucket(time.monotonic())

    def emit(self, record: logging.LogRecord) -> None:
        if not self._bucket.passes(time.monotonic()):
            return
        facts: dict[str, Any] = {"library": record.name, "text": record.getMessage()}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        self._write("error" if record.levelno >= logging.ERROR else "warning", self._event, facts)


class NodeLog:
    """`broker.node.log.Log`, and lines of the shells."""

    def __init__(self, write: Sink, level: str = "info", now_s: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._level = LEVELS[level]
        self._now_s = now_s
        self._buckets: dict[str, Bucket] = {}

    def writes(self, level: str) -> bool:
        return LEVELS[level] >= self._level

    def emit(self, level: str, event: str, **facts: Any) -> None:
        """An event of the node itself, never held back."""
        if LEVELS[level] >= self._level:
            self._write(level, event, facts)

    def always(self, event: str, **facts: Any) -> None:
        """An event that is logged at any level."""
        self._write("info", event, facts)

    def _caused(self, level: str, event: str, facts: dict[str, Any]) -> None:
        """An event that a client can repeat at will."""
        if LEVELS[level] < self._level:
            return
        at_s = self._now_s()
        bucket = self._buckets.get(event)
        if bucket is None:
            bucket = self._buckets[event] = Bucket(at_s)
        if bucket.passes(at_s):
            if bucket.held_back:
                facts["held_back"], bucket.held_back = bucket.held_back, 0
            self._write(level, event, facts)

    def fault(self, peer: str, user: str, channel: int, error: Fault) -> None:
        level, code, text = error.line
        facts = {"peer": peer, "user": user, "channel": channel, "code": code, "text": text}
        self._caused(level, "client.fault", facts)

    def cut(self, peer: str, user: str, why: str) -> None:
        self._caused("warning", "client.cut", {"peer": peer, "user": user, "why": why})

    def refused(self, peer: str, user: str, mechanism: str, why: str) -> None:
        facts = {"peer": peer, "user": user, "mechanism": mechanism, "why": why}
        self._caused("warning", "client.refused", facts)

    def unroutable(self, segment: Segment, rows: int) -> None:
        facts = {
            "vhost": segment.vhost, "producer": segment.producer, "epoch": segment.epoch, "transaction": segment.name,
            "target": segment.target, "rows": rows,
        }  # fmt: skip
        self._caused("warning", "txn.unroutable", facts)

    def begins_late(self, vhost: str, queue: str, offset: int) -> None:
        self._caused("warning", "stream.begins_late", {"vhost": vhost, "queue": queue, "offset": offset})

    def starts_fail(self, pool: Pool, key: str, for_s: int, why: str) -> None:
        facts = {"vhost": pool.vhost, "pool": pool.name, "key": key, "for_s": for_s, "why": why}
        self._caused("warning", "pool.starts_fail", facts)

    def workers_leave(self, pool: Pool, revoked: bool, workers: Sequence[str], why: str) -> None:
        facts = {"vhost": pool.vhost, "pool": pool.name, "workers": " ".join(workers), "why": why}
        self._caused("info", "worker.revoked" if revoked else "worker.retired", facts)

    def worker_ready(self, pool: Pool, one: Started) -> None:
        key = {} if one.key == NO_KEY else {"key": one.key}
        facts = {
            "vhost": pool.vhost, "pool": pool.name, "worker": one.worker_id, **key, "place": one.place,
            "took_ms": round(1000 * one.took_s),
        }  # fmt: skip
        self._caused("info", "worker.ready", facts)

    def place_lost(self, pool: Pool, place: str, workers: int) -> None:
        facts = {"vhost": pool.vhost, "pool": pool.name, "place": place, "workers": workers}
        self._caused("warning", "place.lost", facts)

    def alert(self, raised: bool, kind: str, subject: str, text: str) -> None:
        if raised:
            self.emit("warning", "alert.raised", alert=kind, subject=subject, text=text)
        else:
            self.emit("info", "alert.cleared", alert=kind, subject=subject, text=text)

    def held(self, what: str, took_ms: int, facts: dict[str, Any]) -> None:
        self._caused("warning", "loop.held", {"what": what, "took_ms": took_ms, **facts})

    def turned_away(self, peer: str, why: str) -> None:
        """A socket was closed at once."""
        self._caused("warning", "client.turned_away", {"peer": peer, "why": why})

    def crashed(self, peer: str, error: BaseException) -> None:
        """An error of the node's own while it served one client."""
        self._caused("error", "client.crashed", {"peer": peer, "exc_info": error})

    def link_crashed(self, peer: str, error: BaseException) -> None:
        self._write("error", "cluster.link_crashed", {"peer": peer, "exc_info": error})

    def set_aside(self, queue: Queue, seq: int, error: Exception) -> None:
        facts = {"queue": queue.name, "vhost": queue.vhost, "seq": seq or None, "exc_info": error}
        self._write("error", "queue.set_aside", facts)


HELD_MS: Final = 100


class Held:
    """Events that held the node's loop for HELD_MS or longer, by wall time; `count` of them since the start.

    Every event of a client or another node is meant to be short (`broker.routing.labour`, `broker.queues.effort`). A
    line names the others: the client whose bytes were read, the member with the frame, the queue with the longest turn,
    or the cluster's event (a command of the metadata log, a link, a lease).
    """

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self.count = 0

    def read(self, took_ms: int, connection: SocketCore) -> None:
        if took_ms >= HELD_MS:
            self._log_held("read", took_ms, peer=connection.peer, user=connection.user)

    def frame(self, took_ms: int, peer: str) -> None:
        if took_ms >= HELD_MS:
            self._log_held("frame", took_ms, peer=peer)

    def turn(self, took_ms: int, node: Node) -> None:
        """`Node.longest` is the queue that took most of the turn."""
        if took_ms >= HELD_MS:
            queue, longest_ns = node.longest, node.longest_ns
            facts = {}
            if queue is not None:
                facts = {"queue": queue.name, "vhost": queue.entity.vhost, "queue_ms": longest_ns // 1_000_000}
            self._log_held("turn", took_ms, **facts)

    @contextmanager
    def event(self, what: str, **facts: Any) -> Iterator[None]:
        """Around an event of the cluster: "wiring", "linked", "unlinked", "lease", "tick"."""
        began_ns = time.monotonic_ns()
        yield
        took_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        if took_ms >= HELD_MS:
            self._log_held(what, took_ms, **facts)

    def _log_held(self, what: str, took_ms: int, **facts: Any) -> None:
        self.count += 1
        self._log.held(what, took_ms, facts)
