"""Callers of a pool (waits).

A Pool has one connection, in a thread with a loop of its own, and on it one consumer of direct reply-to for all calls.
An answer finds its call by correlation id; a second answer, or one that comes too late, finds none and is dropped.

    call: connected? --> publish, confirmed --> answer --> ok: Answer; else WorkerFailed, or Unserved (broker's word)
              |              |nack, returned: Unserved
              |              +--connection lost--> idempotent: from the beginning, in the time that is left; else Unsure
              +--time is over, here or there: CallTimeout
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError
from aiormq.exceptions import ChannelAccessRefused

from . import headers as h
from . import names
from .connecting import GONE, Dialler, SignInRefused, Untrusted, addresses, trusting
from .errors import UNSERVED, CallTimeout, Unserved, Unsure, WorkerFailed

T = TypeVar("T")
REPLIES: Final = "amq.rabbitmq.reply-to"
CLOSE_TIMEOUT_S: Final = 5.0
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer with the status `ok`."""

    body: bytes
    headers: Mapping[str, Any]
    correlation_id: str

    @property
    def worker(self) -> str:
        """Its worker's id; empty: it does not say."""
        return h.text(self.headers, h.WORKER) or ""


@dataclass(frozen=True, slots=True)
class _Question:
    key: str
    body: bytes
    timeout_s: float
    path: str | None
    headers: Mapping[str, Any]
    after_s: float
    content_type: str | None
    priority: int | None
    correlation_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def message(self, reply_to: str | None, left_s: float, after_s: float = 0.0) -> aio_pika.Message:
        """The request, with the time that is left when it begins, in `after_s`, as its expiration."""
        headers: dict[str, Any] = {h.TRACE: h.new_trace(), **self.headers}
        if self.path is not None:
            headers[h.PATH] = self.path
        headers[h.DEADLINE] = round((time.time() + after_s + left_s) * 1_000)
        if after_s > 0:
            headers[h.DELAY] = max(1, round(after_s * 1_000))
        return aio_pika.Message(
            self.body,
            headers=headers,
            correlation_id=self.correlation_id,
            message_id=uuid.uuid4().hex,
            reply_to=reply_to,
            content_type=self.content_type,
            priority=self.priority,
            expiration=datetime.timedelta(milliseconds=max(1, round(left_s * 1_000))),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )


class _Lost(Exception):
    """The connection is gone, and with it the answers that were to come over it."""


class _Line:
    """One connection: a channel that publishes and hears answers, and the calls that wait on it."""

    def __init__(self, connection: AbstractConnection) -> None:
        self.connection = connection
        self.waiting: dict[str, asyncio.Future[AbstractIncomingMessage]] = {}
        self.dropped = 0
        """Answers that nobody waits for."""
        self.lost = False
        self._channel: AbstractChannel

    async def open(self, pool: str) -> None:
        """Raises Unserved("no_pool")."""
        self.connection.close_callbacks.add(lambda *_: self._lose())
        trial = await self.connection.channel()
        try:
            await trial.get_exchange(names.requests_exchange(pool), ensure=True)
            await trial.close()
        except ChannelNotFoundEntity as error:
            raise Unserved("no_pool", f"there is no pool {pool!r} in this vhost") from error
        self._channel = await self.connection.channel(publisher_confirms=True, on_return_raises=True)
        self._channel.close_callbacks.add(lambda *_: self._lose())
        replies = await self._channel.get_queue(REPLIES, ensure=False)
        await replies.consume(self._answered, no_ack=True)

    async def _answered(self, message: AbstractIncomingMessage) -> None:
        future = self.waiting.pop(message.correlation_id or "", None)
        if future is None or future.done():
            self.dropped += 1
        else:
            future.set_result(message)

    def _lose(self) -> None:
        self.lost = True
        waiting, self.waiting = self.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_Lost())

    async def publish(self, exchange: str, key: str, message: aio_pika.Message) -> None:
        """Published and confirmed. Raises Unserved, PermissionError, _Lost."""
        try:
            target: AbstractExchange = await self._channel.get_exchange(exchange, ensure=False)
            await target.publish(message, key, mandatory=True)
        except PublishError as error:
            raise Unserved("unroutable", "the exchange has no queue for it") from error
        except DeliveryError as error:
            raise Unserved("refused", "the broker did not take it: its queue is full, or an alarm is on") from error
        except GONE as error:
            if isinstance(error, ChannelAccessRefused) and f"'{exchange}'" in str(error):  # not for another call's sake
                raise PermissionError(f"the broker refuses the request: {error}") from error
            raise _Lost from error


