"""One connection for a container (OASIS, AMQP Enforcing Connection Uniqueness 1.0), in the whole cluster.

    open     desired capability sole-connection-for-container; property sole-connection-enforcement-policy: uint,
             0 the newer connection is refused (default), 1 the older one is closed
    ours     offers the capability; sole-connection-detection-policy weak: of connections that desire it
    refused  open with amqp:connection-establishment-failed, close invalid-field with {invalid-field: container-id}
    closed   close resource-locked with {sole-connection-enforcement: true}

The older connection's policy counts. A container is of one vhost and one user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.wire.amqp10.errors import (
    INVALID_FIELD,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    ConnectionFault10,
)
from clusterbroker.broker.wire.amqp10.performatives import Open
from clusterbroker.broker.wire.amqp10.types import Symbol
from clusterbroker.broker.wire.numbers import UInt32
from clusterbroker.cluster.errors import PreconditionFailed, ResourceLocked
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring.commands import HoldContainer

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.node.core import Node
    from clusterbroker.cluster.wiring.map import Applied

CAPABILITY: Final = "sole-connection-for-container"
ENFORCEMENT: Final = "sole-connection-enforcement-policy"
DETECTION: Final = "sole-connection-detection-policy"
FAILED: Final = "amqp:connection-establishment-failed"
ENFORCED: Final = "sole-connection-enforcement"
REFUSE_CONNECTION, CLOSE_EXISTING = 0, 1
WEAK: Final = 1


class Opening(Protocol):
    """A connection whose client has said open."""

    id: str
    node: Node
    access: Authorization

    def fail(self, fault: ConnectionFault10) -> None: ...

    def crashed(self, error: Exception) -> None: ...


class Refused(ConnectionFault10):
    """The container has a connection."""

    def __init__(self, text: str) -> None:
        super().__init__(INVALID_FIELD, text, {Symbol("invalid-field"): Symbol("container-id")})


def is_asked(node: Node, told: Open) -> bool:
    """Whether the connection is to be the sole one. Raises ConnectionFault10 for a policy that there is not."""
    if CAPABILITY not in told.desired_capabilities or not node.sole_connections.possible:
        return False
    policy = (told.properties or {}).get(ENFORCEMENT, REFUSE_CONNECTION)
    if type(policy) is bool or policy not in (REFUSE_CONNECTION, CLOSE_EXISTING):
        raise ConnectionFault10(INVALID_FIELD, f"{ENFORCEMENT} is 0 or 1")
    return True


def hold(
    connection: Opening, told: Open, awaits: Callable[[], bool],
    then: Callable[[Open, ConnectionFault10 | None], None],
) -> None:  # fmt: skip
    """Asks the cluster; `then(told, None)`: the connection is the sole one of its container. `awaits`: whether it waits
    for that."""
    node, access = connection.node, connection.access
    command = HoldContainer(
        node=NodeId(node.options.name),
        incarnation=Incarnation(node.options.incarnation),
        vhost=access.vhost.name,
        container=told.container_id,
        user=access.principal,
        connection=connection.id,
        gives_way=(told.properties or {}).get(ENFORCEMENT, REFUSE_CONNECTION) == CLOSE_EXISTING,
    )

    def lost() -> None:
        text = "another connection of this container was opened"
        connection.fail(ConnectionFault10(RESOURCE_LOCKED, text, {Symbol(ENFORCED): True}))

    def answered(answer: Applied) -> None:
        try:
            if awaits():
                then(told, None if answer.ok else _fault(answer))
        except Exception as error:
            connection.crashed(error)

    node.sole_connections.hold(command, lost, answered)


def _fault(answer: Applied) -> ConnectionFault10:
    if isinstance(answer.error, ResourceLocked):
        return Refused(str(answer.error))
    condition = INVALID_FIELD if isinstance(answer.error, PreconditionFailed) else RESOURCE_LIMIT
    assert answer.error is not None, "it was refused"
    return ConnectionFault10(condition, str(answer.error))


def properties(told: Open | None, fault: ConnectionFault10 | None) -> dict[Any, Any]:
    """Of our open, for a connection that asks."""
    if told is None or CAPABILITY not in told.desired_capabilities:
        return {}
    policy = (told.properties or {}).get(ENFORCEMENT, REFUSE_CONNECTION)
    said: dict[Any, Any] = {Symbol(DETECTION): UInt32(WEAK), Symbol(ENFORCEMENT): UInt32(policy)}
    if isinstance(fault, Refused):
        said[Symbol(FAILED)] = True
    return said
