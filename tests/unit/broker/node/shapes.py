"""Shapes of a client's event that once held the node's loop, or might."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World
from tests.unit.broker.transactions.stager import Stager

Shape = Callable[[World, Client], Callable[[], object]]
"""Prepares something, and returns what is watched."""


def wired(world: World, *commands: c.AnyCommand) -> None:
    """Many of them, without a client for each."""
    for command in commands:
        world.wiring.propose(command)
    world.turn()


def bound(source: str, destination: str, key: str, arguments: Any = None, kind: Any = "queue") -> c.Bind:
    return c.Bind(
        vhost="/", source=source, destination=destination, destination_kind=kind, routing_key=key,
        arguments=arguments or {},
    )  # fmt: skip


def topics(world: World, client: Client) -> None:
    """512 patterns that all stay reached."""
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="t", type="topic"))
    patterns = (".".join(["#", *word, *["*"] * 100, "z"]) for word in itertools.product("a*", repeat=9))
    wired(world, *(bound("t", "q", pattern) for pattern in patterns))


def a_key_of_many_words(world: World, client: Client) -> Callable[[], object]:
    topics(world, client)
    return lambda: client.publish("t", ".".join(["a"] * 127), b"")


def as_many_copies_as_are_taken(world: World, client: Client) -> Callable[[], object]:
    topics(world, client)
    keys = [".".join(["a"] * 125 + [str(n)]) for n in range(100)]
    return lambda: client.publish("t", "a", b"", headers={"CC": keys})


def keys_that_cost_nearly_all_that_they_may(world: World, client: Client) -> Callable[[], object]:
    """One read with as many as fit."""
    topics(world, client)
    keys = [".".join(["a"] * 15 + [str(n)]) for n in range(300)]
    content = b"".join(client.content("t", key, b"") for key in keys)
    return lambda: (client.raw(content), world.turn())


def behind_a_declaration(world: World, client: Client) -> Callable[[], object]:
    """What waits while the channel is parked is not taken up at once."""
    topics(world, client)
    keys = [".".join(["a"] * 15 + [str(n)]) for n in range(300)]
    client._out.method(1, m.encode(m.QueueDeclare(queue="new")))
    content = bytes(client._out.take()) + b"".join(client.content("t", key, b"") for key in keys)
    return lambda: (client.raw(content), world.turn())


def exchanges_bound_to_exchanges(world: World, client: Client) -> Callable[[], object]:
    topics(world, client)
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(50):
        client.say(m.ExchangeDeclare(exchange=f"t{number}", type="topic"))
    patterns = [".".join(["#", *word, *["*"] * 20, "z"]) for word in itertools.product("a*", repeat=7)]
    wired(
        world,
        *(bound("f", f"t{number}", "", kind="exchange") for number in range(50)),
        *(bound(f"t{number}", "q", pattern) for number in range(50) for pattern in patterns),
    )
    return lambda: client.publish("f", ".".join(["a"] * 100), b"")


def headers_that_all_bindings_ask_for(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="h", type="headers"))
    wired(
        world,
        *(bound("h", "q", "", {"x-match": "all", "a": 1, "b": number}) for number in range(5000)),
        *(bound("h", "q", "", {"x-match": "any", "a": 1, "c": number}) for number in range(5000)),
    )
    content = client.content("h", "", b"", headers={"a": 1, "b": -1}) * 40
    return lambda: (client.raw(content), world.turn())


def a_ring_that_is_bound_and_asked_by_turns(world: World, client: Client) -> Callable[[], object]:
    client.say(m.ExchangeDeclare(exchange="r", type="x-consistent-hash"))
    for number in range(6):
        client.declare(f"q{number}")

    def by_turns() -> None:
        for number in range(6):
            client.ask(m.QueueBind(queue=f"q{number}", exchange="r", routing_key="600"))
            client.publish("r", "key", b"")

    return by_turns


def bound_to_all(world: World, client: Client, count: int) -> None:
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(count):
        client.declare(f"q{number}")
    wired(world, *(bound("f", f"q{number}", "") for number in range(count)))


def a_fanout_to_many(world: World, client: Client) -> Callable[[], object]:
    bound_to_all(world, client, 1000)
    content = client.content("f", "", b"") * 2000
    return lambda: (client.raw(content), world.turn())


def a_chain(world: World, client: Client, length: int, **arguments: Any) -> None:
    for number in range(length):
        client.declare(f"c{number}", x_dead_letter_exchange="", x_dead_letter_routing_key=f"c{number + 1}", **arguments)
    client.declare(f"c{length}")


def a_chain_of_dead_letters(world: World, client: Client) -> Callable[[], object]:
    a_chain(world, client, 200, x_max_length=0)

    def died() -> None:
        client.publish("", "c0", b"")
        assert isinstance(client.ask(m.BasicGet(queue="c200", no_ack=True)), Content), "it arrives"

    return died


def a_chain_of_queues_that_refuse(world: World, client: Client) -> Callable[[], object]:
    a_chain(world, client, 150, x_max_length=0, x_overflow="reject-publish-dlx")
    return lambda: client.publish("", "c0", b"")


def letters_as_large_as_they_may_be(world: World, client: Client) -> Callable[[], object]:
    a_chain(world, client, 20, x_max_length=0)
    content = client.content("", "c0", b"", headers={str(n): None for n in range(10_000)})
    return lambda: (client.raw(content), world.turn())


def letters_of_a_fanout(world: World, client: Client) -> Callable[[], object]:
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    for number in range(500):
        client.declare(f"d{number}")
    wired(world, *(bound("f", f"d{number}", "") for number in range(500)))
    client.declare("q", x_max_length=0, x_dead_letter_exchange="f")
    content = client.content("", "q", b"") * 200
    return lambda: (client.raw(content), world.turn())


def all_of_a_long_queue_expires(world: World, client: Client) -> Callable[[], object]:
    client.declare("grave")
    client.declare("q", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="grave")
    client.raw(client.content("", "q", b"") * 5_000)
    world.turn()
    return lambda: world.wait(2000)


def a_new_limit_makes_a_long_queue_too_long(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.raw(client.content("", "q", b"") * 50_000)
    world.turn()
    return lambda: world.command(
        c.PutPolicy(vhost="/", name="p", pattern="^q$", definition={"max-length": 1}, apply_to="queues")
    )


def held(world: World, client: Client, count: int, **arguments: Any) -> None:
    client.declare("q", **arguments)
    client.raw(client.content("", "q", b"") * count)
    world.turn()
    client.consume("q")
    assert world.queue("q").ring.unacked == count


def everything_is_rejected_at_once(world: World, client: Client) -> Callable[[], object]:
    client.declare("grave")
    held(world, client, 10_000, x_dead_letter_exchange="", x_dead_letter_routing_key="grave")

    def rejected() -> None:
        client.say(m.BasicNack(0, True, False))
        assert world.queue("grave").ring.ready == 10_000

    return rejected


def who_holds_very_much_goes(world: World, client: Client) -> Callable[[], object]:
    held(world, client, 50_000)

    def gone() -> None:
        client.leave()
        assert world.queue("q").ring.ready == 50_000

    return gone


def consuming(world: World, client: Client, queue: str, channels: int) -> None:
    """As many consumers as a channel may have, of each."""
    for number in range(1, channels + 1):
        if number > 1:
            client.say(m.ChannelOpen(), channel=number)
        client.say(m.BasicQos(prefetch_count=1), channel=number)
        for tag in range(world.node.options.consumers_per_channel_max):
            consume = m.BasicConsume(queue=queue, consumer_tag=str(tag), nowait=True)
            client._out.method(number, m.encode(consume))
        client.raw(client._out.take())
        world.turn()


def who_consumes_very_often_goes(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    consuming(world, client, "q", 12)

    def gone() -> None:
        client.leave()
        assert not world.queue("q").subscriptions

    return gone


def a_queue_with_very_many_consumers_is_deleted(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    consuming(world, client, "q", 12)
    other = world.client()

    def gone() -> None:
        assert isinstance(other.ask(m.QueueDelete(queue="q")), m.QueueDeleteOk)
        world.turn()
        assert isinstance(client.hear(12)[-1], m.BasicCancel)
        assert not client.connection.channels[12].consumers

    return gone


def who_reads_a_stream_very_often_goes(world: World, client: Client) -> Callable[[], object]:
    client.declare("s", x_queue_type="stream")
    consuming(world, client, "s", 1)
    assert len(world.queue("s").subscriptions) == 4096

    def gone() -> None:
        client.leave()
        assert not world.queue("s").subscriptions

    return gone


def what_many_channels_hold_returns(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.raw(client.content("", "q", b"") * 200_000)
    world.turn()
    for number in range(1, 50):
        if number > 1:
            client.say(m.ChannelOpen(), channel=number)
        client.say(m.BasicQos(prefetch_count=4_000), channel=number)
        client.say(m.BasicConsume(queue="q", consumer_tag="c"), channel=number)
    assert world.queue("q").ring.unacked > 190_000

    def gone() -> None:
        client.leave()
        assert world.queue("q").ring.ready == 200_000

    return gone


def with_many_conditions(count: int) -> list[c.Bind]:
    return [
        bound("h", "q", "", {"x-match": "any", "i": number} | {f"{n:x}": None for n in range(1000)})
        for number in range(count)
    ]


def an_exchange_with_long_bindings_is_deleted(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="h", type="headers"))
    wired(world, *with_many_conditions(300))

    def gone() -> None:
        assert client.say(m.ExchangeDelete(exchange="h")) == [m.ExchangeDeleteOk()]
        assert not world.node.map.bindings("/")

    return gone


def a_queue_with_very_many_bindings_is_deleted(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="t", type="topic"))
    wired(world, *(bound("t", "q", f"a.{number}.b") for number in range(20_000)))

    def gone() -> None:
        assert client.say(m.QueueDelete(queue="q")) == [m.QueueDeleteOk(0)]
        assert not world.node.map.bindings("/")

    return gone


def an_exclusive_queue_with_long_bindings_goes(world: World, client: Client) -> Callable[[], object]:
    client.say(m.QueueDeclare(queue="q", exclusive=True))
    client.say(m.ExchangeDeclare(exchange="h", type="headers"))
    for bind in with_many_conditions(300):
        world.wiring.propose(replace(bind, connection=client.connection.id))
    world.turn()

    def gone() -> None:
        client.leave()
        assert "q" not in world.node.vhosts["/"].queues

    return gone


def the_last_binding_of_an_exchange_takes_many(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.say(m.ExchangeDeclare(exchange="h", type="headers", durable=True))
    client.say(m.ExchangeDeclare(exchange="e", type="fanout", auto_delete=True))
    wired(world, bound("e", "q", ""))
    wired(world, *(replace(bind, destination="e", destination_kind="exchange") for bind in with_many_conditions(300)))

    def gone() -> None:
        assert client.say(m.QueueUnbind(queue="q", exchange="e")) == [m.QueueUnbindOk()]
        assert world.node.map.exchange("/", "e") is None
        assert not world.node.map.bindings("/")

    return gone


def refused(client: Client) -> None:
    (closed,) = client.hear(0)
    assert (type(closed), closed.reply_code) == (m.ConnectionClose, 506), closed


def a_transaction_to_many_queues(world: World, client: Client) -> Callable[[], object]:
    bound_to_all(world, client, 1000)
    client.say(m.TxSelect())
    content = client.content("f", "", b"") * 3000
    return lambda: (client.raw(content), client.say(m.TxCommit()), world.turn(), refused(client))


def a_transaction_of_large_messages_to_many_queues(world: World, client: Client) -> Callable[[], object]:
    """Some of the commit's bytes, in each of them."""
    bound_to_all(world, client, 40)
    client.say(m.TxSelect())
    content = client.content("f", "", bytes(1 << 20))
    return lambda: ([client.raw(content) for _ in range(31)], client.say(m.TxCommit()), world.turn(), refused(client))


