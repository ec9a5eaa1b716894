"""A worker's process: connection, requests, answers, and the end by TERM (waits).

    connecting --> loading (once) --> consuming --TERM, cancel notice--> draining --> exit 0
        ^                                 |connection lost
        +---------------------------------+

A spare waits for its key before it loads.

*Answer before ack*: a request is acknowledged when the broker has confirmed its answer. An answer belongs to the
delivery that it answers: when the connection is lost, what is computed until then is sent for no other delivery but one
of the same request that comes back to this process, which then is not computed twice.

Exit statuses: 0 drained; 1 TERM, and requests still at work after WORKER_GRACE_S (they come again); 70 `load` failed;
77 the broker refuses the user (revoked); 78 no broker has a certificate that is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import logging
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from . import headers as h
from . import names
from .connecting import GONE, Dialler, SignInRefused, Untrusted
from .environment import Environment
from .errors import Busy, Fail, Retry
from .progress import Progress
from .request import Request
from .several import Several
from .spare import Keys, Line
from .worker import Worker

EXIT_DRAINED: Final = 0
EXIT_CUT_SHORT: Final = 1
EXIT_LOAD_FAILED: Final = 70
EXIT_REFUSED: Final = 77
EXIT_UNTRUSTED: Final = 78

logger = logging.getLogger("clusterbroker_workers")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is to be sent."""

    status: str
    body: bytes
    detail: str = ""


KEYS_MAX: Final = 100
"""Of a worker that serves several: the broker allows no more."""
Outcome: TypeAlias = Reply | Busy | Retry
Identity: TypeAlias = tuple[str, str, str, str, int, bytes]
"""(key, correlation id, reply_to, message id, attempt, digest of the body): the same for all deliveries of a
request."""
REFUSED_S: Final = 1.0
"""Before a request goes back whose delay the broker did not take."""
COMPUTED_MAX: Final = 64
"""Outcomes kept for requests whose delivery was lost; each may come back to another worker, and never here."""


