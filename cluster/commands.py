"""All that the wiring log may order, as values; each says what shall be, and carries what its fold needs to know.

The fold reads no clock, no random source and no configuration: time (`at_ms`, since 1970), names that a
server makes up, the owner and the replicas of a queue and hashed passwords arrive inside the command.

    stored command   u8 version (1) | msgpack array: [tag, field, field, ...]

Field order is the stored order: new fields go to the end and carry a default.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .arguments import ENCODER, NESTING_MAX, too_deep
from .entities import ApplyTo, DestinationKind, UserLimits
from .errors import PreconditionFailed
from .ids import LOCAL_NODE, Incarnation, NodeId, QueueId

VERSION: Final = 1


class Command(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag_field="command"):
    """Root of all commands."""

    at_ms: int = 0
    """When it was proposed, wall clock of the proposer, ms since 1970; for display only."""


class AddVhost(Command, frozen=True, kw_only=True, tag="add_vhost"):
    """Make a vhost with its exchanges, or change the description of an existing one."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    default_queue_type: str | None = None


class DeleteVhost(Command, frozen=True, kw_only=True, tag="delete_vhost"):
    """Delete a vhost and all in it; a missing one is a success."""

    name: str


class DeclareExchange(Command, frozen=True, kw_only=True, tag="declare_exchange"):
    """exchange.declare, not passive (a passive declare is a question to the map)."""

    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class DeleteExchange(Command, frozen=True, kw_only=True, tag="delete_exchange"):
    """exchange.delete; a missing one is a success."""

    vhost: str
    name: str
    if_unused: bool = False


class DeclareQueue(Command, frozen=True, kw_only=True, tag="declare_queue"):
    """queue.declare, not passive, with the name filled in by the server when the client left it empty."""

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    exclusive: bool = False
    arguments: dict[str, Any] = {}
    connection: str | None = None
    """Id of the declaring connection; required when exclusive, and what a redeclare is checked against."""
    server_named: bool = False
    """The server made the name up, so it may begin with `amq.`."""
    owner: NodeId = LOCAL_NODE
    incarnation: Incarnation = Incarnation(1)
    replicas: tuple[NodeId, ...] = ()
    """Empty: the owner alone."""


class DeleteQueue(Command, frozen=True, kw_only=True, tag="delete_queue"):
    """Delete one declaration of a queue. Its owner has decided if-unused, if-empty and exclusive access before.

    A queue that was deleted and declared again since has another id and is not hit.
    """

    vhost: str
    name: str
    queue_id: QueueId


class Bind(Command, frozen=True, kw_only=True, tag="bind"):
    """queue.bind or exchange.bind; an existing binding is a success."""

    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}
    connection: str | None = None


class Unbind(Command, frozen=True, kw_only=True, tag="unbind"):
    """queue.unbind or exchange.unbind; a missing binding is a success."""

    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}
    connection: str | None = None


class RemoveConnection(Command, frozen=True, kw_only=True, tag="remove_connection"):
    """A connection ended: delete the queues that were exclusive to it."""

    connection: str


class ForgetTransient(Command, frozen=True, kw_only=True, tag="forget_transient"):
    """A node started anew: end the transient queues it owned and, when it is the only node, transient exchanges."""

    node: NodeId
    alone: bool = True


class PutUser(Command, frozen=True, kw_only=True, tag="put_user"):
    """Make or replace a user."""

    name: str
    password_hash: str
    hash_algorithm: str
    tags: tuple[str, ...] = ()
    limits: UserLimits = UserLimits()

    def __repr__(self) -> str:
        """Without the hash: it must never reach a log."""
        return f"PutUser(name={self.name!r}, hash_algorithm={self.hash_algorithm!r}, tags={self.tags!r})"


class DeleteUser(Command, frozen=True, kw_only=True, tag="delete_user"):
    """Delete a user and its permissions; a missing one is a success."""

    name: str


