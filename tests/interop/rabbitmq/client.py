"""RabbitMQ's own client of AMQP 1.0 for Python against a started node, whose setting amqp10.product is RabbitMQ. Exits
with 0, and says how many checks held."""

import os
import time
import uuid
from urllib.parse import urlsplit

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AmqpMessageRejectedException,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Converter,
    Environment,
    ExchangeSpecification,
    ExchangeToExchangeBindingSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    MessageProperties,
    OffsetSpecification,
    OutcomeState,
    QuorumQueueSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
    ValidationCodeException,
    symbol,
)
from rabbitmq_amqp_python_client.qpid.proton._utils import SendException

RUN = f"python-{uuid.uuid4()}"
TIMEOUT_S = 20
URL = urlsplit(os.environ["AMQP_URL"])
checks = 0


def check(work):
    """Runs it with a connection and its management."""
    global checks
    with Environment(uri=URL.geturl()) as environment:
        connection = environment.connection()
        connection.dial()
        management = connection.management()
        work(connection, management)
        management.close()
        connection.close()
    checks += 1


def message(body, **fields):
    return Message(Converter.string_to_bytes(body), **fields)


class Enough(BaseException):
    """Ends a consumer's loop."""


class Taker(AMQPMessagingHandler):
    """Gives each delivery the next outcome of a list, and ends its consumer with the last one."""

    def __init__(self, *outcomes):
        super().__init__()
        self.outcomes = list(outcomes)
        self.bodies, self.annotations = [], []

    def on_amqp_message(self, event):
        self.bodies.append(bytes(event.message.body).decode())
        self.annotations.append(dict(event.message.annotations or {}))
        getattr(self.delivery_context, self.outcomes.pop(0))(event)
        if not self.outcomes:
            raise Enough


def take(connection, address, *outcomes, **options):
    """What a consumer got that gave these outcomes."""
    handler = Taker(*outcomes)
    run(connection.consumer(address, message_handler=handler, **options))
    return handler


def run(consumer):
    """Until its handler has enough."""
    try:
        consumer.run()
    except Enough:
        consumer.close()


def publish(connection, address, *messages):
    publisher = connection.publisher(address)
    states = [publisher.publish(one).remote_state for one in messages]
    publisher.close()
    return states


def refusal(kind, work, *given):
    """What it raises."""
    try:
        work(*given)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def declare_and_bind(connection, management):
    exchange, other, queue = f"{RUN}-topic", f"{RUN}-fanout", f"{RUN}-bound"
    management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.topic))
    management.declare_exchange(ExchangeSpecification(name=other, exchange_type=ExchangeType.fanout))
    management.declare_queue(QuorumQueueSpecification(name=queue))
    binding = management.bind(
        ExchangeToQueueBindingSpecification(source_exchange=other, destination_queue=queue, binding_key="")
    )
    path = management.bind(
        ExchangeToExchangeBindingSpecification(source_exchange=exchange, destination_exchange=other, binding_key="a.*")
    )
    bound, lost = AddressHelper.exchange_address(exchange, "a.b"), AddressHelper.exchange_address(exchange, "b")
    assert publish(connection, bound, message("1"), message("2")) == [OutcomeState.ACCEPTED] * 2
    assert refusal(SendException, publish, connection, lost, message("3")).state == OutcomeState.RELEASED
    info = management.queue_info(queue)
    assert (info.name, info.message_count, info.is_durable) == (queue, 2, True), vars(info)
    assert management.purge_queue(queue) == 2
    management.unbind(path)
    management.unbind(binding)
    management.delete_queue(queue)
    management.delete_exchange(exchange)
    management.delete_exchange(other)
    refusal(ValidationCodeException, management.queue_info, queue)


def declared_twice(connection, management):
    queue = f"{RUN}-twice"
    management.declare_queue(ClassicQueueSpecification(name=queue, max_len=1))
    management.declare_queue(ClassicQueueSpecification(name=queue, max_len=1))
    refusal(ValidationCodeException, management.declare_queue, ClassicQueueSpecification(name=queue, max_len=2))
    management.delete_queue(queue)


def outcomes(connection, management):
    queue, dead = f"{RUN}-outcomes", f"{RUN}-dead"
    management.declare_queue(QuorumQueueSpecification(name=dead))
    management.declare_queue(
        QuorumQueueSpecification(name=queue, dead_letter_exchange="", dead_letter_routing_key=dead)
    )
    address = AddressHelper.queue_address(queue)
    assert publish(connection, address, message("a"), message("b")) == [OutcomeState.ACCEPTED] * 2
    taken = take(connection, address, "requeue", "accept", "discard", consumer_options=ConsumerOptions())
    assert sorted(taken.bodies[:2]) in (["a", "a"], ["a", "b"]), taken.bodies
    assert len(set(taken.bodies)) == 2
    letter = take(connection, AddressHelper.queue_address(dead), "accept")
    assert letter.bodies == [taken.bodies[-1]]
    assert letter.annotations[0]["x-opt-deaths"][0]["reason"] == "rejected", letter.annotations
    management.delete_queue(queue)
    management.delete_queue(dead)


