"""Local transactions (specification, part 4): messages and outcomes that count together, or not at all.

    async with await Coordinator.open(connection) as coordinator:
        async with await coordinator.declare() as transaction:
            await sender.send(message, transaction=transaction)
            await delivery.accept(transaction)

The block's end commits, an exception in it rolls back. A transaction does not survive its connection.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from clusterbroker.amqp10.client.endpoints import Sender
from clusterbroker.amqp10.client.errors import PeerError, ProtocolError
from clusterbroker.amqp10.client.message import Message
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Composite,
    Declare,
    Declared,
    Discharge,
    Rejected,
)
from clusterbroker.broker.wire.amqp10.performatives import (
    Coordinator as CoordinatorTarget,
)

if TYPE_CHECKING:
    from clusterbroker.amqp10.client.shell import ClientConnection

CAPABILITY: Final = "amqp:local-transactions"


class TransactionFailed(PeerError):
    """Rolled back: nothing of it counts."""


class Transaction:
    """Open until it is discharged. Made by `Coordinator.declare`."""

    def __init__(self, control: Sender, txn_id: bytes) -> None:
        self._control = control
        self.txn_id = txn_id
        self.is_open = True

    async def commit(self) -> None:
        """Returns when all of it counts. Raises TransactionFailed; DeliveryInDoubt when the connection went before the
        answer came."""
        await self._discharge(fail=False)

    async def roll_back(self) -> None:
        await self._discharge(fail=True)

    async def _discharge(self, fail: bool) -> None:
        self.is_open = False
        _check(await self._control.send(Message(value=Discharge(self.txn_id, fail), durable=False)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_open:
            await self._discharge(fail=kind is not None)


def _check(outcome: Composite) -> None:
    if isinstance(outcome, Rejected):
        raise TransactionFailed.of(outcome.error, "the coordinator refused")
    if not isinstance(outcome, (Accepted, Declared)):
        raise ProtocolError(f"a coordinator answered {outcome.NAME}")


class Coordinator:
    """A link over which transactions begin and end. Made by `open`."""

    def __init__(self, control: Sender) -> None:
        self._control = control

    @classmethod
    async def open(cls, connection: ClientConnection) -> Self:
        """Raises LinkDetached where the peer has no transactions."""
        return cls(await connection.sender(None, target=CoordinatorTarget(capabilities=(CAPABILITY,))))

    async def declare(self) -> Transaction:
        """Raises TransactionFailed where too many are open."""
        outcome = await self._control.send(Message(value=Declare(), durable=False))
        _check(outcome)
        if not isinstance(outcome, Declared):
            raise ProtocolError("a coordinator declared no transaction")
        return Transaction(self._control, outcome.txn_id)

    async def close(self) -> None:
        await self._control.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
