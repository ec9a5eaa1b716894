"""The management process's line to its node: feeds the replica, and carries orders and calls to the node (waits).

    run          connects, follows the wiring and asks for rows, again and again until it is cancelled
    order        a command; back when the replica has folded it
    carry_out    an operation of the node

Rows are asked for every interval, as long as somebody was interested within the last minute (`touched`); who comes
after a pause waits for one round, so that nobody is shown what is long past.

When the line is lost the replica keeps what it had, as of a node without a lease: readers are told how old it is. The
node may be gone for good, or begin again in its cluster, which takes as long as a majority takes to be found.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from clusterbroker.broker.management.history import MINUTE_MS
from clusterbroker.broker.management.pool_definitions import PoolDraft, bindings_of, refusals
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.private_socket import connected
from clusterbroker.broker.stats import rows
from clusterbroker.broker.stats.as_user import AsUser, Outcome
from clusterbroker.broker.stats.batches import joined
from clusterbroker.broker.stats.totals import SAMPLE_S
from clusterbroker.cluster.errors import PreconditionFailed, Unavailable, WiringError
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot

from .importing import imported
from .operations import OrderError

AGAIN_S: Final = 0.25
MISTAKE_S: Final = 10.0
"""The longest pause when the replica cannot follow its node, again and again."""
INTEREST_S: Final = 60.0
ROUND_S: Final = 5.0
"""A node that has not told its own rows by then is as good as cut off."""
CALL_S: Final = 90.0
"""Longer than any operation of a node that lives."""
READ_BYTES: Final = 1 << 18

LOG: Final = structlog.get_logger("management")

A = TypeVar("A", bound=m.Answer)


class LineLost(ConnectionError):
    """There is no line to the node."""


class ControlClient:
    """One line at a time; belongs to one loop."""

    def __init__(
        self, directory: Path, replica: Replica, now_ms: Callable[[], int], sample_s: float = SAMPLE_S
    ) -> None:
        self._directory = directory
        self._replica = replica
        self._now_ms = now_ms
        self._sample_s = sample_s
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._chunks: list[bytes] = []
        self._parts: dict[str, list[rows.Batch]] = {}
        self._passed_over = ""
        self._round: list[rows.Batch] = []
        self._folded: dict[asyncio.Future[None], int] = {}  # who waits until the replica has an index
        self._touched_s = float("-inf")
        self._told_s = float("-inf")
        self._interest = asyncio.Event()
        self._hurry = asyncio.Event()  # a round is due now
        self._afresh = True  # nothing that the replica has is built upon
        self._mapped = asyncio.Event()  # the snapshot of this line is there
        self._round_over = asyncio.Event()
        self.ready = asyncio.Event()
        """The replica has had a map, and the rows of a first round, at some time."""
        self.reload: Callable[[], object] = lambda: None
        """Reads certificates anew: the node says so."""
        self._leased(False)

    @property
    def connected(self) -> bool:
        """There is a line to the node."""
        return self._writer is not None

    # -- the line ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keeps a line, until it is cancelled."""
        mistake_s = AGAIN_S
        while True:
            again_s = AGAIN_S
            try:
                await self._line()
            except OSError:
                pass  # the node is not there, or not yet; LineLost is one of these
            except Exception as error:  # what is in the replica may be wrong by now
                LOG.error("the mirror begins anew", exc_info=error)
                self._afresh = True
                again_s = mistake_s = min(2 * mistake_s, MISTAKE_S)
            await asyncio.sleep(again_s)

    async def _line(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connected(self._directory, m.NAME))
        frames = m.Frames(m.AnyTold)
        self._writer = writer
        beside: list[asyncio.Task[None]] = []
        try:
            self._say(m.Hello(m.VERSION, management=True))
            self._say(m.Tail(self._next(), 0 if self._afresh else self._replica.map.applied))
            beside = [asyncio.create_task(self._ask_rows()), asyncio.create_task(self._tell_logins())]
            while data := await reader.read(READ_BYTES):
                for message in frames.feed(data):
                    self._told(message)
        finally:
            self._writer = None
            writer.close()
            for task in beside:
                task.cancel()
            self._lost()

    def _lost(self) -> None:
        self._leased(False)
        self._mapped.clear()
        self._chunks.clear()
        self._parts.clear()
        self._round.clear()
        waiting, self._waiting = self._waiting, {}
        for answer in (*waiting.values(), *self._folded):
            if not answer.done():
                answer.set_exception(LineLost("the node has ended the line"))
        self._folded.clear()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _say(self, message: m.ControlMessage) -> None:
        if self._writer is None:
            raise LineLost("there is no line to the node: it begins again, or it is gone")
        self._writer.write(m.encode(message))

    async def _asked(self, question: m.Question, answer: type[A], timeout_s: float) -> A:
        """The answer. Raises LineLost, TimeoutError."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._say(question)
        self._waiting[question.number] = future
        try:
            told = await asyncio.wait_for(future, timeout_s)
        finally:
            self._waiting.pop(question.number, None)
        if not isinstance(told, answer):
            raise LineLost(f"the node answered {type(told).__name__}")
        return told

    # -- what the node tells ----------------------------------------------------------------------------------

    def _told(self, message: m.ControlMessage) -> None:
        match message:
            case m.Hello():
                if message.version != m.VERSION:
                    raise ValueError(f"the node speaks version {message.version}")
            case m.Leased():
                self._leased(message.leased)
            case m.AlarmsChanged():
                self._hurry.set()
            case m.Reload():
                self.reload()
            case m.Snapshot():
                self._chunk(message)
            case m.Following():
                self._mapped.set()
            case m.Followed():
                for index, command in message.commands:
                    self._replica.applied(LogIndex(index), c.decode(command), self._now_ms())
                self._reached()
            case m.Rows():
                self._rows(message)
            case m.RowsEnd():
                self._end_round(message)
            case m.Answer():
                self._answer(message)

    def _rows(self, message: m.Rows) -> None:
        """A member of a newer release may tell what cannot be read here: its numbers are missing then, no others."""
        try:
            batch = rows.decode(message.batch)
        except ValueError as error:
            if str(error) != self._passed_over:
                self._passed_over = str(error)
                LOG.warning("rows.passed_over", why=str(error))
            return
        self._parts.setdefault(batch.node, []).append(batch)
        if not message.more:
            self._round.append(joined(self._parts.pop(batch.node)))

    def _end_round(self, message: m.RowsEnd) -> None:
        """Rows and sums change together: nobody sees half of a round."""
        self._parts.clear()
        batches, self._round = self._round, []
        for batch in batches:
            self._replica.told(batch, self._now_ms())
        self._replica.closed(self._now_ms())
        self._leased(message.leased)
        self._answer(message)

    def _answer(self, message: m.Answer) -> None:
        waiting = self._waiting.get(message.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _chunk(self, message: m.Snapshot) -> None:
        if message.chunk:
            self._chunks.append(message.chunk)
            return
        chunks, self._chunks = self._chunks, []
        self._replica.restored(snapshot.decode(LogIndex(message.index), chunks), self._now_ms())
        self._mapped.set()
        self._reached()

    def _leased(self, leased: bool) -> None:
        self._replica.lease(leased, self._now_ms())

    # -- rows -------------------------------------------------------------------------------------------------

    async def _ask_rows(self) -> None:
        loop = asyncio.get_running_loop()
        await self._mapped.wait()  # rows mean nothing without what was declared
        while True:
            try:
                max_age_ms = 0 if self._hurry.is_set() else int(self._sample_s * 500)
                self._hurry.clear()
                since = {} if self._afresh else self._replica.since()
                await self._asked(m.AskRows(self._next(), since, max_age_ms), m.RowsEnd, ROUND_S)
            except TimeoutError:
                self._leased(False)
                continue
            except LineLost:
                return
            self._told_s = loop.time()
            self._afresh = False
            self.ready.set()
            self._round_over.set()
            self._round_over.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._sample_s)
            if loop.time() - self._touched_s > INTEREST_S:
                self._interest.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._interest.wait(), MINUTE_MS / 1000)
                if not self._interest.is_set():
                    self._replica.let_rest()
                    await self._interest.wait()

    async def _tell_logins(self) -> None:
        """Attempts to sign in here are for other members as well, whoever is interested."""
        attempts, told = self._replica.attempts, -1
        while True:
            if attempts.changes != told:
                told = attempts.changes
                self._say(m.Logins(attempts.succeeded, attempts.failed, tuple(attempts.sources())))
            await asyncio.sleep(self._sample_s)

    async def touched(self) -> None:
        """Somebody is interested; back when the rows are not of long ago."""
        loop = asyncio.get_running_loop()
        self._touched_s = loop.time()
        self._interest.set()
        if self._writer is not None and loop.time() - self._told_s > 3 * self._sample_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._round_over.wait(), ROUND_S)

    # -- orders and calls -------------------------------------------------------------------------------------

    async def order(self, command: c.AnyCommand) -> OrderError | None:
        """One command; back when the replica has it."""
        ordered = await self._ordered(command)
        return OrderError(ordered.kind, ordered.text) if ordered.kind else None

    async def _ordered(self, command: c.AnyCommand) -> m.Ordered | OrderError:
        try:
            stored = c.encode(command)
            ordered = await self._asked(m.Order(self._next(), stored), m.Ordered, CALL_S)
            await self._until(ordered.index)
        except WiringError as error:
            return OrderError(error.kind, error.text)
        except (LineLost, TimeoutError) as error:
            return OrderError(Unavailable.kind, str(error) or "the node has not answered: it may still be carried out")
        return ordered

    async def import_all(self, commands: Sequence[c.Defining], pools: Sequence[PoolDraft] = ()) -> OrderError | None:
        """All of them, or none; then the pools, if none of them is refused by what is known before."""
        if (refused := next(refusals(self._replica.map, pools, commands), None)) is not None:
            return OrderError(PreconditionFailed.kind, refused)
        declared = [pool.declare for pool in pools]
        return await imported(self._replica, self._ordered, self._progress, commands, declared, bindings_of(pools))

    async def _progress(self) -> None:
        """Back when the replica has changed, or after some seconds. Raises LineLost."""
        with contextlib.suppress(TimeoutError):
            await self._until(self._replica.map.applied + 1)

    async def carry_out(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | OrderError:
        """An operation of the node."""
        try:
            done = await self._asked(m.Call(self._next(), operation, arguments), m.Done, CALL_S)
        except (LineLost, TimeoutError) as error:
            return OrderError(Unavailable.kind, str(error) or "the node has not answered: it may still be carried out")
        return OrderError("refused", done.error) if done.error else done.answer

    async def as_user(self, asked: AsUser) -> Outcome | OrderError:
        """What comes of it, on a line of its own: a message may be long, and what feeds the replica would wait."""
        try:
            question = m.encode(m.AsUser(1, asked))
        except ValueError as error:
            return OrderError("refused", f"this cannot be said to the node: {error}")
        try:
            async with asyncio.timeout(CALL_S):
                answer = await self._alone(question)
        except (OSError, EOFError, TimeoutError):
            return OrderError(Unavailable.kind, "there is no AMQP connection to the node")
        return OrderError(Unavailable.kind, answer.unavailable) if answer.unavailable else answer.outcome

    async def _alone(self, question: bytes) -> m.Outcome:
        """Raises OSError, EOFError, ValueError."""
        reader, writer = await asyncio.open_unix_connection(sock=connected(self._directory, m.NAME))
        frames = m.Frames(m.AnyTold)
        try:
            writer.write(m.encode(m.Hello(m.VERSION, management=True)))
            writer.write(question)
            while data := await reader.read(READ_BYTES):
                for message in frames.feed(data):
                    if isinstance(message, m.Outcome):
                        return message
            raise EOFError("the node has ended the line")
        finally:
            writer.transport.abort()

    async def close_connection(self, connection_id: str, reason: str) -> OrderError | None:
        """Ends a client's connection, at whatever node it is."""
        answer = await self.carry_out("connection.close", {"id": connection_id, "reason": reason})
        return answer if isinstance(answer, OrderError) else None

    async def _until(self, index: int) -> None:
        if self._replica.map.applied >= index:
            return
        folded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folded[folded] = index
        try:
            await asyncio.wait_for(folded, ROUND_S)
        finally:
            self._folded.pop(folded, None)

    def _reached(self) -> None:
        applied = self._replica.map.applied
        for folded, index in tuple(self._folded.items()):
            if index <= applied and not folded.done():
                folded.set_result(None)
