"""amq.txn: commit, abort and status of transactions (docs/design/005-spark.md has the contract).

Each is answered from the wiring log or the map, so any node can be asked, and asked again. What holds the rows of a
segment says how many they are; who does not answer in time is not waited for.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from clusterbroker.broker.access.services import Request, Service
from clusterbroker.broker.transactions.status import status_of
from clusterbroker.cluster.errors import NotFound
from clusterbroker.cluster.wiring.commands import AbortTransaction, CommitTransaction
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.transactions import (
    EPOCH_MAX,
    EXPIRES_TTL_MS,
    NAMES_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    RUN_BYTES_MAX,
    TRANSACTIONS_MAX,
    Outcome,
    not_of,
)

UNAVAILABLE: Final = "unavailable, may be repeated"
ROWS_MAX: Final = 2**53


def _who(request: Request) -> dict[str, Any]:
    """Vhost, producer, epoch, run and names of a request, and whose it is."""
    access = request.access
    return {
        "at_ms": access.node.now_ms,
        "user": access.principal,
        "is_administrator": access.is_administrator,
        "vhost": access.vhost.name,
        "producer": _producer(request),
        "epoch": request.integer("epoch", 0, EPOCH_MAX),
        "run": request.text("run", RUN_BYTES_MAX),
        "transactions": _names(request),
    }


def _producer(request: Request) -> str:
    name = request.text("producer", PRODUCER_BYTES_MAX)
    if name[0] == "\0":
        raise request.invalid("'producer' must not begin with NUL")
    return name


def _names(request: Request) -> tuple[str, ...]:
    names = request.body.get("transactions")
    if not isinstance(names, list) or not all(isinstance(name, str) and 0 < len(name) <= 255 for name in names):
        raise request.invalid("'transactions' must be a list of names")
    if len(names) > TRANSACTIONS_MAX:
        raise request.invalid(
            f"'transactions' has {len(names)} names, at most {TRANSACTIONS_MAX} are committed at once"
        )
    if (size := sum(map(len, names))) > NAMES_BYTES_MAX:
        raise request.invalid(
            f"'transactions' has names of {size} bytes, at most {NAMES_BYTES_MAX} are committed at once"
        )
    if len(set(names)) < len(names):
        raise request.invalid("'transactions' names one twice")
    if any(not name.isascii() for name in names):
        raise request.invalid("'transactions' has a name that no staging exchange can have")
    return tuple(names)


def commit(request: Request) -> None:
    request.only("producer", "epoch", "run", "transactions", "rows", "ttl_ms")
    node = request.access.node
    who = _who(request)
    command = CommitTransaction(
        rows=request.integer("rows", 0, ROWS_MAX, 0),
        ttl_ms=request.integer("ttl_ms", *EXPIRES_TTL_MS) if "ttl_ms" in request.body else None,
        **who,
    )

    def judged(applied: Applied) -> None:
        if applied.error is None and applied.result.code == 0:
            producer = command.vhost, command.producer
            node.moving.pace.hold(producer, command.epoch, partial(_judged, request, applied))
        else:
            _judged(request, applied)

    node.propose(command, judged)


def abort(request: Request) -> None:
    request.only("producer", "epoch", "run", "transactions")
    request.access.node.propose(AbortTransaction(**_who(request)), partial(_judged, request))


def _judged(request: Request, applied: Applied) -> None:
    """Answers what the wiring says."""
    if not _refused(request, applied):
        outcome: Outcome = applied.result
        request.answer(
            {"outcome": outcome.outcome, "code": outcome.code, "reason": outcome.reason},
            refused=outcome.outcome == "refused",
        )


def _refused(request: Request, applied: Applied) -> bool:
    """Whether it could not be ordered, and so was answered."""
    if applied.error is None:
        return False
    if isinstance(applied.error, NotFound):  # the vhost is gone, and its clients are about to be
        request.refuse(404, applied.error.text)
    else:
        request.refuse(503, UNAVAILABLE)
    return True


def status(request: Request) -> None:
    request.only("producer")
    access = request.access
    name, vhost, node = _producer(request), access.vhost.name, access.node
    producer = node.map.producer(vhost, name)
    # who knows the names of segments may publish into them and delete them
    if producer is not None and (why := not_of(producer, access.principal, access.is_administrator)):
        request.refuse(403, why)
        return
    segments = [segment for segment in node.map.segments_of(vhost, name) if not segment.discards]

    def counted(rows: dict[str, tuple[int, int]]) -> None:
        request.answer({"outcome": "status", "code": 0, "reason": "", **status_of(name, producer, segments, rows)})

    node.moving.count(vhost, segments, counted)


AMQ_TXN: Final = Service(True, {"commit": commit, "abort": abort, "status": status})