def as_large_a_transaction_as_is_taken(world: World, client: Client) -> Callable[[], object]:
    bound_to_all(world, client, 3)
    client.say(m.TxSelect())
    for _ in range(31):
        client.raw(client.content("f", "", bytes(1 << 20)))

    def committed() -> None:
        assert client.say(m.TxCommit()) == [m.TxCommitOk()]
        assert world.queue("q2").ring.ready == 31

    return committed


def a_large_message_to_many_queues(world: World, client: Client) -> Callable[[], object]:
    bound_to_all(world, client, 50)
    client.ask(m.ConfirmSelect())
    content = client.content("f", "", bytes(8 << 20))

    def published() -> None:
        client.raw(content)
        world.turn()
        assert [said.delivery_tag for said in client.hear(1)] == [1]
        assert world.queue("q49").ring.ready == 1

    return published


def a_transaction_of_numbered_messages(world: World, client: Client) -> Callable[[], object]:
    client.declare("q")
    client.say(m.TxSelect())
    for number in range(20):
        client.raw(
            b"".join(
                client.content("", "q", b"", headers={"x-producer": f"p{number}-{n}", "x-seq": 1}) for n in range(1000)
            )
        )
        world.turn()
    return lambda: (client.say(m.TxCommit()), refused(client))


def a_transaction_that_buries_very_much(world: World, client: Client) -> Callable[[], object]:
    """Each with a header that takes long to write anew."""
    client.declare("grave")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="grave")
    client.raw(client.content("", "q", b"", headers={str(n): n for n in range(4_000)}) * 100)
    world.turn()
    client.consume("q")
    client.say(m.TxSelect())
    client.say(m.BasicNack(0, True, False))
    return lambda: (client.say(m.TxCommit()), refused(client))


