"""Documents of queues.

What is declared comes from the map and is always there; what happens comes from the owner's row, and its fields are
missing as long as nobody told one (RabbitMQ's clients know that: it does the same in a queue's first seconds).

Our own fields say who has the queue: `owner`, `epoch`, `replicas`, `in_sync`, `copies` (how far each is behind).
`leader`, `members` and `online` say the same in RabbitMQ's words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import asdict

from clusterbroker.broker.stats.rows import QueueRow
from clusterbroker.cluster.wiring.entities import Queue

from .connections import consumer_document, deliveries
from .errors import object_not_found
from .history import Track, quick
from .paging import Listing
from .reading import Document, Reading, moment, plain_table, same
from .statistics import DEPTH_FIELDS, QUEUE_FIELDS, QUEUE_GAUGES

QueueName = tuple[str, str]


def listing(reading: Reading, vhost: str | None = None) -> Listing[QueueName]:
    """Queues of a vhost, or of all that the user may enter; with `leader=NODE` those that this node leads."""
    names: Sequence[QueueName] = reading.replica.queue_names
    if vhost is not None:
        names = [(queue.vhost, queue.name) for queue in reading.map.queues(vhost)]
        names.sort()
    elif not reading.principal.sees_all_vhosts():
        open_vhosts = frozenset(reading.principal.open_vhosts())
        names = [name for name in names if name[0] in open_vhosts]

    def found(name: QueueName) -> Queue:
        queue = reading.map.queue(*name)
        assert queue is not None, "a listed queue is in the map"
        return queue

    if leader := reading.query.get("leader"):
        names = [
            name
            for name in names
            if (owner := found(name).owner) is not None and reading.replica.name_of(owner) == leader
        ]

    def value_of(path: str) -> Callable[[QueueName], Any] | None:
        if path == "name":
            return lambda name: name[1]
        if path == "vhost":
            return lambda name: name[0]
        get = _of_row(path)
        if get is None:
            return None

        def value(name: QueueName) -> Any:
            track = reading.replica.queue_track(found(name))
            return get(track) if track is not None else None

        return value

    return Listing(
        names,
        name=lambda name: name[1],
        place=lambda name: name,
        document=lambda name: document(reading, found(name)),
        quick=value_of,
    )


def _of_row(path: str) -> Callable[[Track[QueueRow]], Any] | None:
    """The value of a path, read off the row; None: it has to be looked for in the document."""
    if path in QUEUE_GAUGES:
        return quick(path, QUEUE_GAUGES)
    if path.startswith("message_stats."):
        return quick(path.removeprefix("message_stats."), QUEUE_FIELDS)
    return quick(path, DEPTH_FIELDS, gauge=True)


def document(reading: Reading, queue: Queue) -> Document:
    """One queue, as in a list."""
    settings = reading.map.effective(queue)
    track = reading.replica.queue_track(queue)
    owner = reading.replica.name_of(queue.owner) if queue.owner is not None else None
    replicas, in_sync = ([reading.replica.name_of(node) for node in nodes] for nodes in (queue.replicas, queue.in_sync))
    answer: Document = {
        **same(queue, "auto_delete", "durable", "epoch", "name", "paused", "paused_why", "queue_id", "vhost"),
        "arguments": plain_table(queue.arguments),
        "effective_policy_definition": _policy_definition(
            reading, queue.vhost, settings.policy, settings.operator_policy
        ),
        "exclusive": queue.exclusive_owner is not None,
        "in_sync": in_sync,
        "leader": owner,
        "members": replicas,
        "node": owner or (replicas[0] if replicas else None),
        "online": [node for node in replicas if reading.replica.running(node, reading.now_ms)],
        "operator_policy": settings.operator_policy,
        "owner": owner,
        "policy": settings.policy,
        "replicas": replicas,
        "state": "down" if queue.owner is None else "paused" if queue.paused else "running",
        "type": queue.arguments.get("x-queue-type", "classic"),
    }
    if queue.exclusive_owner is not None:
        connection = reading.replica.connections.get(queue.exclusive_owner)
        if connection is not None:
            answer["owner_pid_details"] = same(connection.row, "name", "peer_host", "peer_port")
    if track is not None:
        _add_row(reading, answer, queue, track)
    return answer


def _add_row(reading: Reading, answer: Document, queue: Queue, track: Track[QueueRow]) -> None:
    row = track.row
    for name, gauge in QUEUE_GAUGES.items():
        answer[name] = gauge(row)
    answer["exclusive_consumer_tag"] = row.exclusive_consumer_tag
    answer["head_message_timestamp"] = row.head_timestamp_s
    answer["single_active_consumer_tag"] = row.single_active_consumer_tag
    if queue.owner is not None and not queue.paused:
        answer["state"] = row.state
    if row.lease is not None:
        lease = answer["lease"] = asdict(row.lease)
        lease["until"] = moment(lease.pop("until_ms"))
    if (stream := row.stream) is not None:
        answer["stream"] = {
            "first_offset": stream.first,
            "next_offset": stream.next,
            "files": stream.files,
            "file_bytes": stream.file_bytes,
            "oldest": None if stream.oldest_ms is None else moment(stream.oldest_ms),
        }
    if row.readers:
        answer["stored_offsets"] = [asdict(reader) for reader in row.readers]
    if row.held_back:
        answer["held_back"] = list(row.held_back)
    if track.idle_since_ms:
        answer["idle_since"] = moment(track.idle_since_ms)
    answer["copies"] = [asdict(copy) | {"node": reading.replica.name_of(copy.node)} for copy in row.copies]
    answer.update(reading.counted("lengths", (track,), DEPTH_FIELDS, gauge=True))
    answer["message_stats"] = reading.counted("msg_rates", (track,), QUEUE_FIELDS)


def full(reading: Reading, vhost: str, name: str) -> Document:
    """One queue with its consumers, what flows in, and which rule set which limit. Refused (404) without one."""
    queue = reading.map.queue(vhost, name)
    if queue is None:
        raise object_not_found()
    answer = document(reading, queue)
    consumers = reading.replica.consumers.get(queue.queue_id, {})
    answer["consumer_details"] = [
        consumer_document(reading, track) for _, track in sorted(consumers.items(), key=lambda item: item[0])
    ]
    answer["deliveries"] = deliveries(reading, consumers.values(), by_queue=False)
    answer["incoming"] = [
        {
            "exchange": {"name": key[2], "vhost": key[1]},
            "stats": reading.counted("msg_rates", tuple(told.values()), {"publish": lambda row: row.publish}),
        }
        for key, told in sorted(reading.replica.flows_of_queue.get(queue.queue_id, {}).items())
    ]
    answer["explain"] = reading.map.effective(queue).explain()
    if queue.paused:
        who = f"{queue.paused_why}, so it is set aside" if queue.paused_why else "an operator has paused it"
        answer["explain"]["paused"] = f"True, {who}: nothing is handed out until it is resumed"
    if "lease" in answer:
        name = answer["lease"]["name"]
        answer["explain"]["leased"] = f"True, '{name}' reads it by a lease: nobody else is handed anything (amq.lease)"
    answer["may"] = reading.principal.may(vhost, name)
    return answer


def _policy_definition(reading: Reading, vhost: str, policy: str | None, operator: str | None) -> Document:
    if policy is None and operator is None:
        return {}
    policies, operator_policies = reading.policies(vhost)
    mine = dict(policies[policy].definition) if policy in policies else {}
    theirs = operator_policies[operator].definition if operator in operator_policies else {}
    for key, value in theirs.items():
        both = mine.get(key)
        if isinstance(both, int) and isinstance(value, int) and not isinstance(value, bool):
            mine[key] = min(both, value)
        else:
            mine[key] = value
    return plain_table(mine)
