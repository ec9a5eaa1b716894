"""Documents of exchanges and bindings.

The default exchange is stored nowhere, nor are its bindings, one to each queue by the queue's name: both are added
here. Its name is empty; in a path it is `amq.default`.

A binding is named, among those with the same ends, by its `properties_key`: the routing key, percent-encoded, then `~`
and a hash of the arguments if there are any; `~` alone for an empty key without arguments. RabbitMQ hashes otherwise:
the hash is opaque to clients, which take it from one answer and hand it to the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote_plus, unquote

from clusterbroker.cluster.wiring.arguments import digest
from clusterbroker.cluster.wiring.deduplication import cache_queue
from clusterbroker.cluster.wiring.delays import delay_queue
from clusterbroker.cluster.wiring.entities import Binding, DestinationKind, Exchange
from clusterbroker.cluster.wiring.exchange_rules import DEDUPLICATING, DELAYED

from .connections import publishers
from .errors import object_not_found
from .history import Get
from .paging import Listing
from .reading import Document, Reading, plain_table, same
from .statistics import EXCHANGE_FIELDS

DEFAULT_NAME: Final = "amq.default"
_SERVERS_OWN: Final = "rmq-internal"
_PUBLISH: Final[dict[str, Get]] = {"publish": lambda row: row.publish}


_COUNTED: Final = (
    (DELAYED, delay_queue, "messages_delayed"),
    (DEDUPLICATING, cache_queue, "cached_values"),
)
"""What is ready in the queue of an exchange of a type, under this name."""


def _default_exchange(vhost: str) -> Exchange:
    return Exchange(vhost=vhost, name="", type="direct")


def open_vhosts(reading: Reading, vhost: str | None) -> list[str]:
    """The one that is asked for, or all that the user may enter."""
    return reading.principal.open_vhosts() if vhost is None else [vhost]


# -- exchanges ------------------------------------------------------------------------------------------------


def listing(reading: Reading, vhost: str | None = None) -> Listing[Exchange]:
    """Exchanges of a vhost, or of all that the user may enter."""
    found = [
        exchange
        for name in open_vhosts(reading, vhost)
        for exchange in (
            _default_exchange(name),
            *sorted(reading.map.exchanges(name), key=lambda exchange: exchange.name),
        )
    ]

    def quick(path: str) -> Callable[[Exchange], Any] | None:
        if path in ("name", "vhost", "type", "durable", "auto_delete", "internal"):
            return lambda exchange: getattr(exchange, path)
        return None

    return Listing(
        found,
        name=lambda exchange: exchange.name,
        place=lambda exchange: (exchange.vhost, exchange.name),
        document=lambda exchange: document(reading, exchange),
        quick=quick,
    )


def find(reading: Reading, vhost: str, name: str) -> Exchange:
    """The exchange of this name in a path. Refused (404) without one."""
    if name in ("", DEFAULT_NAME):
        return _default_exchange(vhost)
    exchange = reading.map.exchange(vhost, name)
    if exchange is None:
        raise object_not_found()
    return exchange


def document(reading: Reading, exchange: Exchange) -> Document:
    """One exchange, as in a list."""
    answer: Document = {
        **same(exchange, "auto_delete", "durable", "internal", "name", "type", "vhost"),
        "arguments": plain_table(exchange.arguments),
        "user_who_performed_action": _SERVERS_OWN if exchange.name[:4] in ("", "amq.") else "",
    }
    if exchange.name:
        policy = reading.map.exchange_settings(exchange).policy
        if policy is not None:
            answer["policy"] = policy
    for kind, name_of, field in _COUNTED:
        queue = reading.map.queue(exchange.vhost, name_of(exchange.name))
        if exchange.type == kind or (kind == DELAYED and queue is not None and queue.key_bits):
            track = None if queue is None else reading.replica.queue_track(queue)
            answer[field] = 0 if track is None else track.row.ready
    told = reading.replica.exchanges.get((exchange.vhost, exchange.name))
    if told:
        answer["message_stats"] = reading.counted("msg_rates", tuple(told.values()), EXCHANGE_FIELDS)
    return answer


def full(reading: Reading, vhost: str, name: str) -> Document:
    """One exchange, which channels publish to it, and into which queues it publishes."""
    exchange = find(reading, vhost, name)
    answer = document(reading, exchange)
    answer["incoming"] = publishers(reading, vhost, exchange.name)
    answer["outgoing"] = []
    flows = reading.replica.flows_of_exchange.get((vhost, exchange.name), {})
    for _, told in sorted(flows.items()):
        tracks = tuple(told.values())
        queue = reading.map.queue_by_id(tracks[0].row.queue_id)  # type: ignore[arg-type]
        if queue is not None:
            stats = reading.counted("msg_rates", tracks, _PUBLISH)
            answer["outgoing"].append({"queue": {"name": queue.name, "vhost": queue.vhost}, "stats": stats})
    answer["may"] = reading.principal.may(vhost, exchange.name)
    return answer


# -- bindings -------------------------------------------------------------------------------------------------


def properties_key(routing_key: str, arguments: dict[str, Any]) -> str:
    """What names a binding among those with the same ends."""
    if not routing_key and not arguments:
        return "~"
    key = quote_plus(routing_key, safe="")
    if not arguments:
        return key
    return f"{key}~{digest(arguments)}"


def binding_listing(bindings: Iterable[Binding]) -> Listing[Binding]:
    """Bindings in the order of their names."""
    found = sorted(bindings, key=_binding_place)

    def quick(path: str) -> Callable[[Binding], Any] | None:
        if path in ("vhost", "source", "destination", "routing_key"):
            return lambda binding: getattr(binding, path)
        return None

    return Listing(
        found,
        name=lambda binding: binding.source,
        place=_binding_place,
        document=binding_document,
        quick=quick,
    )


def _binding_place(binding: Binding) -> tuple[str, ...]:
    key = properties_key(binding.routing_key, binding.arguments)
    return (binding.vhost, binding.source, binding.destination_kind, binding.destination, key)


def binding_document(binding: Binding) -> Document:
    """One binding."""
    return {
        **same(binding, "destination", "routing_key", "source", "vhost"),
        "arguments": plain_table(binding.arguments),
        "destination_type": binding.destination_kind,
        "properties_key": properties_key(binding.routing_key, binding.arguments),
    }


def _implied(vhost: str, queue: str) -> Binding:
    return Binding(vhost, "", queue, "queue", queue)


def all_bindings(reading: Reading, vhost: str | None = None) -> list[Binding]:
    """Those of a vhost, or of all that the user may enter; the implied ones too."""
    found: list[Binding] = []
    for name in open_vhosts(reading, vhost):
        found.extend(_implied(name, queue.name) for queue in reading.map.queues(name) if not queue.part_of)
        found.extend(reading.map.bindings(name))
    return found


def bindings_from(reading: Reading, vhost: str, name: str) -> Sequence[Binding]:
    """Those that leave an exchange. Refused (404) without one."""
    exchange = find(reading, vhost, name)
    if not exchange.name:
        return [_implied(vhost, queue.name) for queue in reading.map.queues(vhost) if not queue.part_of]
    return reading.map.bindings_from(vhost, exchange.name)


def bindings_to(reading: Reading, vhost: str, kind: DestinationKind, name: str) -> Sequence[Binding]:
    """Those that end at a queue or an exchange. Refused (404) without one."""
    if kind == "exchange":
        exchange = find(reading, vhost, name)
        return reading.map.bindings_to(vhost, "exchange", exchange.name) if exchange.name else ()
    if reading.map.queue(vhost, name) is None:
        raise object_not_found()
    return (_implied(vhost, name), *reading.map.bindings_to(vhost, "queue", name))


def bindings_between(
    reading: Reading, vhost: str, source: str, kind: DestinationKind, destination: str
) -> list[Binding]:
    """Those from an exchange to a queue or an exchange. Refused (404) when an end is missing."""
    exchange = find(reading, vhost, source)
    return [binding for binding in bindings_to(reading, vhost, kind, destination) if binding.source == exchange.name]


def binding_named(
    reading: Reading, vhost: str, source: str, kind: DestinationKind, destination: str, key: str
) -> Binding:
    """The one of these with this properties key, as it came in the path (decoded once). Refused (404) without one."""
    for binding in bindings_between(reading, vhost, source, kind, destination):
        named = properties_key(binding.routing_key, binding.arguments)
        if key in (named, unquote(named)):  # a client may not have escaped its escapes again
            return binding
    raise object_not_found()
