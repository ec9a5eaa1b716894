"""The outcomes that change a message: modified (3.4.5) and rejected with an error (3.4.3).

A modified message returns, perhaps counted as failed, not for this link, or annotated. The dead letter of a rejected
one has the error in its annotations.

In rcv-settle-mode second the client hears that it is settled when that is committed, unless the message may come again
on the same link at once, and only of what was carried out (`remote.settling`): of a link that is suspended meanwhile
the rest is decided by the maps of its next attach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clusterbroker.broker.access.receiver import RETURNS_AT_ONCE, give_back
from clusterbroker.broker.content.changes import change_of, rejection_of
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.queues.handle import CommitPart, Decided, Modification, QueueHandle
from clusterbroker.broker.queues.subscription import attach_of
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp10.performatives import Accepted, Composite, Modified, Rejected


def modify(node: Node, entries: Sequence[Any], outcome: Modified) -> None:
    """Carries the outcome out for deliveries of a session. Annotations that are too long are left out: the message
    returns all the same."""
    try:
        change = change_of(outcome.message_annotations or {})
    except ValueError:
        change = b""
    counted = outcome.delivery_failed
    by_link: dict[str, list[Any]] = {}
    for entry in entries:
        by_link.setdefault(entry[1].owner.link if outcome.undeliverable_here else "", []).append(entry)
    for link, own in by_link.items():
        modification = Modification(counted, link, change) if link or change else None
        give_back(node, own, requeue=True, counted=counted, modification=modification)


def reject(node: Node, entries: Sequence[Any], outcome: Rejected) -> None:
    """Carries the outcome out for deliveries of a session."""
    give_back(node, entries, requeue=False, counted=False, change=error_of(outcome))


def return_together(
    node: Node, entries: Sequence[Any], outcome: Composite, then: Callable[[Sequence[Any]], None], may_come_again: bool
) -> None:
    """Gives deliveries of a session back to their queues. `then(some)` when what the log must hear of that (counts,
    annotations, exclusions, and what a link does not hold any more) is committed on the copies in sync.

    `may_come_again`: their link is attached, and may be handed the same messages in this very turn, under the tags that
    they had: then the client has to hear first that those are free (2.6.12), unless they are not for this link."""
    some, rest = entries[:RETURNS_AT_ONCE], entries[RETURNS_AT_ONCE:]
    if is_early := may_come_again and not (isinstance(outcome, Modified) and outcome.undeliverable_here):
        then(some)
    if isinstance(outcome, Modified):
        modify(node, some, outcome)
    else:
        give_back(node, some, requeue=True, counted=False)
    if not is_early:
        ticket = Ticket(1, 1, lambda _: then(some))
        for queue in dict.fromkeys(entry[1].ring.owner for entry in some):
            queue.commit(CommitPart(), ticket, node.now_ms)
        node.barrier(ticket)
    if rest:
        node.soon(lambda: return_together(node, rest, outcome, then, may_come_again))


def error_of(outcome: Composite) -> bytes:
    """What the letter of a rejected message is annotated with."""
    error = outcome.error if isinstance(outcome, Rejected) else None
    return b"" if error is None else rejection_of(error.condition, error.description or "", error.info or {})


def settle_first(
    node: Node,
    link: Any,
    outcomes: Sequence[tuple[int, Composite]],
    then: Callable[[list[tuple[int, Composite]], bool], None],
) -> None:
    """A client comes back with these outcomes, by seq. `then(rest, void)`, perhaps later: in rcv-settle-mode second
    they are committed by then, for it will be told that they are, or some are `void`; else the rest is to be carried
    out."""
    ends = list(outcomes) if link.rcv_second else []
    waits, is_void = 1 + len(ends), False

    def done(_: Sequence[Any], void: Sequence[Any]) -> None:
        nonlocal waits, is_void
        waits, is_void = waits - 1, is_void or bool(void)
        if not waits:
            then([] if ends else list(outcomes), is_void)

    for seq, outcome in ends:
        entries = [(0, link.credit, seq)]
        if isinstance(outcome, Accepted | Rejected):
            settle_together(node, entries, outcome, done)
        else:
            return_together(node, entries, outcome, lambda some: done(some, []), may_come_again=False)
    done([], [])


def settle_together(
    node: Node, entries: Sequence[Any], outcome: Accepted | Rejected, then: Callable[[list[Any], list[Any]], None]
) -> None:
    """Carries the outcome out for deliveries of a session. `then(done, void)` when what is done is committed on the
    copies in sync; `void` are no client's of this node any more (`CommitPart.void`)."""
    parts: dict[QueueHandle, CommitPart] = {}
    kind, change = "reject" if isinstance(outcome, Rejected) else "ack", error_of(outcome)
    queues = [entry[1].ring.owner for entry in entries]
    for queue, (_, consumer, seq) in zip(queues, entries, strict=True):
        parts.setdefault(queue, CommitPart()).settles.append(Decided(seq, kind, attach_of(consumer), change))
    waits = 1 + len(parts)

    def settled(_: Ticket) -> None:
        void = [entry for queue, entry in zip(queues, entries, strict=True) if entry[2] in parts[queue].void]
        then([entry for entry in entries if entry not in void] if void else list(entries), void)

    def brought() -> None:
        nonlocal waits
        waits -= 1
        if not waits:
            ticket = Ticket(1, 1, settled)
            for queue, part in parts.items():
                queue.commit(part, ticket, node.now_ms)
            node.barrier(ticket)

    for queue, part in parts.items():
        if kind == "reject":
            queue.preload([one.seq for one in part.settles], brought)
        else:
            brought()
    brought()
