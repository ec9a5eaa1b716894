"""A client of AMQP 1.0 whose links survive their connection, their node and, with a file, their program.

    from clusterbroker.amqp10.client import Message, connect

    async with await connect("amqp://localhost", container_id="orders-1") as connection:
        sender = await connection.sender("/queues/orders", name="orders-out", recoverable=True)
        await sender.send(Message(body=b"first"))
        receiver = await connection.receiver("/queues/orders", name="orders-in", recoverable=True)
        async for delivery in receiver:
            await delivery.accept()

The state machines (`core`, `session`, `links`, `resuming`) have no socket and no clock; `shell` has both.
"""

from clusterbroker.amqp10.client.core import Sasl
from clusterbroker.amqp10.client.endpoints import Delivery, Receiver, Sender
from clusterbroker.amqp10.client.errors import (
    AuthenticationFailed,
    ClientError,
    ClosedHere,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    DeliveryInDoubt,
    DeliveryLost,
    LinkDetached,
    NotRecoverable,
    ProtocolError,
    SessionEnded,
    StoreError,
)
from clusterbroker.amqp10.client.message import Message
from clusterbroker.amqp10.client.reconnecting import Backoff
from clusterbroker.amqp10.client.shell import ClientConnection, connect
from clusterbroker.amqp10.client.store import FileStore, MemoryStore, Store
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Header,
    Modified,
    Properties,
    Rejected,
    Released,
)

__all__ = [
    "Accepted",
    "AuthenticationFailed",
    "Backoff",
    "ClientConnection",
    "ClientError",
    "ClosedHere",
    "ConnectFailed",
    "ConnectionClosed",
    "ConnectionLost",
    "Delivery",
    "DeliveryInDoubt",
    "DeliveryLost",
    "FileStore",
    "Header",
    "LinkDetached",
    "MemoryStore",
    "Message",
    "Modified",
    "NotRecoverable",
    "Properties",
    "ProtocolError",
    "Receiver",
    "Rejected",
    "Released",
    "Sasl",
    "Sender",
    "SessionEnded",
    "Store",
    "StoreError",
    "connect",
]
