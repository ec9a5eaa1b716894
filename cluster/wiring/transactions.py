"""Transactions: staged rows become visible together, and once (docs/design/005-spark.md has the contract).

    producer   commits epochs 0, 1, 2 ... (micro-batches); the ledger knows the last one
    run        one process of it; a new run replaces the one before, which may not come back
    segment    what one attempt stages: an exchange with a hidden queue. Who commits names the attempts that won

    opened --CommitTransaction--> committed --FinishSegments (its owner has moved all)--> gone
       `----- a commit of its epoch without it, a newer run, abort, expiry, its exchange's deletion -----> gone

Why it is once: one command decides, and it may be repeated, for of an epoch that is not above the ledger's nothing
happens. What was decided is carried out by the owners of the segments, which report the end in the epoch of ownership
in which they saw it: what an owner of before believes ends nothing.

A segment that is declared when its epoch has been committed is a replay: it has no queue, and what comes goes nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from clusterbroker.cluster.errors import AccessRefused, LimitReached, PreconditionFailed, exchange_text, no_exchange
from clusterbroker.cluster.ids import Epoch, QueueId

from . import changes as events
from . import commands as c
from .arguments import check_same, is_integer, same, type_name
from .changes import Change
from .entities import Exchange, Producer, Queue, Segment
from .exchange_rules import STAGING, check_equivalent
from .passing import LogClock
from .queue_index import QueueIndex
from .replicas import Replicas
from .topology import Topology
from .vhosts import Vhosts

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
    """The reason of a refusal: the epoch is over."""
    return f"fenced: producer '{producer}' has committed epoch {committed}, and {epoch} is over"


def replaced(producer: Producer, run: str) -> str:
    """The reason of a refusal: the run was replaced."""
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


class Due(NamedTuple):
    """What the leader has ended, DUE_MAX of each at most: a command has a bound."""

    vhost: str
    segments: tuple[str, ...]
    producers: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Transactions:
    """The commands about transactions. Producers and segments are in the ledgers of the topologies.

    Invariants: (1) a segment that does not discard has a staging queue of its name, and each staging queue a segment;
    (2) a segment has an exchange of its name until it ends; (3) a segment that is open and does not discard has an
    epoch above its producer's; (4) a segment has a producer in the ledger.
    """

    _clock: LogClock
    """Age of the log, ids of staging queues."""
    _vhosts: Vhosts
    _index: QueueIndex
    _replicas: Replicas
    """Places of staging queues."""

    # ---- opening ----

    def open(self, command: c.DeclareExchange, changes: list[Change]) -> Exchange:
        """Fold DeclareExchange of a staging exchange: the existing one, or a new one with its segment."""
        topology = self._vhosts.require(command.vhost)
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
        self._run_begins(topology, command, known, asked, changes)
        if queue is not None:
            changes.append(events.QueueDeclared(topology.adopt_queue(queue)))
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
            lived_ms=self._clock.lived_ms(command.lived_ms),
        )
        ledger.put(segment)
        exchange = Exchange(topology.vhost.name, command.name, STAGING, arguments=command.arguments)
        topology.exchanges[exchange.name] = exchange
        changes.extend((events.ExchangeDeclared(exchange), events.SegmentOpened(segment)))
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
            queue_id=self._clock.queue_id(),
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
        return self._replicas.placed(queue, command)

    def _run_begins(
        self,
        topology: Topology,
        command: c.DeclareExchange,
        known: Producer | None,
        asked: Opening,
        changes: list[Change],
    ) -> None:
        """A run that is new is the producer's current one, and ends what the one before has staged."""
        if known is None:
            known = Producer(topology.vhost.name, asked.producer, command.user, run=asked.run)
        elif known.run != asked.run:
            known = self._fence(topology, known, asked.run, changes)
        if known.epoch is None:
            lived_ms = max(known.lived_ms, self._clock.lived_ms(command.lived_ms))
            known = replace(known, at_ms=max(known.at_ms, command.at_ms), lived_ms=lived_ms)
        self._put_producer(topology, known, changes)

    def _fence(self, topology: Topology, producer: Producer, run: str, changes: list[Change]) -> Producer:
        """The producer with its new run: what those before have staged is dropped."""
        for segment in topology.ledger.of(producer.name):
            if segment.place is None and segment.run != run:
                self._drop(topology, segment, changes)
        fenced = (*producer.fenced_runs, producer.run) if producer.run else ()
        return replace(producer, run=run, fenced_runs=fenced[-FENCED_RUNS_MAX:])

    @staticmethod
    def _put_producer(topology: Topology, producer: Producer, changes: list[Change]) -> None:
        if not same(topology.ledger.producers.get(producer.name), producer):
            topology.ledger.producers[producer.name] = producer
            changes.append(events.ProducerChanged(producer.vhost, producer.name))

    # ---- the end of a segment ----

    def _drop(self, topology: Topology, segment: Segment, changes: list[Change]) -> None:
        if segment.queue_id:
            topology.end_queue(self._index.by_id[segment.queue_id], changes)
        topology.end_exchange(topology.exchanges[segment.name], changes)
        topology.ledger.remove(segment)
        changes.append(events.SegmentEnded(segment))

    def delete(self, segment: Segment, changes: list[Change]) -> bool:
        """Fold DeleteExchange of a staging exchange."""
        if segment.place is not None:
            raise AccessRefused(f"{exchange_text(segment.vhost, segment.name)} is committed: its rows are on their way")
        self._drop(self._vhosts.by_name[segment.vhost], segment, changes)
        return True

    def abort(self, command: c.AbortTransaction, changes: list[Change]) -> Outcome:
        """Fold AbortTransaction."""
        topology = self._vhosts.require(command.vhost)
        producer = topology.ledger.producers.get(command.producer)
        if producer is not None and (why := not_of(producer, command.user, command.is_administrator)):
            return Outcome("refused", 403, why)
        for name in command.transactions:
            segment = topology.ledger.segments.get(name)
            if segment is None or segment.place is not None:
                continue
            if (segment.producer, segment.epoch, segment.run) == (command.producer, command.epoch, command.run):
                self._drop(topology, segment, changes)
        return Outcome("aborted")

    def expire(self, command: c.ExpireTransactions, changes: list[Change]) -> None:
        """Fold ExpireTransactions."""
        topology = self._vhosts.require(command.vhost)
        for name in command.names:
            segment = topology.ledger.segments.get(name)
            if segment is not None and is_expired(segment, *self._judged_at(command)):
                self._drop(topology, segment, changes)

    def forget_producers(self, command: c.ForgetProducers, changes: list[Change]) -> None:
        """Fold ForgetProducers."""
        topology = self._vhosts.require(command.vhost)
        for name in command.names:
            producer = topology.ledger.producers.get(name)
            if producer is None or topology.ledger.of(name):
                continue
            if is_forgettable(producer, *self._judged_at(command)):
                del topology.ledger.producers[name]
                changes.append(events.ProducerChanged(producer.vhost, name))

    def _judged_at(self, command: c.ExpireTransactions | c.ForgetProducers) -> tuple[int, int]:
        """The log's age and 0; of an earlier release's command, which a log may still hold, 0 and its wall clock."""
        if command.lived_ms:
            return min(command.lived_ms, self._clock.time.lived_ms), 0
        return 0, command.at_ms

    def finish_segments(self, command: c.FinishSegments, changes: list[Change]) -> None:
        """Fold FinishSegments."""
        for queue_id, epoch, unroutable in command.segments:
            queue = self._index.by_id.get(queue_id)
            if queue is None or not queue.staging:
                continue
            if (queue.owner, queue.incarnation, queue.epoch) != (command.node, command.incarnation, epoch):
                continue
            topology = self._vhosts.by_name[queue.vhost]
            segment = topology.ledger.segments[queue.name]
            if segment.place is None:
                continue
            self._drop(topology, segment, changes)
            if unroutable:
                producer = topology.ledger.producers[segment.producer]
                self._put_producer(topology, replace(producer, unroutable=producer.unroutable + unroutable), changes)

    def due(self, lived_ms: int) -> Iterator[Due]:
        """Expired segments and forgettable producers of a log of this age, by vhost."""
        for vhost, topology in self._vhosts.by_name.items():
            ledger = topology.ledger
            segments = tuple(name for name, segment in ledger.segments.items() if is_expired(segment, lived_ms))
            producers = tuple(
                name
                for name, producer in ledger.producers.items()
                if is_forgettable(producer, lived_ms) and not ledger.of(name)
            )
            for first in range(0, max(len(segments), len(producers)), DUE_MAX):
                yield Due(vhost, segments[first : first + DUE_MAX], producers[first : first + DUE_MAX])

    # ---- the commit ----

    def commit(self, command: c.CommitTransaction, changes: list[Change]) -> Outcome:
        """Fold CommitTransaction."""
        topology = self._vhosts.require(command.vhost)
        ledger = topology.ledger
        producer = ledger.producers.get(command.producer)
        refused = self._refusal(topology, producer, command)
        if refused is not None:
            return refused
        if producer is None:
            producer = Producer(topology.vhost.name, command.producer, command.user)
        if producer.epoch == command.epoch:
            self._drop_the_rest(topology, producer, changes)
            return Outcome("already")
        for place, name in enumerate(dict.fromkeys(command.transactions)):
            segment = replace(ledger.segments[name], place=place)
            ledger.put(segment)
            changes.append(events.SegmentCommitted(segment))
        if producer.run != command.run:
            producer = self._fence(topology, producer, command.run, changes)
        producer = replace(
            producer,
            epoch=command.epoch,
            rows=command.rows,
            at_ms=command.at_ms,
            ttl_ms=producer.ttl_ms if command.ttl_ms is None else command.ttl_ms,
            lived_ms=self._clock.lived_ms(command.lived_ms),
        )
        self._put_producer(topology, producer, changes)
        self._drop_the_rest(topology, producer, changes)
        return Outcome("committed")

    def _drop_the_rest(self, topology: Topology, producer: Producer, changes: list[Change]) -> None:
        """What was staged for an epoch that is over, and did not win."""
        assert producer.epoch is not None, "an epoch was committed"
        for segment in topology.ledger.of(producer.name):
            if segment.place is None and segment.epoch <= producer.epoch:
                self._drop(topology, segment, changes)

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
        queue = self._index.by_id[segment.queue_id]
        if queue.gap_epoch or queue.begins_empty:
            reason = f"transaction '{name}' has lost rows with the copies that held them"
            return Outcome("refused", 410, reason)
        if segment.user != command.user and not command.is_administrator:
            return Outcome("refused", 403, f"transaction '{name}' belongs to user '{segment.user}'")
        return None


def _check_same(existing: Exchange, command: c.DeclareExchange) -> None:
    """Raise 406 unless a redeclare says the same."""
    check_equivalent(existing, command)
    where = exchange_text(existing.vhost, existing.name)
    for word in _WORDS:
        check_same(where, word, command.arguments.get(word), existing.arguments.get(word))


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
