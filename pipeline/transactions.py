"""Staging: the client's half of exactly-once. docs/design/005-spark.md has the broker's half, and why it holds (waits).

    attempt   Staging.segment(exchange)     an exchange of its own, `txn.<uuid>`, for each target; rows go there
    driver    commit(transaction, names)    one message; the broker publishes the rows of these segments, once
              abort(transaction, names)     drops what is not committed

A commit may be repeated until its answer is heard: the broker does it once per producer and epoch. An attempt is never
continued on another connection, for what had arrived over the old one is not known: it fails, and Spark runs it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.bulk import Nacked, Publisher, Unroutable
from clusterbroker.pipeline.connection import ConnectionLost, PublisherError, Refused
from clusterbroker.pipeline.options import Options

EXCHANGE: Final = "amq.txn"
STAGING: Final = "x-staging"
SEGMENTS_MAX: Final = 64
"""Target exchanges of one attempt."""
TRANSACTIONS_MAX: Final = 10_000
HELD_S: Final = 5.0
"""So long the answer to a commit may wait for the rows of earlier batches."""
FENCED: Final = 409
GONE: Final = 404
_FENCED_TEXT: Final = "fenced:"


class TransactionRefused(PublisherError):
    """The broker does not commit this, whoever asks again. `args`: code and reason."""

    def __str__(self) -> str:
        hint = ". Give txnExpiresMs more time than a batch takes" if self.args[0] == GONE else ""
        return f"the broker does not commit: {self.args[1]} ({self.args[0]}){hint}"


class Fenced(TransactionRefused):
    """A later batch of this producer is committed, or a newer run of it has begun."""

    def __str__(self) -> str:
        return (
            f"{self.args[1]}. Is another query running with this txnAppId or checkpoint, or was a checkpoint reset? "
            "Give a query of its own another txnAppId"
        )


class NotStaged(PublisherError):
    """What an attempt was to stage, or had staged, is not at the broker: the attempt fails."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is committed once: an epoch (micro-batch) of a producer (query), by one of its runs."""

    producer: str
    epoch: int
    run: str

    def fields(self) -> dict[str, Any]:
        return {"producer": self.producer, "epoch": self.epoch, "run": self.run}


class Staging:
    """The segments of one task attempt, opened over its publisher's connection."""

    def __init__(self, publisher: Publisher, options: Options, transaction: Transaction, partition: int, attempt: int):
        self._publisher = publisher
        self._options = options
        self._transaction = transaction
        self._place = (partition, attempt)
        self._names: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the segments, in the order in which they were opened."""
        return tuple(self._names.values())

    def segment(self, target: str) -> str:
        """The exchange to publish to in the place of `target`. Raises ConnectionLost, Refused, Fenced,
        NotStaged."""
        if target not in self._names:
            if len(self._names) == SEGMENTS_MAX:
                raise NotStaged(
                    f"one task writes to more than {SEGMENTS_MAX} exchanges: partition the frame by exchange"
                )
            name = f"txn.{uuid.uuid4().hex}"
            try:
                self._publisher.connection.call(
                    "exchange.declare", 0, name, STAGING, False, True, False, False, False, self._arguments(target),
                    answer="exchange.declare-ok", timeout_s=self._options.confirm_timeout_ms / 1000,
                )  # fmt: skip
            except Refused as error:
                raise _understood(error) from None
            self._names[target] = name
        return self._names[target]

    def understood(self, error: PublisherError) -> PublisherError:
        """What ended the attempt, in words of who wrote the rows: segments are nothing that they have named."""
        if isinstance(error, Unroutable):
            code, text, exchange, key = error.args
            named = {name: target for target, name in self._names.items()}
            return Unroutable(code, text, named.get(exchange, exchange), key)
        if isinstance(error, Nacked):
            return NotStaged(
                f"the broker did not take {error.args[0]} rows (basic.nack): this task has more than maxStagedBytes "
                f"({self._options.staged_bytes_max}), or what it staged has lost its copies. Raise it, or divide the "
                "frame into more partitions"
            )
        if isinstance(error, Refused) and error.args[0] == GONE and any(n in error.args[1] for n in self.names):
            return NotStaged(
                "what this task had staged is gone: it was older than txnExpiresMs "
                f"({self._options.transaction_expires_ms}; give it more time than a batch takes), or another query has "
                "begun with this txnAppId or checkpoint (give each its own)"
            )
        if isinstance(error, ConnectionLost) and self._names:
            return ConnectionLost(
                f"{error}. With exactly-once an attempt ends with its connection, and Spark runs the task again as "
                "often as spark.task.maxFailures says (a local master never, unless it is local[CORES,FAILURES])"
            )
        return error

    def _arguments(self, target: str) -> dict[str, Any]:
        partition, attempt = self._place
        return {
            "x-producer": self._transaction.producer,
            "x-epoch": self._transaction.epoch,
            "x-run": self._transaction.run,
            "x-target": target,
            "x-partition": partition,
            "x-attempt": attempt,
            "x-expires": self._options.transaction_expires_ms,
            "x-max-staged-bytes": self._options.staged_bytes_max,
        }


def _understood(error: Refused) -> PublisherError:
    """What a broker says to a staging exchange that it does not open."""
    text = str(error.args[1])
    if _FENCED_TEXT in text:
        return Fenced(FENCED, text[text.index(_FENCED_TEXT) :])
    if "unknown exchange type" in text:
        return Refused(error.args[0], text)
    return error


def commit(options: Options, transaction: Transaction, names: Sequence[str], rows: int) -> str:
    """Has the broker publish what is in these segments, in this order: "committed", or "already" when it was before.

    Repeated over all endpoints until it is answered, for as long as a confirm may take. Raises TransactionRefused,
    Fenced; ConnectionLost when nobody answers: it may have been done, and the same commit may be asked for again.
    """
    if len(names) > TRANSACTIONS_MAX:
        raise TransactionRefused(413, f"a batch of more than {TRANSACTIONS_MAX} transactions: use fewer partitions")
    body = {**transaction.fields(), "transactions": list(names), "rows": rows, "ttl_ms": options.producer_ttl_ms}
    answer = _answered(options, "commit", body, HELD_S)
    if answer["outcome"] == "refused":
        kind = Fenced if answer["code"] == FENCED else TransactionRefused
        raise kind(answer["code"], answer["reason"])
    return str(answer["outcome"])


def abort(options: Options, transaction: Transaction, names: Sequence[str]) -> None:
    """Drops these segments unless they are committed. Who cannot be told forgets them by themselves, later."""
    try:
        _answered(options, "abort", {**transaction.fields(), "transactions": list(names)[:TRANSACTIONS_MAX]})
    except PublisherError:
        pass


def status(options: Options, producer: str) -> dict[str, Any]:
    """What the broker knows of a producer. Raises ConnectionLost, Refused."""
    return _answered(options, "status", {"producer": producer})


def _answered(options: Options, key: str, body: Mapping[str, Any], held_s: float = 0.0) -> dict[str, Any]:
    """The first answer that is one. Raises ConnectionLost, Refused."""
    line = Line(options, f"clusterbroker {key}")
    try:
        return line.ask(EXCHANGE, key, body, f"producer '{body['producer']}'", held_s)
    finally:
        line.close()