def annotated(connection, management):
    queue = f"{RUN}-annotated"
    management.declare_queue(QuorumQueueSpecification(name=queue))
    address = AddressHelper.queue_address(queue)
    publish(connection, address, message("a"))

    class Annotates(Taker):
        def on_amqp_message(self, event):
            if not self.bodies:
                self.bodies.append("")
                self.delivery_context.requeue_with_annotations(event, {symbol("x-opt-note"): "seen"})
                return
            super().on_amqp_message(event)

    handler = Annotates("accept")
    run(connection.consumer(address, message_handler=handler))
    assert handler.annotations[0]["x-opt-note"] == "seen", handler.annotations
    management.delete_queue(queue)


def settled_before(connection, management):
    queue = f"{RUN}-settled"
    management.declare_queue(QuorumQueueSpecification(name=queue))
    address = AddressHelper.queue_address(queue)
    publish(connection, address, message("a"))

    class Once(AMQPMessagingHandler):
        def on_amqp_message(self, event):
            assert bytes(event.message.body) == b"a"
            assert event.delivery.settled
            raise Enough

    options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.PreSettled)
    run(connection.consumer(address, message_handler=Once(), consumer_options=options))
    deadline = time.monotonic() + TIMEOUT_S
    while management.queue_info(queue).message_count:
        assert time.monotonic() < deadline
    management.delete_queue(queue)


def each_to_its_address(connection, management):
    """A publisher without an address; a queue that is full."""
    queue = f"{RUN}-full"
    specification = ClassicQueueSpecification(name=queue, max_len=1, overflow_behaviour="reject-publish")
    management.declare_queue(specification)
    addressed = [
        AddressHelper.message_to_address_helper(message(body), AddressHelper.queue_address(queue)) for body in "ab"
    ]
    assert publish(connection, "", addressed[0]) == [OutcomeState.ACCEPTED]
    assert queue in str(refusal(AmqpMessageRejectedException, publish, connection, "", addressed[1]))
    management.delete_queue(queue)


def stream_filters(connection, management):
    stream = f"{RUN}-stream"
    management.declare_queue(StreamSpecification(name=stream))
    address = AddressHelper.queue_address(stream)
    messages = [
        message(
            str(number),
            subject="even" if number % 2 == 0 else "odd",
            application_properties={"n": number, "of": f"k{number % 3}"},
        )
        for number in range(12)
    ]
    assert publish(connection, address, *messages) == [OutcomeState.ACCEPTED] * 12

    def read(count, options):
        return take(connection, address, *["accept"] * count, consumer_options=options).bodies

    assert read(12, StreamConsumerOptions(OffsetSpecification.first)) == [str(number) for number in range(12)]
    assert read(3, StreamConsumerOptions(9)) == ["9", "10", "11"]
    even = StreamFilterOptions(message_properties=MessageProperties(subject="even"))
    assert read(6, StreamConsumerOptions(OffsetSpecification.first, even)) == ["0", "2", "4", "6", "8", "10"]
    third = StreamFilterOptions(application_properties={"of": "k1"})
    assert read(4, StreamConsumerOptions(OffsetSpecification.first, third)) == ["1", "4", "7", "10"]
    sql = StreamFilterOptions(sql="properties.subject LIKE 'od%' AND n > 4")
    assert read(4, StreamConsumerOptions(OffsetSpecification.first, sql)) == ["5", "7", "9", "11"]
    management.delete_queue(stream)


def bloom_filter(connection, management):
    """RabbitMQ's filter passes chunks over; what a node here sends has the values."""
    stream = f"{RUN}-bloom"
    management.declare_queue(StreamSpecification(name=stream))
    address = AddressHelper.queue_address(stream)
    for value in ("alpha", "beta", None):
        annotations = None if value is None else {symbol("x-stream-filter-value"): value}
        assert publish(connection, address, message(str(value), annotations=annotations)) == [OutcomeState.ACCEPTED]

    def read(count, *values, unfiltered=False):
        options = StreamFilterOptions(values=list(values), match_unfiltered=unfiltered)
        wanted = StreamConsumerOptions(OffsetSpecification.first, options)
        return take(connection, address, *["accept"] * count, consumer_options=wanted).bodies

    assert read(1, "beta") == ["beta"]
    assert read(2, "beta", unfiltered=True) == ["beta", "None"]
    management.delete_queue(stream)


CHECKS = (
    declare_and_bind,
    declared_twice,
    outcomes,
    annotated,
    settled_before,
    each_to_its_address,
    stream_filters,
    bloom_filter,
)
for work in CHECKS:
    try:
        check(work)
    except BaseException:
        print(f"RabbitMQ's Python client: {work.__name__}")
        raise
print(f"RabbitMQ's Python client: {checks} checks held")
