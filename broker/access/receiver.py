"""What one session receives: single messages, consumers and how they come to their queues, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.errors import Refusal, access_refused, not_implemented, resource_locked
from clusterbroker.broker.queues.handle import GONE, QueueHandle, Taken
from clusterbroker.broker.queues.subscription import LocalConsumer, Source
from clusterbroker.broker.queues.watch import Delivery
from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.access.questions import Question
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.counts import ChannelCounts

RETURNS_AT_ONCE: Final = 5_000
RETURN_STEPS: Final = 6
"""A delivery that returns to its queue; of many sessions that end together as many return at once as of one."""
CONSUMER_STEPS: Final = 20
"""A consumer that goes."""


class Consumer(LocalConsumer, Protocol):
    """A consumer of a session."""

    @property
    def queue(self) -> Source:
        """Its deliveries come from there."""

    @property
    def reads_to_an_end(self) -> bool:
        """The broker cancels it when it has had everything: so whatever else ends it must be told otherwise."""


class Getting(Protocol):
    """A session that takes single messages."""

    @property
    def access(self) -> Authorization: ...

    @property
    def counts(self) -> ChannelCounts: ...

    def hold(self, queue: QueueHandle, seq: int | None) -> int:
        """The tag of the next delivery. The session holds `seq` of the queue until it is settled; None: it holds
        nothing."""


class Got(NamedTuple):
    """A message that was taken from a queue."""

    message: Message
    redelivered: bool
    tag: int
    """Of the session."""
    remaining: int
    """Messages ready behind it."""


def get(
    session: Getting, name: str, question: Question, then: Callable[[Got | None], None], *, settled: bool,
    operation: str = "get",
) -> None:  # fmt: skip
    """Takes the head of a queue, which may be at another node (amqp-rules 5.5: basic.get). `then(None)`: nothing is
    ready. `settled`: the message leaves the queue at once. `operation`: the request's name in refusals. Raises Refusal;
    what the owner refuses goes to the question."""
    access = session.access
    access.check("read", "queue", name)
    queue, node, vhost = access.queue(name), access.node, access.vhost.name
    if queue.settings.queue_type == STREAM:
        raise not_implemented(f"{operation} not supported by stream '{name}' in vhost '{vhost}'")
    if queue.settings.single_active_consumer and queue.settings.queue_type == "quorum":
        raise resource_locked(
            f"cannot obtain access to locked queue '{name}' in vhost '{vhost}'. {operation} operations are not "
            "supported by quorum queues with single active consumer"
        )

    @question.answers
    def taken(answer: Taken | str | None) -> None:
        if not question.awaits():
            if isinstance(answer, tuple):
                queue.requeue(answer[0], False)
        elif isinstance(answer, str):
            question.refuse(access_refused(f"queue '{name}' in vhost '{vhost}' {answer}"))
        elif answer is None:
            session.counts.get_empty += 1
            queue.ring.got_empty += 1
            then(None)
        else:
            then(_got(session, queue, answer, settled))

    question.ask(queue)
    queue.get(node.now_ms, taken, no_ack=settled)


def _got(session: Getting, queue: QueueHandle, answer: Taken, settled: bool) -> Got:
    seq, message, redelivered, count = answer
    access, counts = session.access, session.counts
    try:
        message = queue.shown(seq, message, redelivered, count)
    except Exception as error:
        queue.requeue(seq, False)
        access.node.stumbled(queue, error)
        raise
    counts.redelivered += redelivered
    if settled:
        counts.get_no_ack += 1
        queue.ring.got_no_ack += 1
        tag = session.hold(queue, None)
        queue.settle(seq)
    else:
        counts.got += 1
        queue.ring.got += 1
        tag = session.hold(queue, seq)
    if (watch := access.node.watches.get(access.vhost.name)) is not None:
        watch.delivered(Delivery(session, queue.name, "", tag, message, redelivered, not settled))
    return Got(message, redelivered, tag, queue.ready)


def attach(
    access: Authorization, queue: QueueHandle, consumer: Consumer, then: Callable[[Refusal | None], None]
) -> None:
    """Asks the owner of the queue, which may be read (`Authorization.check`). `then(None)`: deliveries follow. A
    session that does not want the consumer any more by then has to unsubscribe it."""

    def subscribed(refused: str) -> None:
        if refused == GONE:
            then(access.no_queue(queue.name))
        elif refused:
            then(access_refused(f"queue '{queue.name}' in vhost '{access.vhost.name}' {refused}"))
        else:
            then(None)

    queue.subscribe(consumer, access.node.now_ms, subscribed)


def give_back(
    node: Node, entries: Sequence[tuple[Any, Any, int]], *, requeue: bool, counted: bool, until: int | None = None
) -> None:
    """Deliveries of a ledger return to their queues, or are rejected; of very many some in later turns, and all of them
    when the node has done what is to be done at once (`until`, of `Labour.done`)."""
    at_once = RETURNS_AT_ONCE if until is None or node.labour.done < until else 0
    for _, consumer, seq in entries[:at_once]:
        queue = consumer.ring.owner
        if requeue:
            node.setting_aside.work(queue, queue.requeue, seq, counted)
        else:
            node.setting_aside.work(queue, queue.reject, seq)
        consumer.ring.mark()
    node.labour.done += RETURN_STEPS * len(entries[:at_once])
    rest = entries[at_once:]
    if rest:
        node.labour.done += STEPS_AT_ONCE
        node.soon(lambda: give_back(node, rest, requeue=requeue, counted=counted))


def let_go(node: Node, consumers: Sequence[Consumer], until: int) -> None:
    """Consumers of a session that has ended leave their queues; later, when the node has done so much. They get nothing
    meanwhile, for the ledger of such a session does not flow."""
    if node.labour.done < until:
        for subscription in consumers:
            queue = subscription.queue
            if not queue.deleted:
                node.setting_aside.work(queue, queue.unsubscribe, subscription, node.now_ms)
        node.labour.done += CONSUMER_STEPS * len(consumers)
    elif consumers:
        node.soon(lambda: let_go(node, consumers, node.labour.done + STEPS_AT_ONCE))
