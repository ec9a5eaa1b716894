"""python-qpid-proton against a started node; amqp10_queues.py says what the environment has. Exits with 0, and says how
many checks held."""

import os
import sys
from urllib.parse import quote, urlsplit

import proton
from proton import ConnectionException, Delivery, Message, int32, symbol
from proton.reactor import AtLeastOnce, AtMostOnce, Copy, Selector
from proton.utils import BlockingConnection, LinkDetached, SendException

URL = urlsplit(os.environ["AMQP_URL"])
TIMEOUT_S = 20
checks = 0


def connect(password=None, **options):
    return BlockingConnection(
        f"amqp://{URL.hostname}:{URL.port}",
        timeout=TIMEOUT_S,
        user=URL.username,
        password=password or URL.password,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
        **options,
    )


def queue(key):
    return "/queues/" + quote(os.environ[key], safe="")


def check(work):
    """Runs it with a connection of its own."""
    global checks
    connection = connect()
    work(connection)
    connection.close()
    checks += 1


def is_empty(connection, address):
    """By drain: the broker gives up the credit when nothing is ready."""
    receiver = connection.create_receiver(address, credit=0)
    receiver.link.drain(10)
    connection.wait(lambda: not receiver.link.draining(), timeout=TIMEOUT_S)
    assert receiver.link.credit == 0
    found = receiver.fetcher.has_message
    receiver.close()
    return not found


def data(receiver):
    """The bytes of the next message. Its `body` is a view into memory that ends with the message (proton 0.40), so the
    message is kept until they are copied."""
    message = receiver.receive()
    return bytes(message.body)


def settle(receiver, state, **local):
    """With more than a state."""
    delivery = receiver.fetcher.unsettled.popleft()
    for name, value in local.items():
        setattr(delivery.local, name, value)
    delivery.update(state)
    delivery.settle()


def raised(kind, work, *arguments, **named):
    """The exception that the call raises."""
    try:
        work(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def unsettled_and_settled(connection):
    sender = connection.create_sender(queue("PLAIN"))
    for n in range(200):
        delivery = sender.send(Message(body=b"%d" % n, inferred=True))
        assert delivery.remote_state == Delivery.ACCEPTED
    at_most_once = connection.create_sender(queue("PLAIN"), name="settled", options=AtMostOnce())
    for n in range(200, 400):
        at_most_once.link.send(Message(body=b"%d" % n, inferred=True))
    receiver = connection.create_receiver(queue("PLAIN"), credit=50)
    for n in range(400):
        assert data(receiver) == b"%d" % n
        receiver.accept()
    receiver.close()
    assert is_empty(connection, queue("PLAIN"))


@check
def many_in_flight(connection):
    """3,000 deliveries without a wait: beyond the credit and the session's window."""
    sender = connection.create_sender(queue("PLAIN"))
    deliveries = []
    while len(deliveries) < 3000:
        connection.wait(lambda: sender.link.credit > 0)
        deliveries += [
            sender.link.send(Message(body=b"x", inferred=True, durable=True)) for _ in range(sender.link.credit)
        ]
    connection.wait(lambda: all(delivery.settled for delivery in deliveries))
    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}
    receiver = connection.create_receiver(queue("PLAIN"), credit=500, options=AtMostOnce())
    for _ in deliveries:
        assert data(receiver) == b"x"
    receiver.close()
    assert is_empty(connection, queue("PLAIN"))


@check
def release_modify_accept(connection):
    connection.create_sender(queue("PLAIN")).send(Message(body=b"again", inferred=True))
    receiver = connection.create_receiver(queue("PLAIN"), credit=1)
    message = receiver.receive()
    assert (message.first_acquirer, message.delivery_count) == (True, 0)
    receiver.release(delivered=False)
    message = receiver.receive()
    assert (message.first_acquirer, message.delivery_count) == (False, 0)
    settle(receiver, Delivery.MODIFIED, failed=True)
    message = receiver.receive()
    assert (message.first_acquirer, message.delivery_count) == (False, 1)
    receiver.close()  # unsettled: it returns
    receiver = connection.create_receiver(queue("PLAIN"), credit=1)
    assert data(receiver) == b"again"
    receiver.accept()
    receiver.close()
    assert is_empty(connection, queue("PLAIN"))