class Pool:
    """A pool, as its callers see it. Use it from any thread or loop; make one for a process.

    `url`: an address, several with commas, or a sequence of them; the next one is taken when one fails.
    `name`: of the pool. `ca`: PEM file with the authorities by which certificates of `amqps` addresses are trusted, and
    no others; without it those of the system. Nothing is connected before the first call. Close it, or use it with
    `with`.
    """

    def __init__(self, url: str | Sequence[str], name: str, *, ca: str | os.PathLike[str] = "") -> None:
        """Raises ValueError for what is no address, and for a `ca` that cannot be used."""
        self.name = name
        try:
            authorities = trusting(file=ca)
        except ValueError as error:
            raise ValueError(f"ca {ca}: {error}") from error
        self._dialler = Dialler(addresses(url), {"connection_name": f"caller of {name}"}, authorities)
        self._start = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening: asyncio.Task[_Line] | None = None
        self._line: _Line | None = None
        self._closed = False

    # ---- calls ----

    def call(
        self,
        key: str,
        body: bytes | str = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        path: str | None = None,
        headers: Mapping[str, Any] | None = None,
        idempotent: bool = False,
        after_s: float = 0.0,
        content_type: str | None = None,
        priority: int | None = None,
        sticky: Answer | str | None = None,
    ) -> Answer:
        """Ask a worker of the key, and wait for its answer.

        timeout_s    the request's `expiration` as well: no worker begins it later
        path         header `x-rpc-path`
        idempotent   repeat it when the connection is lost before an answer; else Unsure
        after_s      begin so much later; the timeout counts from then
        sticky       an answer of before, or a worker's id: that worker is to do it, if it is there and has room within
                     a second; else any worker of the key

        Raises Unserved, WorkerFailed, CallTimeout, Unsure; PermissionError, and ConnectionError where no certificate is
        trusted. Not from a running loop: there `call_async`.
        """
        question = _question(key, body, timeout_s, path, headers, after_s, content_type, priority, sticky)
        return self._submit(self._ask(question, idempotent)).result()

    async def call_async(
        self,
        key: str,
        body: bytes | str = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        path: str | None = None,
        headers: Mapping[str, Any] | None = None,
        idempotent: bool = False,
        after_s: float = 0.0,
        content_type: str | None = None,
        priority: int | None = None,
        sticky: Answer | str | None = None,
    ) -> Answer:
        """`call`, awaited. Cancelling gives the answer up; a worker may do the request all the same."""
        question = _question(key, body, timeout_s, path, headers, after_s, content_type, priority, sticky)
        return await asyncio.wrap_future(self._submit(self._ask(question, idempotent)))

    def cast(
        self,
        key: str,
        body: bytes | str = b"",
        *,
        timeout_s: float = TIMEOUT_S,
        path: str | None = None,
        headers: Mapping[str, Any] | None = None,
        after_s: float = 0.0,
        content_type: str | None = None,
        priority: int | None = None,
        sticky: Answer | str | None = None,
    ) -> None:
        """A request without an answer; returns when it is confirmed.

        `timeout_s` is for both: to be confirmed, and to be begun by a worker. Raises Unserved, CallTimeout, Unsure.
        """
        question = _question(key, body, timeout_s, path, headers, after_s, content_type, priority, sticky)
        self._submit(self._tell(question)).result()

    def map(
        self,
        keys: Iterable[str],
        body: bytes | str | Callable[[str], bytes | str] = b"",
        *,
        at_once: int = 16,
        timeout_s: float = TIMEOUT_S,
        path: str | None = None,
        headers: Mapping[str, Any] | None = None,
        idempotent: bool = False,
    ) -> Iterator[Answer]:
        """Calls of many keys, `at_once` of them under way; answers in the order of the keys.

        `body` is the same for all, or made from the key. Raises what a call raises, at its turn; calls that are under
        way then are given up.
        """
        if at_once < 1:
            raise ValueError("at_once of map is at least 1")
        under_way: deque[concurrent.futures.Future[Answer]] = deque()
        try:
            for key in keys:
                content = body(key) if callable(body) else body
                question = _question(key, content, timeout_s, path, headers, 0.0, None, None)
                under_way.append(self._submit(self._ask(question, idempotent)))
                if len(under_way) >= at_once:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    # ---- on the loop ----

    async def _ask(self, question: _Question, idempotent: bool) -> Answer:
        loop = asyncio.get_running_loop()
        begin_s = loop.time() + question.after_s
        end_s = begin_s + question.timeout_s
        while True:
            line = await self._connected(end_s)
            future: asyncio.Future[AbstractIncomingMessage] = loop.create_future()
            line.waiting[question.correlation_id] = future
            try:
                async with asyncio.timeout_at(end_s):
                    await self._publish(line, question, REPLIES, begin_s)
                    return _answer(await future)
            except TimeoutError as error:
                raise CallTimeout(f"no answer within {question.timeout_s:g} s") from error
            except _Lost as error:
                if not idempotent:
                    raise Unsure("the connection was lost before the answer came") from error
            finally:
                line.waiting.pop(question.correlation_id, None)
                if future.done() and not future.cancelled():
                    future.exception()  # it was lost as well, and nobody asks it any more

    async def _tell(self, question: _Question) -> None:
        now_s = asyncio.get_running_loop().time()
        begin_s, end_s = now_s + question.after_s, now_s + question.timeout_s
        line = await self._connected(end_s)
        try:
            async with asyncio.timeout_at(end_s):
                await self._publish(line, question, None, begin_s)
        except TimeoutError as error:
            raise CallTimeout(f"not confirmed within {question.timeout_s:g} s") from error
        except _Lost as error:
            raise Unsure("the connection was lost before the request was confirmed") from error

    async def _publish(self, line: _Line, question: _Question, reply_to: str | None, begin_s: float) -> None:
        """It begins at `begin_s` of the loop's time, however often and late it is published, and not after its time."""
        now_s = asyncio.get_running_loop().time()
        after_s, left_s = max(0.0, begin_s - now_s), begin_s + question.timeout_s - max(now_s, begin_s)
        exchange = names.delayed_exchange(self.name) if after_s > 0 else names.requests_exchange(self.name)
        await line.publish(exchange, question.key, question.message(reply_to, left_s, after_s))

    async def _connected(self, end_s: float) -> _Line:
        """The line, or a new one; all calls wait for the same."""
        if self._line is not None and not self._line.lost:
            return self._line
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        try:
            async with asyncio.timeout_at(end_s):
                return await asyncio.shield(self._opening)
        except TimeoutError as error:
            raise CallTimeout("no connection to the broker in time") from error

    def _opened(self, task: asyncio.Task[_Line]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._line = task.result()

    async def _open(self) -> _Line:
        if self._line is not None:
            self._dialler.leave()
            with contextlib.suppress(Exception):
                await self._line.connection.close()
            self._line = None
        while True:
            try:
                connection = await self._dialler.dial()
            except SignInRefused as error:
                raise PermissionError(f"the broker refuses the user: {error}") from error
            except Untrusted as error:
                raise ConnectionError(str(error)) from error
            line = _Line(connection)
            try:
                await line.open(self.name)
            except Unserved:
                await connection.close()
                raise
            except GONE:
                self._dialler.leave()
                continue
            return line

    # ---- life ----

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._start:
            if self._closed:
                work.close()
                raise RuntimeError(f"pool {self.name!r} is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=f"pool {self.name}", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Give up what waits, and the connection."""
        with self._start:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_TIMEOUT_S)
        if not thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            await self._line.connection.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _question(
    key: str,
    body: bytes | str,
    timeout_s: float,
    path: str | None,
    headers: Mapping[str, Any] | None,
    after_s: float,
    content_type: str | None,
    priority: int | None,
    sticky: Answer | str | None = None,
) -> _Question:
    if not timeout_s > 0:
        raise ValueError("timeout_s is a positive number of seconds")
    if len(key.encode()) > names.NAME_BYTES_MAX:
        raise ValueError(f"a key has at most {names.NAME_BYTES_MAX} bytes of UTF-8")
    content = body.encode() if isinstance(body, str) else bytes(body)
    told = dict(headers or {})
    if worker := sticky.worker if isinstance(sticky, Answer) else sticky:
        told[h.STICKY] = worker
    return _Question(key, content, timeout_s, path, told, after_s, content_type, priority)


def _answer(message: AbstractIncomingMessage) -> Answer:
    """What an answer says. Raises Unserved for the broker's words, WorkerFailed for other failures."""
    status = h.text(message.headers, h.STATUS) or "ok"
    if h.POOL in message.headers or status in UNSERVED:
        raise Unserved(status, h.text(message.headers, h.DETAIL) or "")
    if status != "ok":
        raise WorkerFailed(status, message.body)
    return Answer(message.body, message.headers, message.correlation_id or "")
