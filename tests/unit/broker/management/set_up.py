"""A replica with what `tests.recorded.record` sets up at RabbitMQ: the same names, told by commands and rows."""

from __future__ import annotations

from functools import cache

from clusterbroker.broker.management.principals import Principal
from clusterbroker.broker.management.reading import Reading
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.stats import rows
from clusterbroker.cluster import passwords
from clusterbroker.cluster.ids import LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from clusterbroker.cluster.wiring.map import Applied

NODE = "n1"
NOW_MS = 1_795_290_640_000
CONNECTION = "127.0.0.1:56222 -> 127.0.0.1:5672"
UNLIMITED = UserLimits()
TAGS = {"guest": "administrator", "mon": "monitoring", "pol": "policymaker", "man": "management", "nobody": ""}


@cache
def hash_of(password: str) -> str:
    return passwords.hashed(password, cost=passwords.COST_CHEAP, salt=b"0" * 16)


class Place:
    """A replica and the index of its log."""

    def __init__(self, node: str = NODE) -> None:
        self.replica = Replica(node)
        self.number = 0
        self.now_ms = NOW_MS

    def apply(self, *commands: c.AnyCommand) -> list[Applied]:
        return [self.replica.applied(LogIndex(self.replica.map.applied + 1), each, self.now_ms) for each in commands]

    def must(self, *commands: c.AnyCommand) -> None:
        for applied in self.apply(*commands):
            assert applied.ok, f"{applied.command}: {applied.error}"

    def tell(
        self,
        *told: rows.AnyRow,
        gone: tuple[rows.Key, ...] = (),
        at_ms: int = NOW_MS,
        node: str | None = None,
        whole: bool = False,
        life: int = 1,
        leased: bool = True,
    ) -> None:
        self.number += 1
        batch = rows.Batch(
            node=node or self.replica.node,
            life=life,
            number=self.number,
            sampled_at_ms=at_ms,
            rows=told,
            gone=gone,
            whole=whole,
            leased=leased,
        )
        self.replica.told(rows.decode(rows.encode(batch)), at_ms)
        self.replica.closed(at_ms)

    def principal(self, user: str = "guest") -> Principal:
        account = self.replica.map.user(user)
        assert account is not None
        return Principal.of(self.replica.map, account)

    def reading(self, user: str = "guest", now_ms: int = NOW_MS, **query: str) -> Reading:
        return Reading(self.replica, self.principal(user), now_ms, query)

    def queue_id(self, name: str, vhost: str = "/") -> int:
        queue = self.replica.map.queue(vhost, name)
        assert queue is not None
        return queue.queue_id


def user(name: str, tags: str, password: str = "secret-pass", limits: UserLimits = UNLIMITED) -> c.PutUser:
    return c.PutUser(
        name=name, password_hash=hash_of(password), hash_algorithm=passwords.SCRYPT, tags=(tags,) if tags else (),
        limits=limits,
    )  # fmt: skip


def everything(name: str, vhost: str = "/") -> c.SetPermission:
    return c.SetPermission(user=name, vhost=vhost, configure=".*", write=".*", read=".*")


def queue(name: str, vhost: str = "/", durable: bool = True, **more: object) -> c.DeclareQueue:
    return c.DeclareQueue(vhost=vhost, name=name, durable=durable, owner=NodeId(NODE), **more)  # type: ignore[arg-type]


def recorded_place() -> Place:
    """All of it, with two samples, so that there are rates."""
    place = Place()
    place.must(c.AddVhost(name="a/b", description="the other", tags=("production", "eu")))
    for name, tags in TAGS.items():
        limits = UserLimits(connections_max=5) if name == "mon" else UNLIMITED
        place.must(user(name, tags, "guest" if name == "guest" else "secret-pass", limits), everything(name))
    place.must(user("lonely", "management"), everything("guest", "a/b"))
    place.must(
        c.SetTopicPermission(user="guest", vhost="/", exchange="events", write=".*", read=".*"),
        c.PutPolicy(
            vhost="/", name="limits", pattern="^lim", definition={"max-length": 100}, apply_to="queues", priority=3
        ),
        c.PutOperatorPolicy(vhost="/", name="most", pattern="^lim", definition={"max-length": 50}, apply_to="all"),
        c.PutParameter(vhost="", component="", name="mine", value={"x": [1, "two"]}),
        c.SetVhostLimits(vhost="/", queues_max=1000),
        queue("busy"),
        queue("limited", arguments={"x-max-priority": 5, "x-message-ttl": 60000}),
        queue("plain/slash", durable=False, auto_delete=True),
        queue("agreed", arguments={"x-queue-type": "quorum"}),
        queue("there", "a/b"),
        c.DeclareExchange(
            vhost="/", name="events", type="topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}
        ),
        c.DeclareExchange(vhost="/", name="inner", type="fanout", durable=True, internal=True),
        c.Bind(vhost="/", source="events", destination="busy", routing_key="order.#"),
        c.Bind(vhost="/", source="events", destination="limited", arguments={"x": 1}),
        c.Bind(vhost="/", source="events", destination="inner", destination_kind="exchange", routing_key="all"),
    )
    for at_ms, times in ((NOW_MS - 5_000, 0), (NOW_MS, 1)):
        place.tell(*_rows(place, times), at_ms=at_ms)
    return place


