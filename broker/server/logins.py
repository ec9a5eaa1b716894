"""Sign-in over AMQP: passwords and tokens verified for the node's core, guesses throttled (waits).

    token       checked at once by its signature, which cannot be guessed
    password    throttled  refused after the time of a verification, without one (`broker.server.credentials`)
                good       a hash of another system is replaced
                wrong      counted against the user at this address, and against the address

Both come as the password of PLAIN or AMQPLAIN. Where tokens are accepted, a password in their form is treated as one
and nothing else: three parts of base64 with dots between them, of which the first is a JSON object. The node's work as
a user for its own management process is not throttled: it has no address, and could give itself any password.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.node.effects import GOOD, WRONG, Check, Verdict
from clusterbroker.broker.server.credentials import Credentials, Order, Rehashing, Throttle, network

if TYPE_CHECKING:
    from clusterbroker.broker.server.options import ServerOptions

HELD_UP: Final = Verdict("too many failed logins of this user, or from this address, within a minute")
TOKEN: Final = re.compile(rb"e[wy][\w-]{8,}\.[\w-]+\.[\w-]*", re.ASCII)
"""`{"`, or a brace and a blank, is what a JSON object begins with, in base64."""


class Logins:
    """Belongs to one loop; `close` in the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_answer: Callable[[], None],
        order: Order,
        options: ServerOptions,
        emit: Callable[..., None],
    ) -> None:
        """`on_answer()` is called after each answer; `order`: for new hashes; `emit`: as `NodeLog.emit`."""
        self.credentials = Credentials(loop, on_answer)
        self._loop = loop
        self._on_answer = on_answer
        self._throttle = Throttle()
        self._rehashing = Rehashing(order, self.credentials.remember, options.password_cost)
        self._leeway_s = 0
        self._tokens = None
        self._asking: set[asyncio.Task[None]] = set()
        if options.oauth2 is not None:
            # a node without tokens needs no library for them
            from clusterbroker.broker.oauth2.tokens import Tokens

            self._tokens = Tokens(options.oauth2, time.time, emit)
            self._leeway_s = options.oauth2.leeway_s

    def answer(self, checks: Iterable[Check]) -> None:
        """Each check's `then` is called on the loop."""
        for check in checks:
            if self._tokens is not None and TOKEN.fullmatch(check.secret):
                task = self._loop.create_task(self._token(check))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            else:
                self._password(check)

    # -- passwords --------------------------------------------------------------------------------------------

    def _password(self, check: Check) -> None:
        if self._held_up(check):
            self._loop.call_later(self.credentials.took_s, self._answer, check, HELD_UP)
            return
        stored, algorithm = ("", "") if check.user is None else (check.user.password_hash, check.user.hash_algorithm)
        self.credentials.check(
            check.name,
            stored,
            algorithm,
            check.secret,
            partial(self._verified, check),
            network(check.address),
            lambda: check.wanted() and not self._held_up(check),
        )

    def _held_up(self, check: Check) -> bool:
        return bool(check.address) and self._throttle.waits_ms(check.name, check.address, self._now_ms()) > 0

    def _verified(self, check: Check, ok: bool | None) -> None:
        if ok:
            self._throttle.succeeded(check.name, check.address)
            if check.user is not None:
                self._rehashing.offer(check.user, check.secret)
            check.then(GOOD)
        elif ok is None:
            check.then(HELD_UP)  # or its client is gone, and hears nothing
        else:
            if check.address:
                self._throttle.failed(check.name, check.address, self._now_ms())
            check.then(WRONG)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # -- tokens -----------------------------------------------------------------------------------------------

    async def _token(self, check: Check) -> None:
        from clusterbroker.broker.oauth2.verifier import BadToken

        assert self._tokens is not None, "they are taken"
        try:
            token = await self._tokens.token(check.secret)
            self._answer(check, Verdict(token=token, until_ms=int((token.expires_s + self._leeway_s) * 1000)))
        except BadToken as bad:
            self._answer(check, Verdict(f"token: {bad}"))

    def _answer(self, check: Check, verdict: Verdict) -> None:
        check.then(verdict)
        self._on_answer()

    def close(self) -> None:
        for task in tuple(self._asking):
            task.cancel()
        self._rehashing.close()
        self.credentials.close()


__all__ = ["HELD_UP", "Logins"]