@check
def reject(connection):
    connection.create_sender(queue("REJECTING")).send(Message(body=b"bad", inferred=True, subject="s"))
    receiver = connection.create_receiver(queue("REJECTING"), credit=1)
    receiver.receive()
    receiver.reject()
    dead = connection.create_receiver(queue("DEAD"), credit=1)
    message = dead.receive()
    assert (bytes(message.body), message.subject) == (b"bad", "s")
    death = message.annotations[symbol("x-opt-deaths")][0]
    assert (death["queue"], death["reason"], death["count"]) == (os.environ["REJECTING"], "rejected", 1), death
    dead.accept()


@check
def large(connection):
    small = connect(max_frame_size=4096)
    body = os.urandom(1_000_000)
    assert small.create_sender(queue("PLAIN")).send(Message(body=body, inferred=True)).remote_state == Delivery.ACCEPTED
    for receiving in (small, connection):
        receiver = receiving.create_receiver(queue("PLAIN"), credit=1)
        assert data(receiver) == body
        if receiving is small:
            receiver.release(delivered=False)
        else:
            receiver.accept()
        receiver.close()
    small.close()
    assert is_empty(connection, queue("PLAIN"))


@check
def properties_and_values(connection):
    sender = connection.create_sender(queue("PLAIN"))
    receiver = connection.create_receiver(queue("PLAIN"), credit=1)
    sent = Message(
        body={"a": [1, 2.5, None, True], "ü": {"deep": b"bytes"}},
        id="m-1",
        user_id=b"guest",
        address=queue("PLAIN"),
        subject="subject",
        reply_to="/queues/answers",
        correlation_id=proton.ulong(2**63),
        content_type="application/x",
        content_encoding="none",
        creation_time=1700000000.5,
        group_id="group",
        group_sequence=3,
        reply_to_group_id="other",
        durable=True,
        priority=9,
        ttl=60,
        properties={"text": "ü", "n": int32(-7), "nothing": None, "big": 2**40, "f": 1.5, "yes": True},
        annotations={symbol("x-own"): "kept", symbol("x-number"): proton.ulong(5)},
    )
    sender.send(sent)
    got = receiver.receive()
    receiver.accept()
    for name in (
        "body", "id", "user_id", "address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
        "creation_time", "group_id", "group_sequence", "reply_to_group_id", "durable", "priority", "properties",
    ):  # fmt: skip
        assert getattr(got, name) == getattr(sent, name), (name, getattr(got, name), getattr(sent, name))
    assert 0 < got.ttl <= 60, got.ttl
    assert (got.annotations["x-own"], got.annotations["x-number"]) == ("kept", 5)
    assert got.annotations["x-exchange"] == ""
    assert got.annotations["x-routing-key"] == os.environ["PLAIN"]
    for body in ("text", 5, [1, "a"], None, 2.5):
        sender.send(Message(body=body))
        assert receiver.receive().body == body
        receiver.accept()


@check
def selector_and_browser(connection):
    sender = connection.create_sender(queue("PLAIN"))
    for n in range(6):
        sender.send(Message(body=b"%d" % n, inferred=True, properties={"n": n, "color": "blue" if n % 2 else "red"}))
    for _ in range(2):
        browser = connection.create_receiver(queue("PLAIN"), credit=10, name="browser", options=Copy())
        assert [data(browser) for _ in range(6)] == [b"%d" % n for n in range(6)]
        browser.close()
    options = [Copy(), Selector("color = 'red' AND n > 0")]
    browser = connection.create_receiver(queue("PLAIN"), credit=10, name="red", options=options)
    assert [data(browser), data(browser)] == [b"2", b"4"]
    browser.close()
    selecting = Selector("color = 'red' AND n BETWEEN 1 AND 9")
    receiver = connection.create_receiver(queue("PLAIN"), credit=10, name="some", options=selecting)
    for wanted in (b"2", b"4"):
        assert data(receiver) == wanted
        receiver.accept()
    raised(proton.Timeout, receiver.receive, timeout=0.2)
    receiver.close()
    receiver = connection.create_receiver(queue("PLAIN"), credit=10, name="rest")
    for wanted in (b"0", b"1", b"3", b"5"):
        assert data(receiver) == wanted
        receiver.accept()
    receiver.close()
    error = raised(LinkDetached, connection.create_receiver, queue("PLAIN"), options=Selector("n ="))
    assert error.condition == "amqp:invalid-field", error.condition


