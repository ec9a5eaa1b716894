"""Commands of the wiring log, as values; each states the wanted result, and carries everything that its fold needs.

The fold reads no clock, no random source and no configuration: time (`at_ms`, since 1970), server-made names and
hashed passwords arrive inside the command; owner and replicas of a queue follow from the map.

    stored command   u8 version (1) | msgpack array: [tag, field, field, ...]

Field order is the stored order: new fields go to the end and carry a default.

A command that changes a row may set a part of it, by `only`: the names of the fields that it sets. The row must exist
(404), and its other fields stay as they are when the command is applied. The proposer never fills them in from an
earlier read, which would undo others' changes. Without `only` a command sets the whole row.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LOCAL_NODE, Epoch, Incarnation, NodeId, QueueId
from clusterbroker.journal.values import restored

from .arguments import ENCODER, NESTING_MAX, VERSION, decoded, too_deep
from .command import Command as Command
from .command import OfProcess
from .container_commands import HoldContainer as HoldContainer
from .container_commands import ReleaseContainer as ReleaseContainer
from .delay_commands import EndDelays as EndDelays
from .delay_commands import KeepDelays as KeepDelays
from .entities import ApplyTo, DestinationKind, UserLimits
from .link_commands import AttachLink as AttachLink
from .link_commands import ExpireLink as ExpireLink
from .link_commands import ForgetLink as ForgetLink
from .link_commands import LinkRole as LinkRole
from .link_commands import SuspendLink as SuspendLink
from .member_commands import AddMember as AddMember
from .member_commands import DrainNode as DrainNode
from .member_commands import FailNode as FailNode
from .member_commands import ForgetNode as ForgetNode
from .member_commands import RaiseLevel as RaiseLevel
from .member_commands import RegisterNode as RegisterNode
from .member_commands import SetVoters as SetVoters
from .pool_commands import AssignWorkers as AssignWorkers
from .pool_commands import BindGroup as BindGroup
from .pool_commands import DeclarePool as DeclarePool
from .pool_commands import DeletePool as DeletePool
from .pool_commands import DirectGroup as DirectGroup
from .pool_commands import DropGroup as DropGroup
from .pool_commands import EndPoolQueue as EndPoolQueue
from .pool_commands import LaunchWorkers as LaunchWorkers
from .pool_commands import OfController as OfController
from .pool_commands import PausePool as PausePool
from .pool_commands import RequireGroups as RequireGroups
from .pool_commands import RetireKeys as RetireKeys
from .pool_commands import RetireWorkers as RetireWorkers
from .pool_commands import RevokeKeys as RevokeKeys
from .pool_commands import RevokeWorkers as RevokeWorkers
from .pool_commands import SetPool as SetPool
from .pool_commands import SettleGroups as SettleGroups
from .pool_commands import UnbindGroup as UnbindGroup
from .pool_commands import WorkersGone as WorkersGone


class AddVhost(Command, frozen=True, kw_only=True, tag="add_vhost"):
    """Make a vhost with its exchanges, or change the description of an existing one."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    default_queue_type: str | None = None
    tracing: bool | None = None
    """None: as it was."""
    only: tuple[str, ...] = ()


class ExchangeDeclaration(Command, frozen=True, kw_only=True):
    """exchange.declare, not passive (a passive declare is a question to the map)."""

    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}
    owner: NodeId = LOCAL_NODE
    """The node that proposes it, the leader of a staging exchange's queue."""
    incarnation: Incarnation = Incarnation(1)
    """The proposer's."""
    user: str = ""
    """Declares it; of a staging exchange."""
    is_administrator: bool = False
    lived_ms: int = 0
    """The log's age when it was proposed, as the proposer knew it (passing.py); of a staging exchange."""


class DeclareExchange(ExchangeDeclaration, frozen=True, kw_only=True, tag="declare_exchange"):
    """An exchange that routes at once, or stages."""


