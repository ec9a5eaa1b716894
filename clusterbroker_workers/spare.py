"""How a spare hears of its key: it asks the exchange `amq.worker`, and the answer comes when it has one (waits)."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from .connecting import SignInRefused
from .environment import Environment

EXCHANGE: Final = "amq.worker"
REPLY_TO: Final = "amq.rabbitmq.reply-to"


async def assigned(connection: AbstractConnection, environment: Environment) -> Environment:
    """The environment with the key, as long as it takes. SignInRefused: it is no worker that a pool has started."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def heard(message: AbstractIncomingMessage) -> None:
        if not answer.done():
            answer.set_result(message.body)

    async with await connection.channel(publisher_confirms=False) as channel:
        replies = await channel.get_queue(REPLY_TO, ensure=False)
        await replies.consume(heard, no_ack=True)
        exchange = await channel.get_exchange(EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(b"{}", reply_to=REPLY_TO), "key", mandatory=False)
        told = json.loads(await answer)
    if told.get("outcome") != "key":
        raise SignInRefused(told.get("reason"))
    return environment.assigned(told["key"], told["queue"])