def very_many_acknowledgements_in_a_transaction(world: World, client: Client) -> Callable[[], object]:
    held(world, client, 210_000)
    client.say(m.TxSelect())
    return lambda: (client.say(m.BasicAck(0, True)), client.say(m.TxCommit()), world.turn(), refused(client))


def rows_whose_routes_cost_much(world: World, client: Client) -> Callable[[], object]:
    topics(world, client)
    client.declare("rows")
    wired(world, bound("t", "rows", "#"))
    stager = Stager(world.client(channels=2))
    stager.declare("txn.s", target="t")
    for number in range(100):
        stager.stage("txn.s", b"row", key=".".join(["a"] * 15 + [str(number)]))

    def committed() -> None:
        assert stager.commit("txn.s")["outcome"] == "committed"
        world.wait(2000)
        assert world.queue("rows").ring.ready == 100

    return committed


def one_message_to_very_many_queues(world: World, client: Client) -> Callable[[], object]:
    """Nearly as many as a route may have: to more than 49,900 a publish is refused."""
    count = 40_000
    client.say(m.ExchangeDeclare(exchange="f", type="fanout"))
    declared = (c.DeclareQueue(vhost="/", name=f"q{number}", durable=True) for number in range(count))
    for start in range(0, count, 10_000):
        wired(world, *itertools.islice(declared, 10_000))
        wired(world, *(bound("f", f"q{number}", "") for number in range(start, min(count, start + 10_000))))
    content = client.content("f", "", b"x")

    def event() -> None:
        client.raw(content)
        world.turn()
        assert world.queue(f"q{count - 1}").ring.ready == 1

    return event


