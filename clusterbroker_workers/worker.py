"""What a worker is to its author."""

from __future__ import annotations

from collections.abc import Awaitable

from .request import Request

Result = bytes | str | None


class Worker:
    """Base of workers: override `handle`, and `load` where a key has something to hold.

    Both may be ordinary or `async` methods. Ordinary ones run in a thread; heartbeats go on meanwhile. With a prefetch
    above 1, as many requests are handled at once.
    """

    def load(self, key: str) -> Awaitable[None] | None:  # noqa: ARG002
        """Prepare for a key, before its first request. An exception ends the process with status 70; where a worker
        serves several keys, it counts as a start of this key that failed, and the worker goes on with the others."""
        return None

    def unload(self, key: str) -> Awaitable[None] | None:  # noqa: ARG002
        """Where a worker serves several keys: this one is given back, and no request of it is at work. It may come
        again: then `load` is called again. An exception ends the process."""
        return None

    def handle(self, request: Request) -> Awaitable[Result] | Result:
        """The answer to a request: bytes, text (UTF-8), or None (empty).

        Busy, Fail and Retry say something else; any other exception is answered as `worker_error`.
        """
        raise NotImplementedError(f"{type(self).__name__}.handle")