class DeclareChoosingExchange(ExchangeDeclaration, frozen=True, kw_only=True, tag="declare_choosing_exchange"):
    """One that gives each message to one of its destinations (`exchange_rules.CHOOSING`)."""


class DeclareDelayedExchange(ExchangeDeclaration, frozen=True, kw_only=True, tag="declare_delayed_exchange"):
    """One of type `x-delayed-message`: the exchange, and the queue in which its messages wait."""


class DeclareHistoryExchange(ExchangeDeclaration, frozen=True, kw_only=True, tag="declare_history_exchange"):
    """One of type `x-recent-history`: the exchange, and the queue that keeps its recent messages."""


class DeclareDeduplicatingExchange(
    ExchangeDeclaration, frozen=True, kw_only=True, tag="declare_deduplicating_exchange"
):
    """One of type `x-message-deduplication`: the exchange, and the queue through which its messages pass."""


QueuedExchange = DeclareDelayedExchange | DeclareHistoryExchange | DeclareDeduplicatingExchange
"""Each brings a queue of its own (`exchange_queues`)."""
AnyExchangeDeclaration = DeclareExchange | DeclareChoosingExchange | QueuedExchange


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
    """The node that proposes it. In a cluster it owns the queue only if that is transient or its locator says
    client-local; else the fold places the queue."""
    incarnation: Incarnation = Incarnation(1)
    """The proposer's."""
    replicas: tuple[NodeId, ...] = ()
    """Empty: the owner alone. A cluster's fold chooses by itself."""


class PauseQueue(Command, frozen=True, kw_only=True, tag="pause_queue"):
    """An operator pauses a queue, or resumes it; what it is already is a success, and to resume it is a change all the
    same."""

    vhost: str
    name: str
    paused: bool = True
    why: str = ""
    """What raised in the queue's work, if its owner sets it aside; empty: an operator wants it."""
    staging: bool = False
    """The queue is that of the staged rows of this name."""


class _Wire(Command, frozen=True, kw_only=True):
    """From an exchange to a queue, or to an exchange."""

    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}
    connection: str | None = None


class Bind(_Wire, frozen=True, kw_only=True, tag="bind"):
    """queue.bind or exchange.bind; an existing binding is a success."""


class DeleteExchange(Command, frozen=True, kw_only=True, tag="delete_exchange"):
    """exchange.delete; a missing one is a success."""

    vhost: str
    name: str
    if_unused: bool = False


class DeleteQueue(Command, frozen=True, kw_only=True, tag="delete_queue"):
    """Delete one declaration of a queue, and none that came after it. Its owner has decided if-unused, if-empty and
    exclusive access before."""

    vhost: str
    name: str
    queue_id: QueueId
    epoch: Epoch = Epoch(0)
    """In which its owner decided so: a later owner did not, and in a later epoch nothing happens. 0: nobody had to."""


class Unbind(_Wire, frozen=True, kw_only=True, tag="unbind"):
    """queue.unbind or exchange.unbind; a missing binding is a success."""


class RemoveConnection(Command, frozen=True, kw_only=True, tag="remove_connection"):
    """A connection ended: delete the queues that were exclusive to it, the oldest first and not all of very many: its
    proposer looks whether there are more."""

    connection: str


class DeleteVhost(Command, frozen=True, kw_only=True, tag="delete_vhost"):
    """Delete a vhost and all in it; a missing one is a success."""

    name: str


Ending = DeleteExchange | DeleteQueue | Unbind | RemoveConnection | DeleteVhost
"""Commands that end things, possibly with very many dependents (cascade.py)."""


class Loosen(Command, frozen=True, kw_only=True, tag="loosen"):
    """End some of what would end with another command, which comes next: bindings, and queues and exchanges of a vhost.
    The answer is whether more is left than that one should end itself. Nothing, when the other one would be refused, or
    has nothing to do."""

    ending: Ending


