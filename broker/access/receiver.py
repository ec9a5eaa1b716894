"""What one session receives: single messages, consumers and how they come to their queues, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.errors import (
    Refusal,
    access_refused,
    not_implemented,
    precondition_failed,
    resource_error,
    resource_locked,
)
from clusterbroker.broker.access.readers import RangeReader, ReadingConsumer
from clusterbroker.broker.access.services import REPLY_TO
from clusterbroker.broker.content.formats import BASIC, translate
from clusterbroker.broker.queues.handle import GONE, Modification, QueueHandle, Taken
from clusterbroker.broker.queues.subscription import Source
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
CONSUMERS_IN_NEED_MAX: Final = 1000
"""Consumers of a client while the node's memory is low: they are what makes room, and a few do."""


class Consumer(ReadingConsumer, Protocol):
    """A consumer of a session."""

    @property
    def queue(self) -> Source:
        """Its deliveries come from there."""

    @property
    def reads_to_an_end(self) -> bool:
        """The broker cancels it when it has had everything: any other end is an error for its client."""


class Consuming(Protocol):
    @property
    def consumers(self) -> Sized: ...


class Attaching(Protocol):
    """A session that consumes."""

    access: Authorization
    deadlines: list[Callable[[int], bool]]
    """Called about twice a second with the time; True: it is over."""


class Getting(Protocol):
    """A session that takes single messages."""

    access: Authorization
    counts: ChannelCounts

    def hold(self, queue: QueueHandle, seq: int | None, message: Message) -> int:
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
    operation: str = "get", reads: int = BASIC, unfit: Callable[[Message], str] = lambda _: "",
) -> None:  # fmt: skip
    """Takes the head of a queue, which may be at another node (amqp-rules 5.5: basic.get). `then(None)`: nothing is
    ready. `settled`: the message leaves the queue at once. `operation`: the request's name in refusals. `reads`: the
    format of messages that the client understands (`content.formats`). `unfit`: why the client cannot be handed a
    message, which returns then, counted; or "". Raises Refusal; what the owner refuses goes to the question."""
    access = session.access
    access.check("read", "queue", name)
    queue, node, vhost = access.queue(name), access.node, access.vhost.name
    access.check_taking(queue, settled=settled)
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
            message = _shown(access, queue, answer, reads)
            if why := unfit(message):
                queue.requeue(answer[0], True)
                question.refuse(resource_error(f"message {answer[0]} of queue '{name}' in vhost '{vhost}': {why}"))
            else:
                then(_got(session, queue, answer, message, settled))

    question.ask(queue)
    queue.get(node.now_ms, taken, no_ack=settled)


def _shown(access: Authorization, queue: QueueHandle, answer: Taken, reads: int) -> Message:
    seq, message, redelivered, count = answer
    try:
        return translate(queue.shown(seq, message, redelivered, count), reads)
    except Exception as error:
        queue.requeue(seq, False)
        access.node.stumbled(queue, error)
        raise


def _got(session: Getting, queue: QueueHandle, answer: Taken, message: Message, settled: bool) -> Got:
    seq, _, redelivered, _ = answer
    access, counts = session.access, session.counts
    counts.redelivered += redelivered
    if settled:
        counts.get_no_ack += 1
        queue.ring.got_no_ack += 1
        tag = session.hold(queue, None, message)
        queue.settle(seq)
    else:
        counts.got += 1
        queue.ring.got += 1
        tag = session.hold(queue, seq, message)
    if (watch := access.node.watches.get(access.vhost.name)) is not None:
        watch.delivered(Delivery(session, queue.name, "", tag, message, redelivered, not settled))
    return Got(message, redelivered, tag, queue.ready)


def readable(access: Authorization, name: str, sessions: Iterable[Consuming], *, settled: bool = False) -> QueueHandle:
    """The queue for one more consumer of a client with these sessions, which may read there (`check`). `settled`: what
    it is handed is settled at once. Raises Refusal."""
    if access.node.low_on_memory and sum(len(one.consumers) for one in sessions) >= CONSUMERS_IN_NEED_MAX:
        access.check_memory(f"consume from queue '{name}' with a consumer more")
    queue = access.queue(name)
    access.check_taking(queue, settled=settled)
    return queue


