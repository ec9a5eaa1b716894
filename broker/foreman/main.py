"""`python -m clusterbroker.broker.foreman.main`: the foreman process (waits).

Its node starts it (`broker.server.foreman_process`), and nobody else does:

    --node NAME         whose it is: the place
    --cluster ID        label of all its workers
    --directory DIR     for records, in the node's data directory
    --config FILE       whose sections [pools.NAME] are the templates: read here, so that a file which others may write
                        keeps the foreman from starting, and not the node
    --lifeline FD       the socket to the node's process (`broker.foreman.frames`): when that is over, workers end as
                        their templates say, and then this process
    --log-format json|console, --log-level LEVEL      as the node has them
    --log-format library          for an embedded broker (`broker.embedded_pools`), as all that follow: lines of
                        `logging`, which needs no extra
    --authorities FILE  PEM: workers trust the brokers' certificates by them
    --grace-s N         workers have so long at most to end after the node
    --temporary DIR     removed when all is over
    --own-output        workers write where this process does

A lock on the directory keeps the next foreman waiting while this one winds up.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import math
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from clusterbroker.broker.foreman import frames
from clusterbroker.broker.foreman.drivers.port import Place
from clusterbroker.broker.foreman.foreman import Foreman
from clusterbroker.broker.foreman.templates import BadTemplate, read_templates
from clusterbroker.broker.server.log import LEVELS, NodeLog, library, structured

NICE: Final = 5
READ_BYTES: Final = 1 << 16
UNREAD_BYTES_MAX: Final = 8 << 20
"""Told, and not read by the node: it hangs, and this process begins anew with what is of now."""
LOCK: Final = "lock"
CONFIG_EXIT: Final = 2
LIBRARY: Final = "library"


class Lifeline:
    """Frames over the socket pair; `over` when the node's process is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, own: socket.socket) -> None:
        own.setblocking(False)
        self.over = asyncio.Event()
        self._loop = loop
        self._socket = own
        self._frames = frames.Frames(frames.ToForeman)
        self._unsent = bytearray()

    def begin(self, hear: Any) -> None:
        self._loop.add_reader(self._socket.fileno(), self._readable, hear)

    def _readable(self, hear: Any) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        for frame in self._frames.feed(data):
            hear(frame)

    def _end(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self.over.set()

    def tell(self, frame: frames.Frame) -> None:
        """After the node's end: nothing."""
        if self.over.is_set():
            return
        if not self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._unsent += frames.encode(frame)
        if len(self._unsent) > UNREAD_BYTES_MAX:
            os._exit(1)

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())


async def serve(asked: argparse.Namespace, log: NodeLog) -> int:
    """Returns when the node is over and the workers have ended that end with it. The exit code."""
    loop = asyncio.get_running_loop()
    lifeline = Lifeline(loop, socket.socket(fileno=asked.lifeline))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifeline.over.set)
    directory: Path = asked.directory
    with _lock(directory) as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)  # one that winds up still has it
        try:
            templates = read_templates(asked.config)
        except BadTemplate as error:
            log.emit("error", "foreman.failed", why=str(error))
            return CONFIG_EXIT
        place = Place(asked.cluster, asked.node, dict(os.environ), own_output=asked.own_output)
        foreman = Foreman(
            place, directory, templates, str(asked.config), lifeline.tell, log.emit,
            grace_max_s=asked.grace_s, authorities_file=asked.authorities,
        )  # fmt: skip
        lifeline.begin(foreman.hear)
        rounds = loop.create_task(foreman.run())
        ending = loop.create_task(lifeline.over.wait())
        await asyncio.wait((rounds, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if rounds.done():
            rounds.result()  # a mistake of ours: the node starts another one, workers go on
        rounds.cancel()
        await asyncio.wait((rounds,))
        await foreman.wind_up()
        await foreman.close()
        if asked.temporary is not None:
            shutil.rmtree(asked.temporary, ignore_errors=True)
    return 0


def _lock(directory: Path) -> IO[str]:
    """Of a directory for this user alone. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w")


def main(words: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="clusterbroker.broker.foreman.main")
    parser.add_argument("--node", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--log-format", choices=("json", "console", LIBRARY), default="console")
    parser.add_argument("--log-level", choices=tuple(LEVELS), default="info")
    parser.add_argument("--authorities", type=Path)
    parser.add_argument("--grace-s", type=float, default=math.inf)
    parser.add_argument("--temporary", type=Path)
    parser.add_argument("--own-output", action="store_true")
    asked = parser.parse_args(words)
    if asked.log_format == LIBRARY:
        logging.basicConfig(format=f"{asked.node}: %(message)s", level=LEVELS[asked.log_level])
    sink = library() if asked.log_format == LIBRARY else structured(asked.log_format, asked.node)
    log = NodeLog(sink, asked.log_level)
    return asyncio.run(serve(asked, log))


if __name__ == "__main__":
    sys.exit(main())
