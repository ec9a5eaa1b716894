"""Requests to a broker over AMQP: a pair of links to `/management`, one request and one answer each.

async with await Management.open(connection) as management:
    await management.declare_queue("orders")
    status, body = await management.ask("GET", "/queues/orders")
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote

from clusterbroker.amqp10.client.endpoints import Receiver, Sender
from clusterbroker.amqp10.client.errors import ClientError, ConnectionLost
from clusterbroker.amqp10.client.message import NO_VALUE, Message
from clusterbroker.broker.wire.amqp10.performatives import Properties, Source, Target

if TYPE_CHECKING:
    from clusterbroker.amqp10.client.shell import ClientConnection

NODE: Final = "/management"
PAIRED: Final = {"paired": True}
TIMEOUT_S: Final = 20.0
ERRORS: Final = 400


class Answer(NamedTuple):
    """`status`: as in HTTP."""

    status: int
    body: Any


class Refused(ClientError):
    """The broker did not do it; `status` says why."""

    def __init__(self, answer: Answer, request: str) -> None:
        super().__init__(f"{request}: {answer.status}, {answer.body}")
        self.status = answer.status
        self.fault = "client" if answer.status < 500 else "peer"
        self.may_retry = answer.status >= 500


class Management:
    """Made by `open`. Questions may be asked at the same time."""

    def __init__(self, sender: Sender, receiver: Receiver) -> None:
        self._sender, self._receiver = sender, receiver
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[Answer]] = {}
        self._task = asyncio.create_task(self._read(), name="amqp10 management")

    @classmethod
    async def open(cls, connection: ClientConnection) -> Self:
        """Raises LinkDetached where the peer has no such node."""
        name = f"management-{uuid.uuid4()}"
        sender = await connection.sender(
            NODE, name=name, mode="settled", properties=PAIRED, source=Source(address=NODE)
        )
        receiver = await connection.receiver(
            NODE, name=name, mode="settled", properties=PAIRED, target=Target(address=NODE)
        )
        return cls(sender, receiver)

    async def _read(self) -> None:
        error: ClientError = ConnectionLost("the management links are closed")
        try:
            async for delivery in self._receiver:
                message = delivery.message
                waiting = self._asked.pop(str(message.properties.correlation_id), None)
                if waiting is not None and not waiting.done():
                    body = None if message.value is NO_VALUE else message.value
                    waiting.set_result(Answer(int(message.properties.subject or "0"), body))
        except ClientError as found:
            error = found
        for waiting in self._asked.values():
            waiting.set_exception(error)

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Raises ClientError; TimeoutError when no answer came, as after a loss of the connection."""
        number = str(next(self._numbers))
        properties = Properties(message_id=number, to=path, subject=method, reply_to="$me")
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = waiting
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._sender.send(Message(value=body, properties=properties), settled=True)
                answer: Answer = await waiting
                return answer
        finally:
            self._asked.pop(number, None)

    async def _done(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body)
        if answer.status >= ERRORS:
            raise Refused(answer, f"{method} {path}")
        return answer.body

    async def declare_queue(self, name: str, arguments: dict[str, Any] | None = None, **fields: Any) -> Any:
        """A durable queue, unless `durable=False`. Raises Refused."""
        body = {"durable": True, **fields, "arguments": arguments or {}}
        return await self._done("PUT", f"/queues/{quote(name, safe='')}", body)

    async def delete_queue(self, name: str) -> Any:
        """Raises Refused."""
        return await self._done("DELETE", f"/queues/{quote(name, safe='')}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._sender.close()
        await self._receiver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
