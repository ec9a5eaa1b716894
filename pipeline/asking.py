"""Questions to the broker itself, `amq.txn` and its like: one message there, one answer back, as JSON (waits).

A question is repeated over all endpoints until it is answered, for as long as a confirm may take; those who ask know
that it may have been heard more than once. A node that is silent has its share of that time, lest nobody else be asked.
A `Line` keeps its connection for the next question.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.pipeline import wire
from clusterbroker.pipeline.bulk import any_endpoint
from clusterbroker.pipeline.connection import CHANNEL, Connection, ConnectionLost, Refused
from clusterbroker.pipeline.options import Options

REPLY_TO: Final = "amq.rabbitmq.reply-to"
REPLIES: Final = "replies"
"""The tag of the consumer that hears them."""
UNAVAILABLE: Final = 503
PAUSE_S: Final = 0.1
SHARES_MAX: Final = 3
_JSON_WITH_REPLY: Final = 0x8000 | 0x0200
"""Flags of the properties content_type and reply_to."""


class Line:
    """Connected from its first question on."""

    def __init__(self, options: Options, name: str) -> None:
        self._options = options
        self._name = name
        self._connection: Connection | None = None
        self._place = 0

    def ask(
        self, exchange: str, key: str, body: Mapping[str, Any], about: str, held_s: float = 0.0,
        within_s: float = float("inf"),
    ) -> dict[str, Any]:  # fmt: skip
        """The first answer that is one, which the broker may hold back for `held_s` on top of the time of a confirm,
        or of `within_s` if that is shorter. Raises ConnectionLost, whose text says `about` whom it is, and Refused."""
        patience_s = min(self._options.confirm_timeout_ms / 1000, within_s)
        deadline_s = time.monotonic() + patience_s
        share_s = patience_s / min(len(self._options.endpoints), SHARES_MAX)
        lost = ConnectionLost("no time to ask")
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                connection = self._connected(share_s)
                answer = ask(connection, exchange, key, body, min(left_s, share_s) + held_s)
            except ConnectionLost as error:
                lost = error
            except BaseException:
                self.close()
                raise
            else:
                if answer.get("code") != UNAVAILABLE:
                    return answer
                lost = ConnectionLost(f"{connection.endpoint}: {answer.get('reason')}")
                time.sleep(PAUSE_S)
            self._abandon()
            self._place += 1
        raise ConnectionLost(f"{exchange} '{key}' of {about} was not answered: {lost}")

    def _connected(self, patience_s: float) -> Connection:
        if self._connection is not None and not self._connection.is_usable():
            self._abandon()
        if self._connection is None:
            rounds = self._options.reconnects_max
            self._connection, self._place = any_endpoint(self._options, self._name, self._place, rounds)
            hear_replies(self._connection, patience_s)
        return self._connection

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def close(self) -> None:
        """With a good-bye."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def hear_replies(connection: Connection, timeout_s: float) -> None:
    """Before the first question over a connection."""
    connection.call(
        "basic.consume", 0, REPLY_TO, REPLIES, False, True, False, False, {},
        answer="basic.consume-ok", timeout_s=timeout_s,
    )  # fmt: skip


def ask(connection: Connection, exchange: str, key: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """One question, over a connection that hears replies and nothing else. Raises ConnectionLost, Refused."""
    deadline_s = time.monotonic() + timeout_s
    properties = wire.properties(_JSON_WITH_REPLY, "application/json", REPLY_TO)
    raw = json.dumps(body).encode()
    connection.send(
        wire.method("basic.publish", CHANNEL, 0, exchange, key, True, False)
        + wire.content(CHANNEL, properties, raw, connection.frame_bytes_max)
    )
    answer: dict[str, Any] | None = None
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            said = connection.receive(left_s)
        except ConnectionLost:
            if answer is None:
                raise
            return answer
        for heard in said:
            if heard.name == "basic.deliver":
                answer = json.loads(heard.body)
            elif heard.name == "basic.return":
                raise Refused(heard.fields[0], f"this broker does not know {exchange} '{key}'")
            elif heard.name in ("basic.ack", "basic.nack"):  # they come after the answer
                if answer is None:
                    raise ConnectionLost(f"{connection.endpoint}: refused without an answer")
                return answer
    raise ConnectionLost(f"{connection.endpoint}: no answer in time")
