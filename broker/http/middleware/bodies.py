"""Bodies of requests, as they come in and for as long as they are worked with (waits).

    on their way        BODY_S for each; BODIES_BYTES_MAX of all that have not been read
    longer than SHORT   WORKED_ON_MAX at a time, until each is answered; others wait for their turn
    longer than 1 MiB   LONG_MAX at a time

A list of empty lists takes twenty times its own length of memory, so what is read is bounded as well as what arrives.
Of a long body only the fields that are asked for are read; the rest is passed over as it stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from clusterbroker.broker.management import forms
from clusterbroker.broker.management.errors import Refused

BODY_S: Final = 120.0
BODIES_BYTES_MAX: Final = 256 << 20
SHORT_BYTES: Final = 16 << 10
WORKED_ON_MAX: Final = 16
LONG_MAX: Final = 2
ANSWERED: Final = "clusterbroker.answered"
"""In a request's scope: what its end gives back."""


class Room:
    """For all bodies of one application."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._worked_on = asyncio.Semaphore(WORKED_ON_MAX)
        self._long = asyncio.Semaphore(LONG_MAX)

    def take(self, count: int) -> None:
        """For octets that came. Refused (503) when there is none: who sends many slowly is not waited for."""
        if self.taken_bytes + count > BODIES_BYTES_MAX:
            raise Refused(503, "unavailable", "too many long bodies are on their way: try again")
        self.taken_bytes += count

    def give(self, count: int) -> None:
        """The body is read, or will not be there."""
        self.taken_bytes -= count

    async def turn(self, count: int) -> Callable[[], None]:
        """Waits until a body of this length may be read; to be called when it was answered."""
        if count <= SHORT_BYTES:
            return lambda: None
        turns = self._worked_on if count <= forms.BODY_BYTES_MAX else self._long
        await turns.acquire()
        return turns.release


async def fields_of(request: Request, bytes_max: int, may_be_long: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of the body; of one that is longer than 1 MiB only those of `may_be_long`, when there are some.

    Refused: 400 when who sends it is gone, or it is no object, 408 when it takes too long, 413 when it is too long, 415
    when it is not JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > bytes_max:
        raise Refused(413, "bad_request", f"a body has {bytes_max} bytes at most")
    received = bytearray()
    room: Room = request.app.state.room
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                if len(received) + len(chunk) > bytes_max:
                    raise Refused(413, "bad_request", f"a body has {bytes_max} bytes at most")
                room.take(len(chunk))
                received += chunk
        # another site's page may POST without asking first, but not as JSON
        if (received or request.method == "POST") and kind != "application/json" and (kind or request.method == "POST"):
            raise Refused(415, "unsupported_media_type", "the body is application/json")
        request.scope[ANSWERED] = await room.turn(len(received))
        if may_be_long and len(received) > forms.BODY_BYTES_MAX:
            return forms.picked(bytes(received), may_be_long)
        return forms.parsed(bytes(received))
    except TimeoutError:
        raise Refused(408, "request_timeout", f"the body was not there within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the client went away before its body was there") from None
    finally:
        room.give(len(received))
