"""`python -m broker.http.main`: the management process, as its node starts it (`broker.server.management`; waits).

    --node NAME         whose it is
    --directory DIR     where the node's `management.sock` and `amqp.sock` are
    --listen FD         a listening socket; may be given several times
    --lifeline FD       a socket whose other end the node's process holds: when that is closed, this process ends
    --loopback-user NAME, --password-cost N, --log-format json|console, --log-level LEVEL      as the node has them

It is started by a node and by nobody else. What it has to say stands on its standard error, which is the node's, in
the form of the node's own lines.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn

from broker.http.app import create_app
from broker.http.desk_client import DeskClient
from broker.management.mirror import Mirror
from broker.server.log import LEVELS, Sink, structured
from cluster import passwords

NICE: Final = 5
"""Less of a busy machine than the node gets: messages come before pages."""
BEGIN_S: Final = 10.0
"""So long the first requests wait for the node to tell what there is."""
END_S: Final = 2.0
IDLE_S: Final = 30

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


class Attentive:
    """ASGI: keeps samples coming while somebody asks, and lets nobody see the mirror before it shows anything."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], desk: DeskClient) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await asyncio.wait_for(self._desk.ready.wait(), BEGIN_S)
            except TimeoutError:
                await _not_yet(send)
                return
            await self._desk.touched()
        await self._app(scope, receive, send)


async def _not_yet(send: Send) -> None:
    body = b'{"error": "unavailable", "reason": "the node is starting: it has not told anything yet"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(asked: argparse.Namespace, listening: Sequence[socket.socket], lifeline: socket.socket) -> None:
    """Returns when the node is gone, or the process is told to end."""
    loop = asyncio.get_running_loop()
    mirror = Mirror(asked.node)
    desk = DeskClient(asked.directory, mirror, now_ms)
    app = create_app(
        mirror,
        desk,
        now_ms=now_ms,
        loopback_users=tuple(asked.loopback_user),
        password_cost=asked.password_cost,
        directory=asked.directory,
    )
    config = uvicorn.Config(
        Attentive(app, desk),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    server = uvicorn.Server(config)

    def orphaned() -> None:
        loop.remove_reader(lifeline.fileno())
        server.should_exit = True
        loop.call_later(END_S, os._exit, 0)

    loop.add_reader(lifeline.fileno(), orphaned)
    following = loop.create_task(desk.run())
    try:
        await server.serve(sockets=list(listening))
    finally:
        following.cancel()


class _Lines(logging.Handler):
    """What libraries say, as lines of ours."""

    def __init__(self, write: Sink) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"library": record.name, "text": record.getMessage()}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        self._write("error" if record.levelno >= logging.ERROR else "warning", "management.library", facts)


def speak(form: str, level: str) -> None:
    """Lines on standard error as the node writes them."""
    logging.basicConfig(handlers=[_Lines(structured(form))], level=logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            structlog.processors.JSONRenderer(default=str)
            if form == "json"
            # without local variables: passwords and hashes are among them
            else structlog.dev.ConsoleRenderer(False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="broker.http.main", description=__doc__.partition(":")[0] if __doc__ else "")
    parser.add_argument("--node", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--listen", type=int, action="append", required=True)
    parser.add_argument("--loopback-user", action="append", default=[])
    parser.add_argument("--password-cost", type=int, default=passwords.COST_DEFAULT)
    parser.add_argument("--log-format", choices=("json", "console"), default="console")
    parser.add_argument("--log-level", choices=tuple(LEVELS), default="info")
    asked = parser.parse_args(words)
    os.nice(NICE)
    speak(asked.log_format, asked.log_level)
    listening = [socket.socket(fileno=fd) for fd in asked.listen]
    lifeline = socket.socket(fileno=asked.lifeline)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(asked, listening, lifeline))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(asked, listening, lifeline))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