def a_policy_for_very_many_queues(world: World, client: Client) -> Callable[[], object]:
    """It comes first of 200, and goes again."""
    count = 10_000
    definition = {"max-length": 5}
    wired(
        world,
        *(c.PutPolicy(vhost="/", name=f"p{n}", pattern=f"^tenant{n}\\.", definition=definition) for n in range(200)),
        *(c.DeclareQueue(vhost="/", name=f"queue.{n}", durable=True) for n in range(count)),
    )

    def by_turns() -> None:
        world.command(c.PutPolicy(vhost="/", name="all", pattern="^queue", definition={"max-length": 1}, priority=9))
        assert world.queue(f"queue.{count - 1}").settings.max_length == 1
        world.command(c.DeletePolicy(vhost="/", name="all"))
        assert world.queue(f"queue.{count - 1}").settings.max_length is None

    return by_turns


def a_vhost_with_very_much_in_it_is_deleted(world: World, client: Client) -> Callable[[], object]:
    count = 10_000
    wired(
        world,
        c.AddVhost(name="v"),
        *(c.DeclareQueue(vhost="v", name=f"q{n}", durable=True) for n in range(count)),
        *(c.DeclareExchange(vhost="v", name=f"x{n}", type="topic", auto_delete=True) for n in range(count)),
        *(c.Bind(vhost="v", source=f"x{n}", destination=f"q{n}", routing_key="#") for n in range(count)),
    )

    def gone() -> None:
        heard: list[Any] = []
        world.node.propose(c.DeleteVhost(name="v"), heard.append)
        world.turn()
        assert heard[-1].ok
        assert "v" not in world.node.vhosts

    return gone


