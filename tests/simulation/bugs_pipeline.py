"""Bugs in what pipelines use: as bugs.py, in runs that have of `workload.PIPELINE` what the bug is about."""

from __future__ import annotations

from typing import Any

from tests.simulation.bugs import mutation, patch

BATCHES = ("batches",)

# -- micro-batches


@mutation("a queue forgets which rows of a segment it has", pipeline=BATCHES)
def forgotten_rows() -> None:
    from broker.proxy import intake
    from broker.queues import moved

    def make(_: Any) -> Any:
        return lambda _queue, _moved: 0

    patch(moved, "known_rows", make)
    patch(intake, "known_rows", make)


@mutation("a commit that is repeated is refused", pipeline=BATCHES)
def repeated_and_refused() -> None:
    from cluster.transactions import Outcome, Transactions, over

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

    from cluster.transactions import Transactions

    def make(fence: Any) -> Any:
        return lambda *arguments: replace(fence(*arguments), epoch=None)

    patch(Transactions, "_fence", make)


@mutation("a batch does not wait for the one before", pipeline=BATCHES)
def impatient_batches() -> None:
    from cluster.view import ClusterView

    patch(ClusterView, "moves_before", lambda _before: lambda _self, _segment: False)
