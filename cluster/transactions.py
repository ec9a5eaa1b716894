"""Transactions: staged rows become visible together, and once (docs/design/005-spark.md has the contract).

    producer   commits epochs 0, 1, 2 ... (micro-batches); the ledger knows the last one
    run        one life of it; a new run replaces the one before, which may not come back
    segment    what one attempt stages: an exchange with a hidden queue. Who commits names the attempts that won

    opened --CommitTransaction--> committed --FinishSegments (its owner has moved all)--> gone
       `----- a commit of its epoch without it, a newer run, abort, expiry, its exchange's deletion -----> gone

Why it is once: one command decides, and it may be repeated, for of an epoch that is not above the ledger's nothing
happens. What was decided is carried out by the owners of the segments, who tell of the end in the epoch of ownership in
which they saw it: what an owner of before believes ends nothing.

A segment that is declared when its epoch has been committed is a replay: it has no queue, and what comes goes nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from . import changes as told
from . import commands as c
from .arguments import difference_text, equivalent, is_integer, same, type_name
from .changes import Change
from .entities import Exchange, Producer, Queue, Segment
from .errors import AccessRefused, LimitReached, PreconditionFailed, exchange_text, no_exchange, no_vhost
from .exchange_rules import STAGING, check_equivalent
from .ids import Epoch, QueueId
from .membership import Membership
from .topology import Topology
from .view import ClusterView

NAME: Final = re.compile(r"txn\.[A-Za-z0-9._-]{1,200}")
EPOCH_MAX: Final = 2**62
PRODUCER_BYTES_MAX: Final = 255
RUN_BYTES_MAX: Final = 64
EXPIRES_MS: Final = (10_000, 86_400_000)
EXPIRES_MS_DEFAULT: Final = 3_600_000
EXPIRES_TTL_MS: Final = (3_600_000, 2**53)
"""So long a producer may be remembered after its last commit."""
STAGED_BYTES_DEFAULT: Final = 1 << 30
FENCED_RUNS_MAX: Final = 16
SEGMENTS_MAX: Final = 10_000
"""Of a vhost."""
PRODUCERS_MAX: Final = 10_000
"""Of a vhost. A user who is no administrator has half of what others leave at most."""
TRANSACTIONS_MAX: Final = 10_000
"""Of a commit."""
NAMES_BYTES_MAX: Final = 450_000
"""Of all names of a commit: a command of the wiring log has 512 KiB at most."""
DUE_MAX: Final = 1000
_WORDS: Final = (
    "x-producer", "x-epoch", "x-run", "x-target", "x-partition", "x-attempt", "x-expires", "x-max-staged-bytes",
)  # fmt: skip


class Outcome(msgspec.Struct, frozen=True):
    """What came of a commit: "committed", "already" or "refused", and of a refusal code and reason. Of an abort:
    "aborted" or "refused"."""

    outcome: str
    code: int = 0
    reason: str = ""


class Opening(NamedTuple):
    """The arguments of a staging exchange."""

    producer: str
    epoch: int
    run: str
    target: str
    partition: int | None
    attempt: int | None
    expires_ms: int
    bytes_max: int


def opening(vhost: str, name: str, arguments: Mapping[str, Any]) -> Opening:
    """Reads them. Raises PreconditionFailed (406) for one that is missing or malformed; unknown ones are ignored."""

    def invalid(argument: str, problem: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{argument}' for {exchange_text(vhost, name)}: {problem}")

    def text(argument: str, low: int, high: int) -> str:
        value = arguments.get(argument)
        if not isinstance(value, str):
            raise invalid(argument, f"unacceptable type '{type_name(value)}', expected a string")
        if not low <= len(value.encode("utf-8", "surrogatepass")) <= high:
            raise invalid(argument, f"expected {low} to {high} bytes")
        return value

    def integer(argument: str, low: int, high: int) -> int:
        value = arguments.get(argument)
        if not is_integer(value):
            raise invalid(argument, f"unacceptable type '{type_name(value)}', expected an integer")
        assert isinstance(value, int), "an integer is an int"
        if not low <= value <= high:
            raise invalid(argument, f"expected an integer of {low} to {high}")
        return int(value)

    producer = text("x-producer", 1, PRODUCER_BYTES_MAX)
    if producer[0] == "\0":
        raise invalid("x-producer", "the first character must not be NUL")
    return Opening(
        producer=producer,
        epoch=integer("x-epoch", 0, EPOCH_MAX),
        run=text("x-run", 1, RUN_BYTES_MAX),
        target=text("x-target", 0, 255),
        partition=integer("x-partition", 0, 2**63 - 1) if "x-partition" in arguments else None,
        attempt=integer("x-attempt", 0, 2**63 - 1) if "x-attempt" in arguments else None,
        expires_ms=integer("x-expires", *EXPIRES_MS) if "x-expires" in arguments else EXPIRES_MS_DEFAULT,
        bytes_max=(
            integer("x-max-staged-bytes", 1, 2**63 - 1) if "x-max-staged-bytes" in arguments else STAGED_BYTES_DEFAULT
        ),
    )


def over(producer: str, committed: int | None, epoch: int) -> str:
    """The reason of who comes with an epoch that is over."""
    return f"fenced: producer '{producer}' has committed epoch {committed}, and {epoch} is over"


def replaced(producer: Producer, run: str) -> str:
    """The reason of who comes with a run that was replaced."""
    return f"fenced: run {run} of producer '{producer.name}' was replaced by run {producer.run}"


def not_of(producer: Producer, user: str, is_administrator: bool) -> str:
    """Why this user may not use the producer's name; empty: it may."""
    if is_administrator or user == producer.user:
        return ""
    return f"producer '{producer.name}' belongs to user '{producer.user}'"