def very_many_consumers_hold_messages_for_too_long(world: World, client: Client) -> Callable[[], object]:
    """Each one of them, and in the end the queue has them all again."""
    client.declare("q", x_consumer_timeout=10_000)
    consuming(world, client, "q", 12)
    count = 12 * world.node.options.consumers_per_channel_max
    client.raw(client.content("", "q", b"") * count)
    world.turn()
    assert world.queue("q").ring.unacked == count
    # less than a second before it is time
    world.wait(9_000)
    assert world.queue("q").ring.unacked == count

    def late() -> None:
        world.wait(2_000)
        assert world.queue("q").ring.ready == count
        assert not world.queue("q").subscriptions

    return late


SHAPES: list[Shape] = [
    a_key_of_many_words, behind_a_declaration, headers_that_all_bindings_ask_for,
    a_ring_that_is_bound_and_asked_by_turns, a_chain_of_dead_letters, letters_as_large_as_they_may_be,
    everything_is_rejected_at_once, an_exchange_with_long_bindings_is_deleted,
]  # fmt: skip
IN_TURNS: list[Shape] = [
    as_many_copies_as_are_taken, keys_that_cost_nearly_all_that_they_may, exchanges_bound_to_exchanges,
    a_fanout_to_many, a_chain_of_queues_that_refuse, letters_of_a_fanout, all_of_a_long_queue_expires,
    a_new_limit_makes_a_long_queue_too_long, who_holds_very_much_goes, rows_whose_routes_cost_much,
    who_consumes_very_often_goes, a_queue_with_very_many_consumers_is_deleted, who_reads_a_stream_very_often_goes,
    what_many_channels_hold_returns, a_transaction_to_many_queues, a_transaction_of_numbered_messages,
    a_queue_with_very_many_bindings_is_deleted, an_exclusive_queue_with_long_bindings_goes,
    the_last_binding_of_an_exchange_takes_many, a_transaction_that_buries_very_much,
    very_many_acknowledgements_in_a_transaction, one_message_to_very_many_queues, a_policy_for_very_many_queues,
    a_vhost_with_very_much_in_it_is_deleted, very_many_consumers_hold_messages_for_too_long,
    a_transaction_of_large_messages_to_many_queues, as_large_a_transaction_as_is_taken, a_large_message_to_many_queues,
]  # fmt: skip


COSTLY = {
    an_exchange_with_long_bindings_is_deleted, very_many_acknowledgements_in_a_transaction,
    a_policy_for_very_many_queues, who_consumes_very_often_goes,
    one_message_to_very_many_queues, very_many_consumers_hold_messages_for_too_long,
    an_exclusive_queue_with_long_bindings_goes, the_last_binding_of_an_exchange_takes_many,
    what_many_channels_hold_returns, a_queue_with_very_many_consumers_is_deleted,
    a_vhost_with_very_much_in_it_is_deleted, a_queue_with_very_many_bindings_is_deleted,
    a_large_message_to_many_queues, keys_that_cost_nearly_all_that_they_may, behind_a_declaration, letters_of_a_fanout,
    everything_is_rejected_at_once, letters_as_large_as_they_may_be, a_chain_of_dead_letters,
}  # fmt: skip
"""Most of a second to build, or more."""