class SetPermission(Command, frozen=True, kw_only=True, tag="set_permission"):
    """What a user may do in a vhost: three regular expressions over names."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class ClearPermission(Command, frozen=True, kw_only=True, tag="clear_permission"):
    """The user may no longer enter the vhost."""

    user: str
    vhost: str


class SetTopicPermission(Command, frozen=True, kw_only=True, tag="set_topic_permission"):
    """Which routing keys a user may use on a topic exchange; {username}, {vhost}, {client_id} are filled in."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class ClearTopicPermission(Command, frozen=True, kw_only=True, tag="clear_topic_permission"):
    """Remove a topic permission, or with no exchange all of the user's in the vhost."""

    user: str
    vhost: str
    exchange: str | None = None


class PutPolicy(Command, frozen=True, kw_only=True, tag="put_policy"):
    """Make or replace a policy."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: ApplyTo = "all"
    priority: int = 0


class DeletePolicy(Command, frozen=True, kw_only=True, tag="delete_policy"):
    """Delete a policy; a missing one is a success."""

    vhost: str
    name: str


class PutOperatorPolicy(Command, frozen=True, kw_only=True, tag="put_operator_policy"):
    """Make or replace an operator policy."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: ApplyTo = "queues"
    priority: int = 0


class DeleteOperatorPolicy(Command, frozen=True, kw_only=True, tag="delete_operator_policy"):
    """Delete an operator policy; a missing one is a success."""

    vhost: str
    name: str


class PutParameter(Command, frozen=True, kw_only=True, tag="put_parameter"):
    """Make or replace a runtime parameter; an empty vhost makes it global."""

    vhost: str
    component: str
    name: str
    value: Any


class DeleteParameter(Command, frozen=True, kw_only=True, tag="delete_parameter"):
    """Delete a runtime parameter; a missing one is a success."""

    vhost: str
    component: str
    name: str


class SetVhostLimits(Command, frozen=True, kw_only=True, tag="set_vhost_limits"):
    """Replace the limits of a vhost; None or negative: unlimited."""

    vhost: str
    queues_max: int | None = None
    connections_max: int | None = None


class ClearVhostLimits(Command, frozen=True, kw_only=True, tag="clear_vhost_limits"):
    """Remove the limits of a vhost."""

    vhost: str


AnyCommand = (
    AddVhost
    | DeleteVhost
    | DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | Bind
    | Unbind
    | RemoveConnection
    | ForgetTransient
    | PutUser
    | DeleteUser
    | SetPermission
    | ClearPermission
    | SetTopicPermission
    | ClearTopicPermission
    | PutPolicy
    | DeletePolicy
    | PutOperatorPolicy
    | DeleteOperatorPolicy
    | PutParameter
    | DeleteParameter
    | SetVhostLimits
    | ClearVhostLimits
)

_FREE_FORM: Final = ("arguments", "definition", "metadata", "value")
_VERSION_BYTE: Final = bytes((VERSION,))
_DECODER: Final = msgspec.msgpack.Decoder(AnyCommand)


def encode(command: AnyCommand) -> bytes:
    """The command as stored bytes.

    Raises PreconditionFailed when a value in it cannot be stored (an integer beyond 64 bits, nesting beyond
    reason): the client's fault, so it is the answer to the command.
    """
    for field in _FREE_FORM:
        if too_deep(getattr(command, field, None)):
            raise PreconditionFailed(f"{field} nested deeper than {NESTING_MAX} levels")
    try:
        return _VERSION_BYTE + ENCODER.encode(command)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PreconditionFailed(f"arguments cannot be stored: {error}") from error


def decode(stored: bytes | memoryview) -> AnyCommand:
    """The command behind stored bytes; ValueError when they are none of this version."""
    if len(stored) < 2 or stored[0] != VERSION:
        raise ValueError(f"command version {stored[0] if len(stored) else 'missing'} is not {VERSION}")
    try:
        command: AnyCommand = _DECODER.decode(stored[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a wiring command: {error}") from error
    return command