def _rows(place: Place, times: int) -> list[rows.AnyRow]:
    node = rows.NodeRow(
        name=NODE,
        version="0.1.0",
        os_pid=77,
        uptime_ms=23_491,
        processors=2,
        data_directory="/data",
        memory_used_bytes=163 << 20,
        memory_limit_bytes=9 << 30,
        disk_free_bytes=78 << 30,
        disk_free_limit_bytes=256 << 20,
        files_used=43,
        files_limit=20_000,
        sockets_used=1,
        sockets_limit=17_910,
        listeners=(
            rows.Listener("amqp", "127.0.0.1", 5672),
            rows.Listener("clustering", "127.0.0.1", 5673),
            rows.Listener("http", "127.0.0.1", 15672),
        ),
        journal_flushes=9 * times,
        journal_flush_us=6_860 * times,
        connections_created=1,
        channels_created=2,
        queues_declared=5,
        queues_created=5,
        logins=(rows.LoginTotals("http", 112, 0), rows.LoginTotals("amqp", 1, 0)),
        messages=rows.MessageTotals(publish=15 * times, confirm=15 * times, deliver=2 * times),
    )
    connection = rows.ConnectionRow(
        connection_id="c1",
        user="guest",
        vhost="/",
        peer_host="127.0.0.1",
        peer_port=56222,
        host="127.0.0.1",
        port=5672,
        auth_mechanism="PLAIN",
        client_properties={"connection_name": "recorded", "capabilities": {"basic.nack": True}, "raw": b"\xff"},
        frame_max_bytes=131_072,
        channel_max=2047,
        heartbeat_s=60,
        connected_at_ms=NOW_MS - 9_000,
        channels=2,
        received_bytes=1555 * times,
        received_reads=28,
        sent_bytes=1571 * times,
        sent_writes=32,
    )
    busy, limited, plain = (place.queue_id(name) for name in ("busy", "limited", "plain/slash"))
    return [
        node,
        connection,
        rows.ChannelRow(
            connection_id="c1", number=1, confirm=True, prefetch_count=2, consumers=1, unacknowledged=2 * times,
            messages=rows.MessageTotals(publish=15 * times, confirm=15 * times),
        ),
        rows.ChannelRow(connection_id="c1", number=2, consumers=1),
        rows.ConsumerRow(
            connection_id="c1", channel=1, tag="slow", queue_id=busy, prefetch_count=2, arguments={"x-priority": 3}
        ),
        rows.ConsumerRow(
            connection_id="c1", channel=2, tag="greedy", queue_id=plain, ack_required=False, exclusive=True
        ),
        rows.QueueRow(
            queue_id=busy, ready=3 * times, unacknowledged=2 * times, ready_bytes=15, unacknowledged_bytes=10,
            persistent=5, persistent_bytes=25, in_memory=5, in_memory_bytes=25, memory_bytes=25_888, consumers=1,
            consumer_capacity=0.29, head_timestamp_s=1_700_000_000,
            messages=rows.MessageTotals(publish=5 * times, deliver=2 * times),
        ),
        rows.QueueRow(queue_id=limited, ready=4 * times),
        rows.QueueRow(queue_id=plain, exclusive_consumer_tag="greedy", consumers=1),
        rows.QueueRow(queue_id=place.queue_id("agreed")),
        rows.QueueRow(queue_id=place.queue_id("there", "a/b")),
        rows.ExchangeRow(vhost="/", name="", publish_in=10 * times, publish_out=10 * times),
        rows.ExchangeRow(vhost="/", name="events", publish_in=5 * times, publish_out=5 * times),
        rows.QueueFlowRow(vhost="/", exchange="events", queue_id=busy, publish=5 * times),
    ]  # fmt: skip