class Runner:
    """One worker and its connections, one after the other."""

    def __init__(self, worker: Worker, environment: Environment) -> None:
        self._worker = worker
        self._environment = environment
        name = environment.replica or environment.id
        told = {"connection_name": f"worker {name}", "worker-id": environment.id}
        if environment.replica:
            told["worker-replica"] = environment.replica
        self._dialler = Dialler(environment.urls, told, environment.authorities)
        self._threads = ThreadPoolExecutor(environment.prefetch, thread_name_prefix="handler")
        self._stop = asyncio.Event()
        self._loaded = False
        self._several: Several | None = None
        """Where it serves several keys."""
        self._computing: dict[Identity, asyncio.Task[Outcome]] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        self._activity: AbstractChannel | None = None
        self._loop = asyncio.get_running_loop()

    def drain(self) -> None:
        """Take no more requests, finish those at work, end."""
        self._stop.set()

    async def run(self) -> int:
        """Serve until drained; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.drain)
        try:
            while not self._stop.is_set():
                status = await self._connect_and_serve()
                if status is not None:
                    return status
            return EXIT_DRAINED
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _connect_and_serve(self) -> int | None:
        """One connection's life. None: it is lost, or the worker drained before it was there."""
        dial = asyncio.create_task(self._dialler.dial())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({dial, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not dial.done():
            dial.cancel()
            return EXIT_DRAINED
        try:
            connection = dial.result()
        except SignInRefused as error:
            logger.error("the broker refuses worker %s: %s", self._environment.id, error)
            return EXIT_REFUSED
        except Untrusted as error:
            logger.error("%s", error)
            return EXIT_UNTRUSTED
        try:
            async with connection:
                lost = asyncio.Event()
                connection.close_callbacks.add(lambda *_: lost.set())
                return await self._serve(connection, lost)
        except SignInRefused as error:
            logger.error("worker %s gets no key: %s", self._environment.id, error)
            return EXIT_REFUSED
        except GONE as error:
            logger.warning("connection lost: %s", error)
            self._dialler.leave()
            return None
        finally:
            self._activity = None

    async def _serve(self, connection: aio_pika.abc.AbstractConnection, lost: asyncio.Event) -> int | None:
        self._activity = await connection.channel(publisher_confirms=False)
        if self._environment.spare:
            line = await Line.open(connection)
            key = asyncio.create_task(line.key(self._environment))
            if not await self._comes(key, lost):
                return EXIT_DRAINED if self._stop.is_set() else None
            told = key.result()
            if not isinstance(told, Environment):
                return await self._serve_several(connection, lost, line, told)
            await line.close()
            self._environment = told
        environment = self._environment
        await self._report("started")
        if not self._loaded:
            load = asyncio.create_task(self._load())
            if not await self._comes(load):
                return EXIT_DRAINED  # nothing is at work, and nobody waits for the rest of the load
            if not load.result():
                return EXIT_LOAD_FAILED
        if self._stop.is_set():
            return EXIT_DRAINED
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=environment.prefetch)
        channel.close_callbacks.add(lambda *_: lost.set())
        cancelled = asyncio.Event()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(lambda _frame: cancelled.set())
        queue = await channel.get_queue(environment.requests_queue, ensure=False)

        async def take(message: AbstractIncomingMessage) -> None:
            self._spawn(self._process(channel, message))

        tag = await queue.consume(take, arguments={"worker-id": environment.id})
        await self._report("ready")
        events = [asyncio.create_task(each.wait()) for each in (self._stop, lost, cancelled)]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        for each in events:
            each.cancel()
        if lost.is_set() and not self._stop.is_set():
            self._dialler.leave()
            return None
        await self._report("draining")
        if not cancelled.is_set():
            with contextlib.suppress(*GONE):
                await queue.cancel(tag)
        self._stop.set()
        return await self._finish()

    async def _serve_several(
        self, connection: aio_pika.abc.AbstractConnection, lost: asyncio.Event, line: Line, keys: Keys
    ) -> int | None:
        """One connection's life of a worker that serves several keys."""
        if self._several is None:
            environment = self._environment
            self._several = Several(self._worker, environment.id, environment.prefetch, self._call, self._process)
            self._threads = ThreadPoolExecutor(KEYS_MAX * environment.prefetch, thread_name_prefix="handler")
        following = asyncio.create_task(self._several.follow(connection, line, keys))
        try:
            if await self._comes(following, lost):
                following.result()
            if not self._stop.is_set():
                self._dialler.leave()
                return None
            following.cancel()
            await self._several.drain()
            return await self._finish()
        finally:
            following.cancel()

    async def _comes(self, work: asyncio.Task[Any], lost: asyncio.Event | None = None) -> bool:
        """Whether it is done before TERM, and before the connection is lost."""
        ends = [asyncio.create_task(each.wait()) for each in (self._stop, lost) if each is not None]
        await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        if not work.done() and lost is not None:
            work.cancel()
            if lost.is_set():
                self._dialler.leave()
        return work.done()

    async def _finish(self) -> int:
        """Wait for what is at work, `grace_s` at most."""
        at_work = self._at_work if self._several is None else self._several.at_work
        if at_work:
            await asyncio.wait(at_work, timeout=self._environment.grace_s)
        if left := sum(not task.done() for task in at_work):
            logger.warning("%d requests were at work after %g s; they come again", left, self._environment.grace_s)
            return EXIT_CUT_SHORT
        return EXIT_DRAINED

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    async def _load(self) -> bool:
        try:
            await self._call(self._worker.load, self._environment.key)
        except Exception as error:
            logger.exception("load(%r) failed: %s", self._environment.key, error)
            return False
        self._loaded = True
        return True

    async def _call(self, method: Any, argument: Any) -> Any:
        """An ordinary method runs in a thread, an async one here."""
        if inspect.iscoroutinefunction(method):
            return await method(argument)
        result = await self._loop.run_in_executor(self._threads, method, argument)
        return await result if inspect.isawaitable(result) else result

    # ---- requests ----

    async def _process(self, channel: AbstractChannel, message: AbstractIncomingMessage) -> None:
        try:
            await self._report("request-received", key=self._key(message))
            deadline = h.number(message.headers, h.DEADLINE)
            if deadline is not None and deadline < time.time() * 1_000:  # it is not begun
                await self._conclude(channel, message, Reply("expired", b"", "x-deadline had passed"))
                return
            await self._conclude(channel, message, await self._outcome(message))
        except aio_pika.exceptions.DeliveryError as error:  # the channel lives, and would hold the request
            logger.warning("request %s goes back to the queue: %s", message.correlation_id, error)
            await asyncio.sleep(REFUSED_S)
            with contextlib.suppress(*GONE):
                await message.reject(requeue=True)
        except GONE as error:
            logger.warning("request %s goes back to the queue: %s", message.correlation_id, error)

    async def _outcome(self, message: AbstractIncomingMessage) -> Outcome:
        """The outcome of a request, computed once however often it is delivered here."""
        identity = self._identity(message)
        task = self._computing.get(identity) if message.correlation_id and message.redelivered else None
        if task is None:
            task = asyncio.create_task(self._compute(message))
            if message.correlation_id:
                self._computing[identity] = task
                done = [each for each, other in self._computing.items() if other.done()]
                for each in done[: max(0, len(done) - COMPUTED_MAX)]:
                    del self._computing[each]
        return await asyncio.shield(task)

    def _forget(self, message: AbstractIncomingMessage) -> None:
        self._computing.pop(self._identity(message), None)

    def _identity(self, message: AbstractIncomingMessage) -> Identity:
        digest = hashlib.blake2b(message.body, digest_size=16).digest()
        attempt, told = h.number(message.headers, h.ATTEMPT) or 0, (message.correlation_id, message.reply_to)
        correlation_id, reply_to = (each or "" for each in told)
        return self._key(message), correlation_id, reply_to, message.message_id or "", attempt, digest

    async def _compute(self, message: AbstractIncomingMessage) -> Outcome:
        try:
            result = await self._call(self._worker.handle, self._request(message))
        except (Busy, Retry) as outcome:
            return outcome
        except Fail as failure:
            return Reply(failure.status, failure.text.encode(), failure.text)
        except Exception as error:
            logger.exception("request %s", message.correlation_id)
            text = f"{type(error).__name__}: {error}"
            return Reply("worker_error", text.encode(), text)
        body = result.encode() if isinstance(result, str) else result
        if not isinstance(body, (bytes, bytearray, memoryview, type(None))):
            text = f"{type(self._worker).__name__}.handle returned {type(result).__name__}: return bytes, str or None"
            logger.error(text)
            return Reply("worker_error", text.encode(), text)
        return Reply("ok", bytes(body or b""))

    def _request(self, message: AbstractIncomingMessage) -> Request:
        headers: Mapping[str, Any] = message.headers
        key, deadline = self._key(message), h.number(headers, h.DEADLINE)

        async def report(part: float) -> None:
            told = {"x-progress": part, "x-correlation-id": message.correlation_id or ""}
            await self._report("progress", told, key)

        return Request(
            key=key,
            body=message.body,
            path=h.text(headers, h.PATH),
            headers=headers,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            content_type=message.content_type,
            deadline=None if deadline is None else deadline / 1_000,
            attempt=h.number(headers, h.ATTEMPT) or 0,
            redelivered=bool(message.redelivered),
            traceparent=h.text(headers, h.TRACE),
            _progress=Progress(self._loop, report),
        )

    def _key(self, message: AbstractIncomingMessage) -> str:
        """Of a request, which may have been published to the name of its key's queue."""
        said = message.routing_key or ""
        named = None if message.exchange else names.key_of(self._environment.pool, said)
        return said if named is None else named

    async def _conclude(self, channel: AbstractChannel, message: AbstractIncomingMessage, outcome: Outcome) -> None:
        """Answer, then ack; or give it back; or send it on, then ack."""
        if isinstance(outcome, Busy):
            self._forget(message)
            await asyncio.sleep(outcome.after_s)
            await message.reject(requeue=True)
            return
        if isinstance(outcome, Retry):
            await self._delay(channel, message, outcome)
        elif message.reply_to:
            await self._answer(channel, message, outcome)
        await message.ack()
        self._forget(message)

    async def _answer(self, channel: AbstractChannel, message: AbstractIncomingMessage, reply: Reply) -> None:
        headers: dict[str, Any] = {h.STATUS: h.octets(reply.status), h.WORKER: self._environment.id}
        if reply.detail:
            headers[h.DETAIL] = reply.detail[:1_000]
        if (trace := h.text(message.headers, h.TRACE)) is not None:
            headers[h.TRACE] = trace
        answer = aio_pika.Message(
            reply.body,
            correlation_id=message.correlation_id,
            headers=headers,
            delivery_mode=message.delivery_mode or aio_pika.DeliveryMode.PERSISTENT,
        )
        assert message.reply_to is not None, "somebody waits for it"
        try:
            await channel.default_exchange.publish(answer, message.reply_to, mandatory=True)
        except aio_pika.exceptions.DeliveryError:
            logger.warning("the caller of request %s is gone; its answer is dropped", message.correlation_id)

    async def _delay(self, channel: AbstractChannel, message: AbstractIncomingMessage, retry: Retry) -> None:
        """The request, as its caller sent it, into the pool's delayed exchange.

        `expiration` counts from the due time on. With a deadline (`x-deadline`) it is what is left of that then, and
        the delay never goes beyond: nobody holds a request whose caller waits no longer.
        """
        headers = {name: value for name, value in message.headers.items() if not h.is_of_one_publish(name)}
        delay_s, left_s = retry.after_s, message.expiration
        deadline = h.number(headers, h.DEADLINE)
        if deadline is not None:
            until_s = max(0.0, deadline / 1_000 - time.time())
            delay_s = min(delay_s, until_s)
            left_s = until_s - delay_s
        headers[h.ATTEMPT] = (h.number(headers, h.ATTEMPT) or 0) + 1
        headers[h.DELAY] = max(1, round(delay_s * 1_000))
        again = aio_pika.Message(
            message.body,
            headers=headers,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            priority=message.priority,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            expiration=left_s,
            message_id=message.message_id,
            timestamp=message.timestamp,
            type=message.type,
            app_id=message.app_id,
        )
        exchange = await channel.get_exchange(names.delayed_exchange(self._environment.pool), ensure=False)
        await exchange.publish(again, self._key(message), mandatory=True)

    # ---- activity ----

    async def _report(self, event: str, told: Mapping[str, Any] | None = None, key: str | None = None) -> None:
        """Activity is a hint: the broker sees consumers, deliveries and acks itself, so a lost report is no error.
        `key`: of the request; None: the worker's."""
        channel = self._activity
        if channel is None or channel.is_closed:
            return
        message = aio_pika.Message(b"", headers={h.EVENT: event, h.WORKER: self._environment.id, **(told or {})})
        with contextlib.suppress(*GONE):
            exchange = await channel.get_exchange(self._environment.activity_exchange, ensure=False)
            await exchange.publish(message, self._environment.key if key is None else key, mandatory=False)


def configure_log() -> None:
    """JSON lines on standard error, for the pool's log of its workers."""

    class Lines(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            line = {"at": round(record.created, 3), "level": record.levelname.lower(), "text": record.getMessage()}
            if record.exc_info:
                line["trace"] = self.formatException(record.exc_info)
            return json.dumps(line)

    handler = logging.StreamHandler()
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("aiormq", "aio_pika"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what they tell of lost connections is told here as well
