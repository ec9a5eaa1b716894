"""Bugs in what pipelines use: as bugs.py, in runs that have of `workload.PIPELINE` what the bug is about."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.simulation.bugs import mutation, patch

BATCHES = ("batches",)
STREAM = ("stream",)
LEASES = ("leases",)
CLOCKS = ("clocks",)

# -- micro-batches


@mutation("a queue forgets which rows of a segment it has", pipeline=BATCHES)
def forgotten_rows() -> None:
    from clusterbroker.broker.queues.local_queue import LocalQueue

    patch(LocalQueue, "known_rows", lambda _known: lambda _self, _moved: 0)


@mutation("a commit that is repeated is refused", pipeline=BATCHES)
def repeated_and_refused() -> None:
    from clusterbroker.cluster.wiring.transactions import Outcome, Transactions, over

    def make(refusal: Any) -> Any:
        def strict(self: Any, topology: Any, producer: Any, command: Any) -> Any:
            if producer is not None and producer.epoch == command.epoch:
                return Outcome("refused", 409, over(producer.name, producer.epoch, command.epoch))
            return refusal(self, topology, producer, command)

        return strict

    patch(Transactions, "_refusal", make)


@mutation("the ledger forgets the epoch with a new run", pipeline=BATCHES)
def forgotten_epoch() -> None:
    from msgspec.structs import replace

    from clusterbroker.cluster.wiring.transactions import Transactions

    def make(fence: Any) -> Any:
        return lambda *arguments: replace(fence(*arguments), epoch=None)

    patch(Transactions, "_fence", make)


@mutation("a batch does not wait for the one before", pipeline=BATCHES)
def impatient_batches() -> None:
    from clusterbroker.cluster.wiring.view import ClusterView

    patch(ClusterView, "moves_before", lambda _before: lambda *_: False)


# -- streams


@mutation("what a copy has moved into files counts as committed", pipeline=STREAM)
def filed_is_committed() -> None:
    from clusterbroker.broker.streams.stream import Stream

    def make(begin: Any) -> Any:
        def trusting(self: Any, now_ms: int) -> None:
            begin(self, now_ms)
            self.log.synced = True

        return trusting

    patch(Stream, "begin_epoch", make)


@mutation("readers of a stream are shown what is not committed", pipeline=STREAM)
def shown_at_once() -> None:
    from clusterbroker.broker.streams.stream import Stream

    patch(Stream, "_end", lambda _: property(lambda self: self.ring.emitted_end()))


@mutation("a cut leaves a stream's files as they are", pipeline=STREAM)
def uncut_files() -> None:
    from clusterbroker.broker.streams.past import Past

    patch(Past, "cut", lambda _: lambda _self, _from: None)


@mutation("retention takes the newest file as well", pipeline=STREAM)
def takes_the_newest() -> None:
    from clusterbroker.broker.streams.stream import Stream

    def make(retain: Any) -> Any:
        def hasty(self: Any) -> None:
            last = self.ring.past.files[-1].end - 1 if len(self.ring.past.files) > 3 else 0
            if last > self._trimmed:
                self._trimmed = last
                self.ring.trim(last)
            retain(self)

        return hasty

    patch(Stream, "_retain", make)


# -- leases


@mutation("the next owner does not know of a lease", pipeline=LEASES)
def forgotten_lease() -> None:
    from clusterbroker.broker.queues import queue

    patch(queue, "resumed", lambda _: lambda _queue, _now_ms: None)


@mutation("the next owner does not know which run has the lease", pipeline=LEASES)
def forgotten_runs() -> None:
    from clusterbroker.broker.queues.leasing import Leasing

    def make(resume: Any) -> Any:
        return lambda self, name, acknowledged, end, _runs, now_ms: resume(self, name, acknowledged, end, {}, now_ms)

    patch(Leasing, "resume", make)


@mutation("a lease is told before it is committed", pipeline=LEASES)
def told_at_once() -> None:
    from clusterbroker.broker.queues.leasing import Leasing

    patch(Leasing, "_when_safe", lambda _: lambda _self, act, _then: act())


@mutation("the last message of a range leaves with the answer", pipeline=LEASES)
def leaves_early() -> None:
    from clusterbroker.broker.queues.leasing import Leasing

    def make(answer: Any) -> Any:
        def short(self: Any, lease: Any) -> Any:
            told = answer(self, lease)
            if lease is not None and told.rows > 1:
                self._queue.ring.settle_held(told.end - 1, told.end - 1, 255)
            return told

        return short

    patch(Leasing, "_answer", make)


# -- clocks


@mutation(
    "the log's age is a wall clock's",
    only=("clock_at_start", "kill_all", "kill", "clock", "heal"),
    pipeline=BATCHES + CLOCKS,
)
def wall_clock_age() -> None:
    from clusterbroker.cluster.wiring.passing import Passing

    def lived_ms(self: Any, monotonic_ms: int) -> int:
        return 0 if self._base is None else monotonic_ms + self._offset_ms

    def make(proposal: Any) -> Any:
        def by_wall(self: Any, monotonic_ms: int, wall_ms: int, *more: Any, **named: Any) -> Any:
            said = proposal(self, monotonic_ms, wall_ms, *more, **named)
            return None if said is None else msgspec.structs.replace(said, lived_ms=max(said.lived_ms, wall_ms))

        return by_wall

    patch(Passing, "lived_ms", lambda _: lived_ms)
    patch(Passing, "proposal", make)


@mutation("what is too old is judged by the owner's clock alone", pipeline=CLOCKS)
def owners_clock() -> None:
    from clusterbroker.broker.node.log_clock import LogClock

    patch(LogClock, "ages_by", lambda _: lambda _self, now_ms: now_ms)