def attach(
    session: Attaching, source: QueueHandle | RangeReader, consumer: Consumer, question: Question,
    then: Callable[[bool], None],
) -> None:  # fmt: skip
    """A consumer comes to its source: a queue, a stream or a lease (`readers`). `then(changed)`: deliveries follow;
    `changed`: rights did while the owner was asked, so the session has to review them. Raises Refusal; what the owner
    refuses goes to the question."""
    access, node = session.access, session.access.node
    generation, rights = node.authorization_generation, access.rights
    if isinstance(source, RangeReader):
        source.check(consumer)
        session.deadlines.append(source.overdue)

    @question.answers
    def subscribed(refused: str | Refusal) -> None:
        if not question.awaits():
            if not refused:
                source.unsubscribe(consumer, node.now_ms)
        elif isinstance(refused, Refusal):
            question.refuse(refused)
        elif refused == GONE:
            question.refuse(access.no_queue(source.name))
        elif refused:
            question.refuse(access_refused(f"queue '{source.name}' in vhost '{access.vhost.name}' {refused}"))
        else:
            then(node.authorization_generation != generation or access.rights is not rights)

    question.ask(source, lambda: source.unsubscribe(consumer, node.now_ms))
    source.subscribe(consumer, node.now_ms, subscribed)


class Replying(Protocol):
    """A session with an address of its own."""

    access: Authorization
    reply_key: str
    """"": it has none yet."""

    @property
    def vhost_name(self) -> str: ...

    def reply(self, message: Message) -> None:
        """A message to its address: settled, delivered at most once."""


def attach_replies(session: Replying) -> None:
    """Gives the session the address of its direct replies: one for each (amqp-rules 5.1). Raises Refusal."""
    if session.reply_key:
        raise precondition_failed("reply consumer already set")
    node = session.access.node
    session.reply_key = f"{REPLY_TO}.{node.secret_name()}"
    node.reply_targets[session.reply_key] = session


def detach_replies(session: Replying) -> None:
    """The address ends, if there is one."""
    session.access.node.reply_targets.pop(session.reply_key, None)
    session.reply_key = ""


def give_back(
    node: Node, entries: Sequence[tuple[Any, Any, int]], *, requeue: bool, counted: bool, until: int | None = None,
    modification: Modification | None = None, change: bytes = b"", lost: Modification | None = None,
) -> None:  # fmt: skip
    """Deliveries of a ledger return to their queues, or are rejected; of very many some in later turns, and all of them
    when the node has done what is to be done at once (`until`, of `Labour.done`). `modification`: how they return.
    `change`: annotations of the dead letters of those that are rejected. `lost`: how requests of pools return, whose
    worker has ended with them."""
    pools = node.map.pools.queues if lost is not None else {}
    at_once = RETURNS_AT_ONCE if until is None or node.labour.done < until else 0
    for _, consumer, seq in entries[:at_once]:
        queue = consumer.ring.owner
        if lost is not None and pools and (part := pools.get(queue.entity.queue_id)) and part.part == "requests":
            node.setting_aside.work(queue, queue.modify, seq, lost)
        elif modification is not None:
            node.setting_aside.work(queue, queue.modify, seq, modification)
        elif requeue:
            node.setting_aside.work(queue, queue.requeue, seq, counted)
        else:
            node.setting_aside.work(queue, queue.reject, seq, change)
        consumer.ring.mark()
    node.labour.done += RETURN_STEPS * len(entries[:at_once])
    rest = entries[at_once:]
    if rest:
        node.labour.done += STEPS_AT_ONCE
        node.soon(
            lambda: give_back(
                node, rest, requeue=requeue, counted=counted, modification=modification, change=change, lost=lost
            )
        )


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
