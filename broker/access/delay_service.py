"""amq.delay: how much waits in a delayed exchange, the message that waits under a key, and its end.

docs/delayed-messages.md has bodies and answers. Management of AMQP 1.0 asks the same (`fronts.amqp10.management`). The
owner of the exchange's delay queue answers, as an operator's requests about single messages.

Rights: to read the exchange; to cancel, to write to it as well. What waits under a key may have any routing key, so who
is limited to some of them may do neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.access.errors import Refusal, access_refused, not_found
from clusterbroker.broker.access.services import Request, Service
from clusterbroker.broker.routing.delays import KEY_BYTES_MAX
from clusterbroker.broker.stats import inspection
from clusterbroker.broker.stats.inspection import Result, Told
from clusterbroker.cluster.wiring.delays import delay_queue

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.queues.handle import QueueHandle

NAME_BYTES_MAX: Final = 255
ANSWER_MS: Final = 35_000
"""So long a request waits for its turn, and for the owner; then it may be repeated."""
UNAVAILABLE: Final = "unavailable, may be repeated"


def waiting_in(access: Authorization, exchange: str, *, cancels: bool = False, by_key: bool = True) -> QueueHandle:
    """The queue in which the messages of a delayed exchange wait. Raises Refusal."""
    vhost = access.vhost.name
    access.check("read", "exchange", exchange)
    if cancels:
        access.check("write", "exchange", exchange)
    known = access.node.map.exchange(vhost, exchange)
    queue = access.vhost.queues.get(delay_queue(exchange))
    if known is None or queue is None or queue.entity.delays != exchange:
        raise not_found(f"no delayed exchange '{exchange}' in vhost '{vhost}'")
    topics = access.vhost.router.exchange_type(exchange) == "topic"
    if by_key and topics and access.rights.topic_limited(vhost, exchange):
        raise access_refused(
            f"exchange '{exchange}' in vhost '{vhost}': topic permissions or scopes limit user '{access.user}' to some "
            "routing keys, and what waits may have any"
        )
    return queue


def look(access: Authorization, queue: QueueHandle, key: str, told: Told) -> None:
    """The message that waits under this key: `result.shown`."""
    _ask(access, inspection.Request("delayed", queue.entity.queue_id, count=1, truncate=0, delay_key=key), told)


def cancel(access: Authorization, queue: QueueHandle, key: str, told: Told) -> None:
    """It waits no more: `result.done`, when that is durable."""
    _ask(access, inspection.Request("delete", queue.entity.queue_id, delay_key=key), told)


def due_ms(result: Result) -> int | None:
    """When the message that was looked for is due; None: there is none."""
    return result.shown[0].due_ms if result.shown else None


def _ask(access: Authorization, request: inspection.Request, told: Told) -> None:
    if access.node.inspects is None:
        told(None, inspection.UNAVAILABLE, UNAVAILABLE)
    else:
        access.node.inspects(request, told)


# -- the words of amq.delay


def _count(request: Request) -> None:
    """{"exchange"} -> {"outcome": "counted", "messages"}"""
    request.only("exchange")
    queue = _asked_for(request, by_key=False)
    if queue is not None:
        _patient(request)
        counted = request.answers(lambda ready, _: request.answer({"outcome": "counted", "messages": ready}))
        queue.counts(request.access.node.now_ms, counted)


def _stored(request: Request) -> None:
    """{"exchange", "key"} -> {"outcome": "stored", "messages": 1 or 0, "due_ms": ms since 1970, or null}"""
    request.only("exchange", "key")
    key, queue = request.text("key", KEY_BYTES_MAX), _asked_for(request)
    if queue is not None:

        def answer(found: Result) -> None:
            request.answer({"outcome": "stored", "messages": len(found.shown), "due_ms": due_ms(found)})

        look(request.access, queue, key, _told(request, answer))


def _cancel(request: Request) -> None:
    """{"exchange", "key"} -> {"outcome": "cancelled", "messages": 1, or 0 where nothing waits}"""
    request.only("exchange", "key")
    key, queue = request.text("key", KEY_BYTES_MAX), _asked_for(request, cancels=True)
    if queue is not None:

        def answer(found: Result) -> None:
            request.answer({"outcome": "cancelled", "messages": found.done})

        cancel(request.access, queue, key, _told(request, answer))


def _asked_for(request: Request, *, cancels: bool = False, by_key: bool = True) -> QueueHandle | None:
    """None: there is none, and the request is refused."""
    exchange = request.text("exchange", NAME_BYTES_MAX)
    try:
        return waiting_in(request.access, exchange, cancels=cancels, by_key=by_key)
    except Refusal as error:
        if error.kind != "not_found":
            raise
        request.refuse(404, error.text)
        return None


def _told(request: Request, answer: Callable[[Result], None]) -> Told:
    _patient(request)

    def told(result: Result | None, code: int, why: str) -> None:
        if result is None:
            request.refuse(code, why)
        else:
            answer(result)

    return request.answers(told)


def _patient(request: Request) -> None:
    request.patient(request.access.node.now_ms + ANSWER_MS)


AMQ_DELAY: Final = Service(needs_write=False, handlers={"count": _count, "stored": _stored, "cancel": _cancel})
