"""How a spare hears of its key, and a worker of several keys of these: it asks the exchange `amq.worker` (waits)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from .connecting import SignInRefused
from .environment import Environment

EXCHANGE: Final = "amq.worker"
REPLY_TO: Final = "amq.rabbitmq.reply-to"


@dataclass(frozen=True, slots=True)
class Assigned:
    """A key of a worker that serves several."""

    queue: str
    since: int
    """Another one each time that the key is assigned."""


Keys = Mapping[str, Assigned]


class Line:
    """A channel on which a worker asks; one question at a time, and what it says of keys that failed between them."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    @classmethod
    async def open(cls, connection: AbstractConnection) -> Line:
        """Raises what a connection does that is gone."""
        line = cls(await connection.channel(publisher_confirms=False))
        replies = await line._channel.get_queue(REPLY_TO, ensure=False)
        await replies.consume(line._heard, no_ack=True)
        return line

    async def _heard(self, message: AbstractIncomingMessage) -> None:
        if message.correlation_id == "key":
            self._answers.put_nowait(message.body)

    async def close(self) -> None:
        """Nothing is asked any more."""
        await self._channel.close()

    async def _say(self, word: str, body: Mapping[str, Any]) -> None:
        message = aio_pika.Message(json.dumps(body).encode(), reply_to=REPLY_TO, correlation_id=word)
        exchange = await self._channel.get_exchange(EXCHANGE, ensure=False)
        await exchange.publish(message, word, mandatory=False)

    async def key(self, environment: Environment) -> Environment | Keys:
        """The environment with the key, as long as it takes, or the first keys of several. SignInRefused: it is no
        worker that a pool has started."""
        await self._say("key", {})
        told = json.loads(await self._answers.get())
        if told.get("outcome") == "keys":
            return _keys(told)
        if told.get("outcome") != "key":
            raise SignInRefused(told.get("reason"))
        return environment.assigned(told["key"], told["queue"])

    async def keys(self, known: Keys) -> Keys:
        """The keys, as soon as they are others than it knows."""
        await self._say("key", {"known": {key: one.since for key, one in known.items()}})
        return _keys(json.loads(await self._answers.get()))

    async def failed(self, key: str, reason: str) -> None:
        """It cannot serve this one."""
        await self._say(
            "failed", {"key": key, "reason": reason.encode(errors="replace")[:1000].decode(errors="ignore") or "failed"}
        )


def _keys(told: Mapping[str, Any]) -> Keys:
    if told.get("outcome") != "keys":
        raise SignInRefused(told.get("reason"))
    return {one["key"]: Assigned(one["queue"], one["since"]) for one in told["keys"]}
