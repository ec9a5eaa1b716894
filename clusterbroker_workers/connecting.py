"""One AMQP connection out of several addresses.

An address `amqps://` has to show a certificate for its host, by the given authorities alone, else by those of the
system. A pass over all addresses in which each fails so is an error: a later one would end no better.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import ssl
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


logger = logging.getLogger("clusterbroker_workers")


REMEDY: Final = "give the authority that signed it (WORKER_AMQP_CA_PEM, or ca of Pool), and an address that it names"


class SignInRefused(Exception):
    """An address knows the user not, or not any more."""


class Untrusted(Exception):
    """No address has a certificate that can be trusted: one line."""


def trusting(pem: str = "", file: str | os.PathLike[str] = "") -> ssl.SSLContext | None:
    """By these authorities alone; None: those of the system. Raises ValueError."""
    if not pem and not file:
        return None
    try:
        return ssl.create_default_context(cadata=pem or None, cafile=file or None)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        why = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
        raise ValueError(f"{why}: give PEM with the authority that signed the broker's certificate") from error


def addresses(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses in the order in which they are tried: one text with commas, or several."""
    found = tuple(url.strip() for url in (urls.split(",") if isinstance(urls, str) else urls) if url.strip())
    if not found:
        raise ValueError("no address: give one such as amqp://guest:guest@localhost/")
    return found


class Dialler:
    """Connects to the first address that answers, beginning with the one after the last."""

    def __init__(
        self, urls: Sequence[str], properties: dict[str, Any], authorities: ssl.SSLContext | None = None
    ) -> None:
        """`authorities`: as `trusting` makes it."""
        self._urls = urls
        self._authorities = authorities
        self._properties = properties
        self._next = 0
        self._failures = 0

    async def dial(self) -> AbstractConnection:
        """A connection, after as many tries as it takes. SignInRefused when an address refuses the user, Untrusted when
        no certificate of any is trusted."""
        while True:
            failed: dict[str, str] = {}
            trusts_none = True
            for _ in self._urls:
                url = self._urls[self._next % len(self._urls)]
                self._next += 1
                try:
                    connection = await aio_pika.connect(
                        url,
                        timeout=DIAL_TIMEOUT_S,
                        client_properties=dict(self._properties),
                        ssl_context=self._authorities if url.startswith("amqps:") else None,
                    )
                except REFUSED as error:
                    raise SignInRefused(str(error)) from error
                except (TimeoutError, OSError, AMQPException) as error:
                    untrusted = _untrusted(error)
                    trusts_none &= bool(untrusted)
                    failed[_where(url)] = untrusted or str(error) or type(error).__name__
                    continue
                self._failures = 0
                self._next -= 1  # while it lives, the next try is this one's
                return connection
            why = "; ".join(f"{where}: {each}" for where, each in failed.items())
            if trusts_none:
                raise Untrusted(f"no certificate is trusted: {why}: {REMEDY}")
            if not self._failures:
                logger.warning("no connection: %s", why)  # once, though it is tried again and again
            wait_s = min(BACKOFF_S * 2**self._failures, BACKOFF_MAX_S)
            self._failures = min(self._failures + 1, 10)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311

    def leave(self) -> None:
        """The connection was lost: begin with the next address."""
        self._next += 1


def _untrusted(error: BaseException | None) -> str:
    """What is wrong with a certificate; empty: the error is another one."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return ""


def _where(url: str) -> str:
    """HOST:PORT, without its credential."""
    return url.rpartition("@")[2].rpartition("//")[2].partition("/")[0]
