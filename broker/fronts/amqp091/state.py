"""The states of a connection; connection.py has their order."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    HEADER = 0
    START = 1
    SECURE = 2
    CHECKING = 3
    TUNE = 4
    VHOST = 5
    OPEN = 6
    CLOSING = 7
    CLOSED = 8
