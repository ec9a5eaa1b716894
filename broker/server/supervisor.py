"""Messages to the supervisor of the node: systemd, or another with its protocol (sd_notify(3); waits).

A datagram of lines `NAME=value` goes to the socket of NOTIFY_SOCKET: READY=1 when clients are accepted, STATUS for
people, STOPPING=1. With WATCHDOG_USEC set the loop sends WATCHDOG=1 twice as often as required; a supervisor without
it for that time takes the node for stuck, and restarts it.

The socket is tried each time and never waited for: a supervisor that does not listen costs the node nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping


class Supervisor:
    """Without NOTIFY_SOCKET in the environment nothing is sent."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        where = environment.get("NOTIFY_SOCKET", "")
        self._where = "\0" + where[1:] if where.startswith("@") else where  # "@": Linux's sockets without a file
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if where else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self._pulse_s = 0.0
        meant = environment.get("WATCHDOG_PID", "")
        asked = environment.get("WATCHDOG_USEC", "")
        if asked.isdecimal() and meant in ("", str(pid or os.getpid())):
            self._pulse_s = int(asked) / 2e6

    def notify(self, *lines: str) -> bool:
        """Whether the supervisor took it."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._where)
        except OSError:
            return False
        return True

    def pulse(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, as long as this loop turns."""
        if self._pulse_s > 0 and self._socket is not None:
            self.notify("WATCHDOG=1")  # one that is not taken costs nothing: the next one comes in time
            loop.call_later(self._pulse_s, self.pulse, loop)