class ForgetTransient(Command, frozen=True, kw_only=True, tag="forget_transient"):
    """A node started anew: end the transient queues it owned and, when it is the only node, transient exchanges."""

    node: NodeId
    alone: bool = True


class PutUser(Command, frozen=True, kw_only=True, tag="put_user"):
    """Make or replace a user."""

    name: str
    password_hash: str = ""
    hash_algorithm: str = ""
    tags: tuple[str, ...] = ()
    limits: UserLimits | None = UserLimits()
    """None: as they were; of a new user none."""
    only_if_hash: str | None = None
    """Refused unless the user is there and has this hash: whoever replaces a hash of the same password must not bring
    back a password or a user that somebody else changed or deleted meanwhile. Tags and limits then stay as they are:
    those of the command are not looked at. None: whatever is there."""
    only: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the hash: it must never reach a log."""
        return f"PutUser(name={self.name!r}, hash_algorithm={self.hash_algorithm!r}, tags={self.tags!r})"


class SetUserLimits(Command, frozen=True, kw_only=True, tag="set_user_limits"):
    """Set limits of a user that is there (else 404), and nothing else of it."""

    name: str
    limits: UserLimits
    only: tuple[str, ...] = ()


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


class _PutPolicy(Command, frozen=True, kw_only=True):
    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: ApplyTo = "all"
    priority: int = 0


class PutPolicy(_PutPolicy, frozen=True, kw_only=True, tag="put_policy"):
    """Make or replace a policy."""


class PutOperatorPolicy(_PutPolicy, frozen=True, kw_only=True, tag="put_operator_policy"):
    """Make or replace an operator policy."""

    apply_to: ApplyTo = "queues"


class _DeletePolicy(Command, frozen=True, kw_only=True):
    vhost: str
    name: str


class DeletePolicy(_DeletePolicy, frozen=True, kw_only=True, tag="delete_policy"):
    """Delete a policy; a missing one is a success."""


class DeleteOperatorPolicy(_DeletePolicy, frozen=True, kw_only=True, tag="delete_operator_policy"):
    """Delete an operator policy; a missing one is a success."""


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
    bindings_max: int | None = None
    only: tuple[str, ...] = ()
    exchange_bindings_max: int | None = None
    policies_max: int | None = None
    parameters_max: int | None = None


class ClearVhostLimits(Command, frozen=True, kw_only=True, tag="clear_vhost_limits"):
    """Remove the limits of a vhost."""

    vhost: str


class InSyncProposal(msgspec.Struct, frozen=True, array_like=True):
    """One queue of a ChangeInSync."""

    queue_id: QueueId
    epoch: Epoch
    """At which the proposer owns the queue."""
    version: int
    """On which the proposal stands; another one makes it void."""
    in_sync: tuple[NodeId, ...]
    """All of the new in-sync set, the owner with it; the old one again only raises the version (cancels)."""
    incarnations: tuple[Incarnation, ...]
    """Of each of `in_sync`, in its order: of the process that caught up."""


class ChangeInSync(OfProcess, frozen=True, kw_only=True, tag="change_in_sync"):
    """A leader of queues reports the replicas in sync, of many queues at once. What does not hold any more is skipped.
    Result: the queue_ids that were changed."""

    changes: tuple[InSyncProposal, ...]


class TransferOwner(OfProcess, frozen=True, kw_only=True, tag="transfer_owner"):
    """The owner hands a queue to another in-sync member."""

    queue_id: QueueId
    epoch: Epoch
    version: int
    to: NodeId


class GiveUpCopy(OfProcess, frozen=True, kw_only=True, tag="give_up_copy"):
    """What a member has of a queue is damaged, lacks what is committed, or may lack it (`doubted`): it does not count
    before it has caught up, and the queue goes to the heir if it was the member's. Refused unless somebody alive may
    have all of it."""

    queue_id: QueueId
    epoch: Epoch
    heir: NodeId | None = None
    """A replica that is known to be ahead; None: the choice of an election."""
    damaged: bool = False
    """It begins anew, empty, when this is applied."""
    doubted: bool = False
    """It may have all that is committed: the queue goes to the heir, and the copy counts as it did."""


class ForceOwner(Command, frozen=True, kw_only=True, tag="force_owner"):
    """An operator makes a replica the owner whatever it holds: messages that it lacks are lost."""

    queue_id: QueueId
    node: NodeId


class MoveReplica(Command, frozen=True, kw_only=True, tag="move_replica"):
    """Change the replicas of a queue. A member that is added already, or removed already, is passed over."""

    queue_id: QueueId
    add: tuple[NodeId, ...] = ()
    remove: tuple[NodeId, ...] = ()


Defining = (
    AddVhost | PutUser | SetPermission | SetTopicPermission | PutParameter | SetVhostLimits | PutPolicy
    | PutOperatorPolicy | DeclareQueue | DeclareExchange | DeclareChoosingExchange
    | DeclareDelayedExchange | DeclareHistoryExchange | DeclareDeduplicatingExchange | Bind
)  # fmt: skip
"""What definitions are made of: nothing of it ends anything."""


class ImportDefinitions(Command, frozen=True, kw_only=True, tag="import_definitions"):
    """The next part of an import: all of its parts are carried out, or none (imports.py). The last one decides; what
    contradicts the map, or another command of the import, refuses the whole. Result: whether all is done."""

    import_id: str
    number: int
    """Of the part, from 0."""
    commands: tuple[Defining, ...]
    last: bool = True
    apply: int = 0
    """Of the last part: so many commands of the import are carried out at once."""

    def __repr__(self) -> str:
        """Without the commands: they may be very many."""
        return f"ImportDefinitions(import_id={self.import_id!r}, number={self.number}, last={self.last})"


class ApplyImport(Command, frozen=True, kw_only=True, tag="apply_import"):
    """Carry out the next commands of an import that was accepted; nothing happens unless `start` are done already."""

    import_id: str
    start: int
    count: int


class DropImport(Command, frozen=True, kw_only=True, tag="drop_import"):
    """Forget an import that was not accepted. Result: whether it was there."""

    import_id: str


class CommitTransaction(Command, frozen=True, kw_only=True, tag="commit_transaction"):
    """The epoch of a producer is over, and the rows of these segments shall be seen. Result: an Outcome; a refusal
    is one too, and changes nothing."""

    vhost: str
    producer: str
    epoch: int
    run: str
    transactions: tuple[str, ...]
    """Names of segments, in the order in which their rows reach a queue."""
    rows: int = 0
    """A number of the client; for display."""
    ttl_ms: int | None = None
    """So long after it the producer is remembered; None: the default."""
    user: str = ""
    is_administrator: bool = False
    lived_ms: int = 0
    """The log's age when it was proposed, as the proposer knew it (passing.py)."""