@check
def undeliverable_here_and_annotations(connection):
    connection.create_sender(queue("PLAIN")).send(Message(body=b"not here", inferred=True))
    receiver = connection.create_receiver(queue("PLAIN"), credit=1, name="fussy")
    receiver.receive()
    settle(receiver, Delivery.MODIFIED, undeliverable=True, annotations={symbol("x-opt-why"): "no"})
    raised(proton.Timeout, receiver.receive, timeout=0.2)
    other = connection.create_receiver(queue("PLAIN"), credit=1, name="other")
    message = other.receive()
    assert (bytes(message.body), message.annotations[symbol("x-opt-why")]) == (b"not here", "no")
    other.accept()
    other.close()
    receiver.close()


@check
def empty_queue_by_time_out(connection):
    receiver = connection.create_receiver(queue("PLAIN"), credit=1)
    raised(proton.Timeout, receiver.receive, timeout=0.2)


@check
def exchanges_and_no_route(connection):
    exchange = "/exchanges/amq.topic/proton.missing"
    sender = connection.create_sender(exchange)
    assert raised(SendException, sender.send, Message(body="nowhere")).state == Delivery.RELEASED
    anonymous = connection.create_sender(None)
    assert anonymous.send(Message(address=queue("PLAIN"), body="by its own address")).remote_state == Delivery.ACCEPTED
    refused = anonymous.send(Message(address=queue("MISSING"), body="x"), error_states=[])
    assert refused.remote_state in (Delivery.RELEASED, Delivery.REJECTED)
    receiver = connection.create_receiver(queue("PLAIN"), credit=1)
    assert receiver.receive().body == "by its own address"
    receiver.accept()


@check
def not_found(connection):
    for create in (connection.create_sender, connection.create_receiver):
        error = raised(LinkDetached, create, queue("MISSING"))
        assert error.condition == "amqp:not-found", error.condition
        assert os.environ["MISSING"] in str(error), error
    assert is_empty(connection, queue("PLAIN"))  # the session goes on


@check
def wrong_password(connection):
    error = raised(ConnectionException, connect, password="wrong")
    assert "amqp:unauthorized-access" in str(error), error


@check
def odd_name(connection):
    connection.create_sender(queue("ODD")).send(Message(body="odd"))
    receiver = connection.create_receiver(queue("ODD"), credit=1)
    assert receiver.receive().body == "odd"
    receiver.accept()


@check
def from_pika(connection):
    receiver = connection.create_receiver(queue("FROM_PIKA"), credit=1)
    message = receiver.receive()
    receiver.accept()
    assert (bytes(message.body), message.inferred) == (b"from pika", True)
    assert (message.durable, message.priority, message.content_type) == (True, 7, "text/plain")
    assert (message.id, message.correlation_id, message.reply_to) == ("m-0", "c-0", "/queues/answers")
    assert (message.creation_time, message.group_id) == (1700000000, "pika")
    assert 0 < message.ttl <= 600
    assert message.properties == {"text": "ü", "n": 7, "big": 2**40, "yes": True}


@check
def to_pika(connection):
    message = Message(
        body=b"to pika",
        inferred=True,
        durable=True,
        priority=6,
        content_type="application/octet-stream",
        correlation_id="c-1",
        reply_to="/queues/answers",
        properties={"text": "ü", "n": 7, "yes": True},
    )
    connection.create_sender(queue("TO_PIKA"), options=AtLeastOnce()).send(message)


print(f"python-qpid-proton {'.'.join(map(str, (proton.VERSION_MAJOR, proton.VERSION_MINOR)))}: {checks} checks held")
sys.exit(0)