def too_many(vhost: str, producers: Collection[Producer], user: str, is_administrator: bool) -> str:
    """Why this user may not have one more; empty: it may."""
    if len(producers) >= PRODUCERS_MAX:
        return f"vhost '{vhost}' has {PRODUCERS_MAX} producers of transactions"
    if is_administrator or 2 * (len(producers) + 1) <= PRODUCERS_MAX:
        return ""
    own = sum(producer.user == user for producer in producers)
    if 2 * (own + 1) <= PRODUCERS_MAX - (len(producers) - own):
        return ""
    return f"user '{user}' has {own} producers of transactions in vhost '{vhost}', half of what others leave"


class Transactions(Membership):
    """Handlers of the commands about transactions.

    Invariants: (1) a segment that does not discard has a staging queue of its name, and each staging queue a segment;
    (2) a segment has an exchange of its name until it ends; (3) a segment that is open and does not discard has an
    epoch above its producer's; (4) a segment has a producer in the ledger.
    """

    __slots__ = ()

    def _transaction_handlers(self) -> dict[type, Callable[[Any, list[Change]], Any]]:
        return {
            c.CommitTransaction: self._commit_transaction,
            c.AbortTransaction: self._abort_transaction,
            c.ExpireTransactions: self._expire_transactions,
            c.ForgetProducers: self._forget_producers,
            c.FinishSegments: self._finish_segments,
        }

    def _in(self, vhost: str) -> Topology:
        topology = self._vhosts.get(vhost)
        if topology is None:
            raise no_vhost(vhost)
        return topology

    # ---- opening ----

    def _open_segment(self, command: c.DeclareExchange, log: list[Change]) -> Exchange:
        """exchange.declare of a staging exchange: the existing one, or a new one with its segment."""
        topology = self._in(command.vhost)
        existing = topology.exchanges.get(command.name)
        if existing is not None:
            _check_same(existing, command)
            return existing
        where = exchange_text(command.vhost, command.name)
        if NAME.fullmatch(command.name) is None:
            raise PreconditionFailed(f"{where} cannot stage: its name must be 'txn.' and 1 to 200 of A-Z a-z 0-9 . _ -")
        if not command.durable or command.auto_delete or command.internal:
            raise PreconditionFailed(f"{where} cannot stage: it must be durable, not auto-delete and not internal")
        asked = opening(command.vhost, command.name, command.arguments)
        self._check_target(topology, command, asked.target)
        ledger = topology.ledger
        known = ledger.producers.get(asked.producer)
        if known is not None:
            if why := not_of(known, command.user, command.is_administrator):
                raise AccessRefused(why)
            if known.epoch is not None and known.epoch > asked.epoch:
                raise PreconditionFailed(over(known.name, known.epoch, asked.epoch))
            if asked.run in known.fenced_runs:
                raise PreconditionFailed(replaced(known, asked.run))
        elif why := too_many(command.vhost, ledger.producers.values(), command.user, command.is_administrator):
            raise LimitReached(why)
        if len(ledger.segments) >= SEGMENTS_MAX:
            raise LimitReached(f"vhost '{command.vhost}' has {SEGMENTS_MAX} open transactions")
        replay = known is not None and known.epoch == asked.epoch
        queue = None if replay else self._staging_queue(command, asked)
        # all is checked
        self._run_begins(topology, command, known, asked, log)
        if queue is not None:
            log.append(told.QueueDeclared(topology.adopt_queue(queue)))
        segment = Segment(
            vhost=topology.vhost.name,
            name=command.name,
            queue_id=QueueId(0) if queue is None else queue.queue_id,
            producer=asked.producer,
            epoch=asked.epoch,
            run=asked.run,
            partition=asked.partition,
            attempt=asked.attempt,
            target=asked.target,
            user=command.user,
            opened_at_ms=command.at_ms,
            expires_ms=asked.expires_ms,
            bytes_max=asked.bytes_max,
            lived_ms=self._lived(command),
        )
        ledger.put(segment)
        exchange = Exchange(topology.vhost.name, command.name, STAGING, arguments=command.arguments)
        topology.exchanges[exchange.name] = exchange
        log.extend((told.ExchangeDeclared(exchange), told.SegmentOpened(segment)))
        return exchange

    @staticmethod
    def _check_target(topology: Topology, command: c.DeclareExchange, target: str) -> None:
        if not target:
            return
        exchange = topology.exchanges.get(target)
        if exchange is None:
            raise no_exchange(command.vhost, target)
        if exchange.internal or exchange.type == STAGING:
            kind = "internal" if exchange.internal else "a staging exchange itself"
            raise PreconditionFailed(
                f"invalid arg 'x-target' for {exchange_text(command.vhost, command.name)}: "
                f"{exchange_text(command.vhost, target)} is {kind}"
            )

    def _staging_queue(self, command: c.DeclareExchange, asked: Opening) -> Queue:
        """At its place: with the client, if its node can hold it."""
        arguments = {
            "x-queue-leader-locator": "client-local",
            "x-max-length-bytes": asked.bytes_max,
            "x-overflow": "reject-publish",
        }
        queue = Queue(
            vhost=command.vhost,
            name=command.name,
            queue_id=QueueId(self._applied),
            durable=True,
            auto_delete=False,
            exclusive_owner=None,
            arguments=arguments,
            owner=command.owner,
            epoch=Epoch(1),
            incarnation=command.incarnation,
            replicas=(command.owner,),
            in_sync=(command.owner,),
            staging=True,
        )
        return self._placed(queue, command)

    def _run_begins(
        self, topology: Topology, command: c.DeclareExchange, known: Producer | None, asked: Opening, log: list[Change]
    ) -> None:
        """A run that is new is the producer's current one, and ends what the one before has staged."""
        if known is None:
            known = Producer(topology.vhost.name, asked.producer, command.user, run=asked.run)
        elif known.run != asked.run:
            known = self._fence(topology, known, asked.run, log)
        if known.epoch is None:
            lived_ms = max(known.lived_ms, self._lived(command))
            known = replace(known, at_ms=max(known.at_ms, command.at_ms), lived_ms=lived_ms)
        self._put_producer(topology, known, log)

    def _fence(self, topology: Topology, producer: Producer, run: str, log: list[Change]) -> Producer:
        """The producer with its new run: what those before have staged is dropped."""
        for segment in topology.ledger.of(producer.name):
            if segment.place is None and segment.run != run:
                self._drop(topology, segment, log)
        fenced = (*producer.fenced_runs, producer.run) if producer.run else ()
        return replace(producer, run=run, fenced_runs=fenced[-FENCED_RUNS_MAX:])

    @staticmethod
    def _put_producer(topology: Topology, producer: Producer, log: list[Change]) -> None:
        if not same(topology.ledger.producers.get(producer.name), producer):
            topology.ledger.producers[producer.name] = producer
            log.append(told.ProducerChanged(producer.vhost, producer.name))

    def _lived(self, command: c.DeclareExchange | c.CommitTransaction) -> int:
        """The log's age at a command: its proposer counts on from the last PassTime, and none of both is too old."""
        return max(self._time.lived_ms, command.lived_ms)

    # ---- the end of a segment ----

    def _drop(self, topology: Topology, segment: Segment, log: list[Change]) -> None:
        if segment.queue_id:
            topology.end_queue(self._by_id[segment.queue_id], log)
        topology.end_exchange(topology.exchanges[segment.name], log)
        topology.ledger.remove(segment)
        log.append(told.SegmentEnded(segment))

    def _delete_segment(self, topology: Topology, name: str, log: list[Change]) -> bool:
        """exchange.delete of a staging exchange."""
        segment = topology.ledger.segments[name]
        if segment.place is not None:
            raise AccessRefused(f"{exchange_text(segment.vhost, name)} is committed: its rows are on their way")
        self._drop(topology, segment, log)
        return True

    def _abort_transaction(self, command: c.AbortTransaction, log: list[Change]) -> Outcome:
        topology = self._in(command.vhost)
        producer = topology.ledger.producers.get(command.producer)
        if producer is not None and (why := not_of(producer, command.user, command.is_administrator)):
            return Outcome("refused", 403, why)
        for name in command.transactions:
            segment = topology.ledger.segments.get(name)
            if segment is None or segment.place is not None:
                continue
            if (segment.producer, segment.epoch, segment.run) == (command.producer, command.epoch, command.run):
                self._drop(topology, segment, log)
        return Outcome("aborted")

    def _expire_transactions(self, command: c.ExpireTransactions, log: list[Change]) -> None:
        topology = self._in(command.vhost)
        for name in command.names:
            segment = topology.ledger.segments.get(name)
            if segment is not None and is_expired(segment, *self._judged_at(command)):
                self._drop(topology, segment, log)

    def _forget_producers(self, command: c.ForgetProducers, log: list[Change]) -> None:
        topology = self._in(command.vhost)
        for name in command.names:
            producer = topology.ledger.producers.get(name)
            if producer is None or topology.ledger.of(name):
                continue
            if is_forgettable(producer, *self._judged_at(command)):
                del topology.ledger.producers[name]
                log.append(told.ProducerChanged(producer.vhost, name))

    def _judged_at(self, command: c.ExpireTransactions | c.ForgetProducers) -> tuple[int, int]:
        """The log's age and 0; of an earlier release's command, which a log may still hold, 0 and its wall clock."""
        if command.lived_ms:
            return min(command.lived_ms, self._time.lived_ms), 0
        return 0, command.at_ms

    def _finish_segments(self, command: c.FinishSegments, log: list[Change]) -> None:
        for queue_id, epoch, unroutable in command.segments:
            queue = self._by_id.get(queue_id)
            if queue is None or not queue.staging:
                continue
            if (queue.owner, queue.incarnation, queue.epoch) != (command.node, command.incarnation, epoch):
                continue
            topology = self._vhosts[queue.vhost]
            segment = topology.ledger.segments.get(queue.name)  # None: the command names it twice
            if segment is None or segment.place is None:
                continue
            self._drop(topology, segment, log)
            if unroutable:
                producer = topology.ledger.producers[segment.producer]
                self._put_producer(topology, replace(producer, unroutable=producer.unroutable + unroutable), log)

    # ---- the commit ----

    def _commit_transaction(self, command: c.CommitTransaction, log: list[Change]) -> Outcome:
        topology = self._in(command.vhost)
        ledger = topology.ledger
        producer = ledger.producers.get(command.producer)
        refused = self._refusal(topology, producer, command)
        if refused is not None:
            return refused
        if producer is None:
            producer = Producer(topology.vhost.name, command.producer, command.user)
        if producer.epoch == command.epoch:
            self._drop_the_rest(topology, producer, log)
            return Outcome("already")
        for place, name in enumerate(dict.fromkeys(command.transactions)):
            segment = replace(ledger.segments[name], place=place)
            ledger.put(segment)
            log.append(told.SegmentCommitted(segment))
        if producer.run != command.run:
            producer = self._fence(topology, producer, command.run, log)
        producer = replace(
            producer,
            epoch=command.epoch,
            rows=command.rows,
            at_ms=command.at_ms,
            ttl_ms=producer.ttl_ms if command.ttl_ms is None else command.ttl_ms,
            lived_ms=self._lived(command),
        )
        self._put_producer(topology, producer, log)
        self._drop_the_rest(topology, producer, log)
        return Outcome("committed")

    def _drop_the_rest(self, topology: Topology, producer: Producer, log: list[Change]) -> None:
        """What was staged for an epoch that is over, and did not win."""
        assert producer.epoch is not None, "an epoch was committed"
        for segment in topology.ledger.of(producer.name):
            if segment.place is None and segment.epoch <= producer.epoch:
                self._drop(topology, segment, log)

    def _refusal(self, topology: Topology, producer: Producer | None, command: c.CommitTransaction) -> Outcome | None:
        """Why it is not committed; None: it is, or was."""
        if producer is None:
            known = topology.ledger.producers.values()
            if why := too_many(command.vhost, known, command.user, command.is_administrator):
                return Outcome("refused", 406, why)
        else:
            if why := not_of(producer, command.user, command.is_administrator):
                return Outcome("refused", 403, why)
            if producer.epoch == command.epoch:
                return None
            if producer.epoch is not None and producer.epoch > command.epoch:
                return Outcome("refused", 409, over(producer.name, producer.epoch, command.epoch))
            if command.run in producer.fenced_runs:
                return Outcome("refused", 409, replaced(producer, command.run))
        for name in command.transactions:
            refused = self._segment_refusal(topology.ledger.segments.get(name), name, command)
            if refused is not None:
                return refused
        return None

    def _segment_refusal(self, segment: Segment | None, name: str, command: c.CommitTransaction) -> Outcome | None:
        if segment is None:
            reason = f"transaction '{name}' of producer '{command.producer}' is not there: it expired or was aborted"
            return Outcome("refused", 404, reason)
        if (segment.producer, segment.epoch, segment.run) != (command.producer, command.epoch, command.run):
            reason = f"transaction '{name}' is of producer '{segment.producer}', epoch {segment.epoch}"
            return Outcome("refused", 409, f"{reason}, run {segment.run}")
        assert segment.place is None, "what is committed is of an epoch that is over"
        assert not segment.discards, "a replay is of an epoch that is over"
        queue = self._by_id[segment.queue_id]
        if queue.gap_epoch or queue.begins_empty:
            reason = f"transaction '{name}' has lost rows with the copies that held them"
            return Outcome("refused", 410, reason)
        if segment.user != command.user and not command.is_administrator:
            return Outcome("refused", 403, f"transaction '{name}' belongs to user '{segment.user}'")
        return None


