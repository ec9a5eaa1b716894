"""Tokens of one authority: its keys fetched and kept fresh, and what was verified remembered (waits).

Keys come from a file or from a URL, in a thread. They are fetched again when they are KEYS_S old, and when a token
names a key that is not among them, yet never sooner than AGAIN_S after the last time: who makes up key ids makes nobody
fetch. When they cannot be fetched those that there are stay for OLD_KEYS_S, and it is said; then no token is good.

The URL is https, or http to this machine; redirections are not followed, the answer has KEY_SET_BYTES_MAX at most.

A verified token is remembered by its digest for REMEMBERED_S, never beyond its end: a client that asks every second
costs one signature a minute, and a key that was taken back is out of use within KEYS_S + REMEMBERED_S.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from .options import OAuth2Options
from .verifier import BadKeySet, BadToken, Key, Token, UnknownKey, key_set, verified

KEYS_S: Final = 600.0
OLD_KEYS_S: Final = 86_400.0
AGAIN_S: Final = 30.0
FETCH_S: Final = 5.0
"""Who signs in waits so long for keys at most, and each read of them does; a fetch that goes on is the only one."""
KEY_SET_BYTES_MAX: Final = 256 << 10
REMEMBERED_S: Final = 60.0
REMEMBERED_MAX: Final = 2_000

Say = Callable[..., None]
"""`NodeLog.emit`: level, event, facts."""


class Tokens:
    """Belongs to one loop."""

    def __init__(self, options: OAuth2Options, now_s: Callable[[], float], say: Say) -> None:
        """`now_s`: the wall clock, s since 1970."""
        self._options = options
        self._now_s = now_s
        self._say = say
        self._keys: tuple[Key, ...] = ()
        self._fetched_s = float("-inf")  # when the keys came
        self._tried_s = float("-inf")
        self._wrong = ""
        self._fetching = asyncio.Lock()
        self._fetch: asyncio.Task[bytes] | None = None  # it may outlive the patience of those who wait for it
        self._known: OrderedDict[bytes, tuple[Token, float]] = OrderedDict()

    async def token(self, octets: bytes) -> Token:
        """What a good token says. Raises BadToken."""
        digest, now_s = hashlib.sha256(octets).digest(), self._now_s()
        known = self._known.get(digest)
        if known is not None and now_s < known[1]:
            return known[0]
        self._known.pop(digest, None)
        await self._fresh(KEYS_S)
        try:
            token = verified(octets, self._keys, self._options)
        except UnknownKey:
            if not await self._fresh(AGAIN_S):
                raise
            token = verified(octets, self._keys, self._options)
        until_s = min(now_s + REMEMBERED_S, token.expires_s)
        self._known[digest] = (token, until_s)
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return token

    async def _fresh(self, age_s: float) -> bool:
        """Fetches keys that are older than this; whether there are other ones now."""
        async with self._fetching:
            now_s = self._now_s()
            if now_s - self._fetched_s < age_s or now_s - self._tried_s < AGAIN_S:
                return False
            self._tried_s = now_s
            if self._fetch is None:
                self._fetch = asyncio.create_task(asyncio.to_thread(fetched, self._options))
            await asyncio.wait((self._fetch,), timeout=FETCH_S)
            if not self._fetch.done():  # somebody else's turn, 30 s from now, takes what it brings
                self._cannot(f"no answer within {FETCH_S:g} s", now_s)
                return False
            ended, self._fetch = self._fetch, None
            try:
                keys = key_set(ended.result())
            except (OSError, ValueError) as error:  # BadKeySet is one of these
                self._cannot(str(error) or type(error).__name__, now_s)
                return False
            changed, self._keys, self._fetched_s = True, keys, now_s
            if self._wrong:
                self._wrong = ""
                self._say("info", "oauth2.keys", keys=len(keys), source=source(self._options))
            return changed

    def _cannot(self, why: str, now_s: float) -> None:
        if self._keys and now_s - self._fetched_s > OLD_KEYS_S:
            self._keys = ()
            self._known.clear()
        if why != self._wrong:
            self._wrong = why
            self._say("error", "oauth2.no_keys", why=why, source=source(self._options), old_keys=len(self._keys))


def source(options: OAuth2Options) -> str:
    """Where the keys come from, for people."""
    return options.keys_url or str(options.keys_file)


def fetched(options: OAuth2Options) -> bytes:
    """The key set as it stands at its source. Blocks. Raises OSError, ValueError."""
    if options.keys_file is not None:
        with open(options.keys_file, "rb") as file:
            return _bounded(file)
    check_url(options.keys_url)
    authorities = None if options.keys_authorities is None else str(options.keys_authorities)
    context = ssl.create_default_context(cafile=authorities)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirection()
    )
    request = urllib.request.Request(options.keys_url, headers={"accept": "application/json"})  # noqa: S310 - checked
    with opener.open(request, timeout=FETCH_S) as answer:
        return _bounded(answer)


def check_url(url: str) -> None:
    """Raises ValueError unless keys may be fetched there."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname and _here(parts.hostname):
        return
    raise ValueError(f"'{url}' is no address of keys: https://HOST/PATH, or http to this machine alone")


def _here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bounded(file: Any) -> bytes:
    octets = file.read(KEY_SET_BYTES_MAX + 1)
    if len(octets) > KEY_SET_BYTES_MAX:
        raise BadKeySet(f"it has more than {KEY_SET_BYTES_MAX >> 10} KiB")
    assert isinstance(octets, bytes), "opened as octets"
    return octets


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        """Nowhere else: an error is raised."""
        return


__all__ = ["BadToken", "Tokens", "check_url", "fetched", "source"]
