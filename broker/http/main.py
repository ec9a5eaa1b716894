"""`python -m clusterbroker.broker.http.main`: the management process (waits).

Its node starts it (`broker.server.management`):

    --node NAME         whose it is
    --directory DIR     where the node's `control.sock` is
    --listen FD         a listening socket; may be given several times
    --listen-tls FD     one where HTTP is inside TLS
    --listen-local FD   the operator's own, `http.sock`, where nobody signs in
    --settings JSON     what its node is told that concerns it (`broker.server.management`); no secrets
    --lifeline FD       a socket whose other end the node's process holds: when that is closed, this process ends
    --loopback-user NAME, --password-cost N, --log-format json|console, --log-level LEVEL      as the node has them

It is started by a node and by nobody else. What it has to say stands on its standard error, which is the node's, in
the form of the node's own lines.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from clusterbroker.broker.http.app import create_app
from clusterbroker.broker.http.control_client import ControlClient
from clusterbroker.broker.http.local import LocalServer
from clusterbroker.broker.http.tcp_server import TcpServer
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server.audit import Audit
from clusterbroker.broker.server.log import LEVELS, Libraries, NodeLog, console_renderer, structured
from clusterbroker.broker.server.management import Settings, read_settings
from clusterbroker.broker.server.tls import BadCertificate, Chain, reload_all, shown, watch
from clusterbroker.cluster import passwords

if TYPE_CHECKING:
    from clusterbroker.broker.oauth2.tokens import Tokens

NICE: Final = 5
"""Less of a busy machine than the node gets: messages come before pages."""
BEGIN_S: Final = 10.0
"""So long the first requests wait for the node to tell what there is."""
END_S: Final = 2.0

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


class Attentive:
    """ASGI: keeps samples coming while somebody asks, and lets nobody see the replica before it shows anything."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], control: ControlClient) -> None:
        self._app = app
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await asyncio.wait_for(self._control.ready.wait(), BEGIN_S)
            except TimeoutError:
                await _not_yet(send)
                return
            await self._control.touched()
        await self._app(scope, receive, send)


async def _not_yet(send: Send) -> None:
    body = b'{"error": "unavailable", "reason": "the node is starting: it has not told anything yet"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(
    asked: argparse.Namespace,
    listening: Sequence[socket.socket],
    listening_tls: Sequence[socket.socket],
    lifeline: socket.socket,
) -> None:
    """Returns when the node is gone, or the process is told to end."""
    settings: Settings = asked.settings
    log = NodeLog(structured(asked.log_format, asked.node), asked.log_level)
    loop = asyncio.get_running_loop()
    replica = Replica(asked.node)
    control = ControlClient(asked.directory, replica, now_ms, settings.sample_s)
    tls = Chain(settings.tls) if settings.tls is not None else None
    audit = Audit(asked.node, settings.audit, log)
    app = create_app(
        replica,
        control,
        now_ms=now_ms,
        loopback_users=tuple(asked.loopback_user),
        password_cost=asked.password_cost,
        tokens=_tokens(settings, log),
        audit=audit,
        knows_proxies=settings.proxies is not None,
    )
    attentive = Attentive(app, control)
    server = TcpServer(attentive, settings.proxies, tls, listening_tls)
    beside = LocalServer(attentive)

    def orphaned() -> None:
        loop.remove_reader(lifeline.fileno())
        server.should_exit = True
        loop.call_later(END_S, os._exit, 0)

    loop.add_reader(lifeline.fileno(), orphaned)
    following = loop.create_task(control.run())
    for_operator = loop.create_task(beside.serve(sockets=[socket.socket(fileno=fd) for fd in asked.listen_local]))
    chains = [tls] if tls is not None else []
    watching = loop.create_task(watch(chains, log.emit))
    if tls is not None:
        places = [one.getsockname()[:2] for one in listening_tls]
        replica.certificates = lambda: [shown("https", host, port, tls) for host, port in places]
        control.reload = lambda: reload_all(chains, log.emit)
    _quiet_collector()
    try:
        await server.serve(sockets=list(listening))
    finally:
        watching.cancel()
        following.cancel()
        beside.should_exit = True
        await asyncio.wait((for_operator,))
        audit.close()


def _quiet_collector() -> None:
    """Libraries and routes live as long as the process, and rows are not looked at (`broker.stats.rows`): the
    collector need come less often, and requests wait for it less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _tokens(settings: Settings, log: NodeLog) -> Tokens | None:
    if settings.oauth2 is None:
        return None
    from clusterbroker.broker.oauth2.tokens import Tokens  # who takes no tokens need not have what verifies them

    return Tokens(settings.oauth2, time.time, log.emit)


def _named(node: str, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if node:
        event.setdefault("node", node)
    return event


def speak(form: str, level: str, node: str) -> None:
    """Lines on standard error as the node writes them."""
    logging.basicConfig(handlers=[Libraries(structured(form, node), "management.library")], level=logging.WARNING)
    structlog.configure(
        processors=[
            partial(_named, node if form == "json" else ""),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            structlog.processors.JSONRenderer(default=str) if form == "json" else console_renderer(False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="clusterbroker.broker.http.main", description=__doc__.partition(":")[0] if __doc__ else ""
    )
    parser.add_argument("--node", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--listen", type=int, action="append", default=[])
    parser.add_argument("--listen-tls", type=int, action="append", default=[])
    parser.add_argument("--listen-local", type=int, action="append", default=[])
    parser.add_argument("--settings", type=read_settings, default=Settings())
    parser.add_argument("--loopback-user", action="append", default=[])
    parser.add_argument("--password-cost", type=int, default=passwords.COST_DEFAULT)
    parser.add_argument("--log-format", choices=("json", "console"), default="console")
    parser.add_argument("--log-level", choices=tuple(LEVELS), default="info")
    asked = parser.parse_args(words)
    os.nice(NICE)
    speak(asked.log_format, asked.log_level, asked.node)
    try:
        return _run(asked)
    except BadCertificate as error:
        NodeLog(structured(asked.log_format, asked.node)).emit("error", "management.failed", why=str(error))
        return 1


def _run(asked: argparse.Namespace) -> int:
    plain = [socket.socket(fileno=fd) for fd in asked.listen]
    tls = [socket.socket(fileno=fd) for fd in asked.listen_tls]
    lifeline = socket.socket(fileno=asked.lifeline)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(asked, plain, tls, lifeline))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(asked, plain, tls, lifeline))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
