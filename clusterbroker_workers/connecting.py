"""One AMQP connection out of several addresses."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any, Final

import aio_pika
import pamqp.constants
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPException, ChannelInvalidStateError

for _domain in ("exchange-name", "queue-name"):
    # pamqp refuses names beyond letters, digits and some marks; brokers take them, and names of keys have `%` and `~`
    pamqp.constants.DOMAIN_REGEX[_domain] = re.compile(".*", re.DOTALL)

DIAL_TIMEOUT_S: Final = 10.0
BACKOFF_S: Final = 0.2
BACKOFF_MAX_S: Final = 5.0
REFUSED: Final = (aio_pika.exceptions.AuthenticationError, aio_pika.exceptions.ProbableAuthenticationError)
GONE: Final = (AMQPException, ChannelInvalidStateError, ConnectionError, asyncio.InvalidStateError)
"""Errors of a connection or channel that is not there any more, or is being closed."""


class SignInRefused(Exception):
    """An address knows the user not, or not any more."""


def addresses(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses in the order in which they are tried: one text with commas, or several."""
    found = tuple(url.strip() for url in (urls.split(",") if isinstance(urls, str) else urls) if url.strip())
    if not found:
        raise ValueError("no address: give one such as amqp://guest:guest@localhost/")
    return found


class Dialler:
    """Connects to the first address that answers, beginning with the one after the last."""

    def __init__(self, urls: Sequence[str], properties: dict[str, Any]) -> None:
        self._urls = urls
        self._properties = properties
        self._next = 0
        self._failures = 0

    async def dial(self) -> AbstractConnection:
        """A connection, after as many tries as it takes. SignInRefused when an address refuses the user."""
        while True:
            for _ in self._urls:
                url = self._urls[self._next % len(self._urls)]
                self._next += 1
                try:
                    connection = await aio_pika.connect(
                        url, timeout=DIAL_TIMEOUT_S, client_properties=dict(self._properties)
                    )
                except REFUSED as error:
                    raise SignInRefused(str(error)) from error
                except (TimeoutError, OSError, AMQPException):
                    continue
                self._failures = 0
                self._next -= 1  # while it lives, the next try is this one's
                return connection
            wait_s = min(BACKOFF_S * 2**self._failures, BACKOFF_MAX_S)
            self._failures = min(self._failures + 1, 10)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311

    def leave(self) -> None:
        """The connection was lost: begin with the next address."""
        self._next += 1