def _check_same(existing: Exchange, command: c.DeclareExchange) -> None:
    """Raise 406 unless a redeclare says the same."""
    check_equivalent(
        existing,
        type_=command.type,
        durable=command.durable,
        auto_delete=command.auto_delete,
        internal=command.internal,
        arguments=command.arguments,
    )
    for word in _WORDS:
        wanted, current = command.arguments.get(word), existing.arguments.get(word)
        if not equivalent(wanted, current):
            where = exchange_text(existing.vhost, existing.name)
            raise PreconditionFailed(f"inequivalent arg '{word}' for {where}: {difference_text(wanted, current)}")


def is_expired(segment: Segment, lived_ms: int, at_ms: int = 0) -> bool:
    """Whether the time of a segment that nobody committed is over: by the log's age, or by an older release's clock."""
    return segment.place is None and (
        segment.opened_at_ms + segment.expires_ms <= at_ms
        if at_ms
        else segment.lived_ms + segment.expires_ms <= lived_ms
    )


def is_forgettable(producer: Producer, lived_ms: int, at_ms: int = 0) -> bool:
    """Whether the time of a producer is over, as `is_expired`; one that has segments stays."""
    if at_ms:
        return producer.at_ms + producer.ttl_ms <= at_ms
    return producer.lived_ms + producer.ttl_ms <= lived_ms


class Due(NamedTuple):
    """What the leader has ended, DUE_MAX of each at most: a command has a bound."""

    vhost: str
    segments: tuple[str, ...]
    producers: tuple[str, ...]


def due(map_: ClusterView, lived_ms: int) -> Iterator[Due]:
    """What is over when the log is so old, by vhost."""
    for vhost in map_.vhosts():
        segments = tuple(segment.name for segment in map_.segments(vhost.name) if is_expired(segment, lived_ms))
        producers = tuple(
            producer.name
            for producer in map_.producers(vhost.name)
            if is_forgettable(producer, lived_ms) and not map_.segments_of(vhost.name, producer.name)
        )
        for first in range(0, max(len(segments), len(producers)), DUE_MAX):
            yield Due(vhost.name, segments[first : first + DUE_MAX], producers[first : first + DUE_MAX])