class AbortTransaction(Command, frozen=True, kw_only=True, tag="abort_transaction"):
    """Drop those of these segments that are not committed, and are of this producer, epoch, run. Result: an Outcome."""

    vhost: str
    producer: str
    epoch: int
    run: str
    transactions: tuple[str, ...]
    user: str = ""
    is_administrator: bool = False


class _OfTime(Command, frozen=True, kw_only=True):
    vhost: str
    names: tuple[str, ...]
    lived_ms: int = 0
    """The log's age by which they are judged; 0: an earlier release's, which judged by `at_ms`."""


class ExpireTransactions(_OfTime, frozen=True, kw_only=True, tag="expire_transactions"):
    """Drop those of these segments that are not committed and whose time is over."""


class ForgetProducers(_OfTime, frozen=True, kw_only=True, tag="forget_producers"):
    """Forget those of these producers that have no segment and whose time is over."""


class PassTime(Command, frozen=True, kw_only=True, tag="pass_time"):
    """Time has passed (passing.py). Nothing changes if the log is not as old any more as its proposer believed."""

    after_ms: int
    """The log's age that the proposer went out from."""
    lived_ms: int
    """Its age now: later by what has passed on the proposer's monotonic clock."""
    wall_ms: int
    """The log's calendar now, ms since 1970."""


class FinishSegments(OfProcess, frozen=True, kw_only=True, tag="finish_segments"):
    """The owner has moved all rows of these committed segments. Those whose epoch is another by now are passed over."""

    segments: tuple[tuple[QueueId, Epoch, int], ...]
    """The queue, the epoch in which it was found empty, and how many of its rows found no queue."""


AnyCommand = (
    AddVhost | DeleteVhost | AnyExchangeDeclaration | DeleteExchange
    | DeclareQueue | DeleteQueue
    | PauseQueue | Bind | Unbind | RemoveConnection | Loosen | ForgetTransient | PutUser | SetUserLimits | DeleteUser
    | SetPermission | ClearPermission | SetTopicPermission | ClearTopicPermission | PutPolicy | DeletePolicy
    | PutOperatorPolicy | DeleteOperatorPolicy | PutParameter | DeleteParameter | SetVhostLimits | ClearVhostLimits
    | AddMember | RegisterNode | FailNode | DrainNode | ForgetNode | SetVoters | ChangeInSync | TransferOwner
    | GiveUpCopy | ForceOwner | MoveReplica | ImportDefinitions | ApplyImport | DropImport | CommitTransaction
    | AbortTransaction | ExpireTransactions | ForgetProducers | FinishSegments | PassTime | RaiseLevel
    | AttachLink | SuspendLink | ExpireLink | ForgetLink | HoldContainer | ReleaseContainer
    | DeclarePool | SetPool | PausePool | DeletePool | RequireGroups | UnbindGroup | BindGroup | DropGroup
    | EndPoolQueue | SettleGroups | LaunchWorkers | RetireWorkers | RevokeWorkers | WorkersGone | DirectGroup
    | AssignWorkers | KeepDelays | EndDelays | RetireKeys | RevokeKeys
)  # fmt: skip

_FREE_FORM: Final = ("arguments", "definition", "metadata", "value")
FREE_FORM_BYTES_MAX: Final = 8 << 10
VALUE_BYTES_MAX: Final = 64 << 10
"""Of a parameter. All members keep it in memory, log and snapshot for as long as the thing is there."""
_VERSION_BYTE: Final = bytes((VERSION,))
_DECODER: Final = msgspec.msgpack.Decoder(AnyCommand, ext_hook=restored)


def encode(command: AnyCommand) -> bytes:
    """The command as stored bytes.

    Raises PreconditionFailed when a value in it cannot be stored (an integer beyond 64 bits, nesting beyond
    reason): the client's fault, so it is the answer to the command.
    """
    for each in command.commands if isinstance(command, ImportDefinitions) else (command,):
        for field in _FREE_FORM:
            value = getattr(each, field, None)
            if too_deep(value):
                raise PreconditionFailed(f"{field} nested deeper than {NESTING_MAX} levels")
            if value:
                _check_size(field, value)
    try:
        return _VERSION_BYTE + ENCODER.encode(command)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PreconditionFailed(f"arguments cannot be stored: {error}") from error


def _check_size(field: str, value: Any) -> None:
    """What was stored by an earlier release is read whatever its size is: it is asked of what is ordered."""
    most = VALUE_BYTES_MAX if field == "value" else FREE_FORM_BYTES_MAX
    try:
        size = len(ENCODER.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return  # the encoder refuses it below
    if size > most:
        raise PreconditionFailed(f"{field} of {size} bytes: at most {most} are kept")


def decode(stored: bytes | memoryview) -> AnyCommand:
    """The command behind stored bytes. ValueError: they are none; NewerRelease: this release does not know it."""
    command: AnyCommand = decoded(stored, "a metadata command", "command", _DECODER.decode)
    return command
