"""What requests say in their bodies, and the commands that they stand for: each is built here, for a path of the API,
for an import and for the definitions that a node brings along.

`command` gets the time and what names the thing: by a path, or by an entry of a document of definitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, get_args

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import asdict

from clusterbroker.broker.stats.as_user import AckMode
from clusterbroker.broker.stats.inspection import SHOWN_MAX, TREATED_MAX, TRUNCATE_DEFAULT, TRUNCATE_MAX
from clusterbroker.broker.stats.message_filter import LENGTH_MAX
from clusterbroker.cluster.passwords import PASSWORD_BYTES_MAX, SCRYPT, SHA256, SHA512
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.delay_bits import BITS_MAX, DELAY_BITS, DELAY_EXCHANGE
from clusterbroker.cluster.wiring.delays import as_delayed
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS, ApplyTo, UserLimits
from clusterbroker.cluster.wiring.exchange_rules import (
    DECLARABLE,
    DELAY_RATE,
    DELAYED_TYPE,
    HISTORY_LENGTH,
    TYPES,
    declaration,
)
from clusterbroker.cluster.wiring.histories import HISTORY_LENGTH_MAX
from clusterbroker.cluster.wiring.policies import ALTERNATE_EXCHANGE
from clusterbroker.cluster.wiring.queue_rules import unheeded
from clusterbroker.cluster.wiring.queue_settings import POLICY_RULES, RULES, storable_lives

from .errors import bad_request
from .forms import Form, shown, table, text
from .json_schema import INTEGER_MAX, Schema, integer, one_of
from .json_schema import table as table_schema
from .json_schema import text as text_schema
from .naming import check_arguments

DEFINITIONS_BYTES_MAX: Final = 64 << 20
TAGS_MAX: Final = 50
MESSAGES_MAX: Final = 10_000
"""Of one get: all are held until the last one came."""
SEQ_MAX: Final = 2**56
APPLY_TO: Final = get_args(ApplyTo)
ACK_MODES: Final = get_args(AckMode)
ENCODINGS: Final = ("auto", "base64")
_HASHES: Final = (SHA256, SHA512, SCRYPT)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
USER_LIMITS: Final = {"max-connections": "connections_max", "max-channels": "channels_max"}

# -- arguments and settings -----------------------------------------------------------------------------------

QUEUE_ARGUMENTS: Final = table_schema({rule.argument: dict(rule.legal.schema) for rule in RULES})
OPERATOR_DEFINITION: Final = table_schema(
    {key: dict(rule.legal.schema) for key, rule in POLICY_RULES.items()}, minProperties=1, additionalProperties=False
)
POLICY_DEFINITION: Final = {
    **OPERATOR_DEFINITION,
    "properties": {
        **OPERATOR_DEFINITION["properties"], ALTERNATE_EXCHANGE: text_schema(),
        DELAY_BITS: integer(1, BITS_MAX), DELAY_EXCHANGE: text_schema("Where messages go whose keys had a delay"),
    },
}  # fmt: skip
_EXCHANGE_ARGUMENTS: Final = table_schema(
    {ALTERNATE_EXCHANGE: text_schema("Where messages go that no queue is bound for"), "hash-header": text_schema(),
     "hash-property": one_of("correlation_id", "message_id", "timestamp"),
     DELAYED_TYPE: one_of(*TYPES), "x-max-delayed": integer(0, INTEGER_MAX),
     "x-max-delayed-bytes": integer(0, INTEGER_MAX), DELAY_RATE: integer(1, INTEGER_MAX),
     HISTORY_LENGTH: integer(1, HISTORY_LENGTH_MAX)}
)  # fmt: skip
_LIMIT: Final = integer(-INTEGER_MAX, INTEGER_MAX)
TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
NUMBERS: Final = {"delivery_mode": 255, "priority": 255, "timestamp": 2**64 - 1}
PROPERTIES: Final = table_schema(
    {
        **{name: text_schema(maxLength=255) for name in TEXTS},
        **{name: integer(0, most) for name, most in NUMBERS.items()},
        "headers": table_schema(),
    },
    additionalProperties=False,
)


def _read_arguments(name: str, value: Any) -> dict[str, Any]:
    """What a declaration says beyond AMQP's fields."""
    arguments = storable_lives(table(name, value))
    check_arguments(arguments)
    return arguments


def _arguments(schema: Schema) -> Meta:
    return Meta(extra_json_schema=schema, extra={"take": _read_arguments})


Name = Annotated[str, Meta(min_length=1, max_length=255)]
ShortText = Annotated[str, Meta(max_length=255)]
Pattern = Annotated[str, Meta(description="A regular expression (RE2)", extra_json_schema={"format": "regex"})]
Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]


def _read_tags(name: str, value: Any) -> tuple[str, ...]:
    """Texts, or one text with commas."""
    if isinstance(value, str):
        value = [tag.strip() for tag in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request(f"'{name}' should be a list of texts")
    found = tuple(dict.fromkeys(tag for tag in value if tag))
    if len(found) > TAGS_MAX:
        raise bad_request(f"more than {TAGS_MAX} tags")
    return found


Tags = Annotated[
    str | Annotated[list[str], Meta(max_length=TAGS_MAX)],
    Meta(description="With commas, or a list", extra={"take": _read_tags}),
]
"""Read as a tuple."""

# -- vhosts, users, permissions -------------------------------------------------------------------------------

_QueueType = Annotated[Any, Meta(extra_json_schema=one_of("classic", "quorum"))]

_Tracing = Annotated[bool, Meta(description="Whether the firehose tells what is published and got here")]


class VhostMetadata(Form):
    """What RabbitMQ's clients say in the place of the fields of the vhost itself."""

    description: str = ""
    tags: Tags = ""
    default_queue_type: _QueueType = None


class Vhost(Form):
    """A vhost."""

    metadata: VhostMetadata = field(default_factory=VhostMetadata)
    description: str | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    default_queue_type: _QueueType = UNSET
    tracing: (
        Annotated[bool, Meta(description="Whether the firehose tells what is published and got here")] | UnsetType
    ) = UNSET

    def command(self, at_ms: int, name: str) -> c.AddVhost:
        """Make or change it."""
        metadata, kind = self.metadata, self.default_queue_type
        kind = metadata.default_queue_type if kind is UNSET else kind
        return c.AddVhost(
            at_ms=at_ms,
            name=name,
            description=metadata.description if self.description is UNSET else self.description,
            tags=tuple(metadata.tags if self.tags is UNSET else self.tags),
            default_queue_type=None if kind in (None, "", "undefined") else str(kind),
            tracing=None if self.tracing is UNSET else self.tracing,
        )


class User(Form):
    """A new user needs tags and one of password and password_hash; of one that is there, what is left out stays as it
    is."""

    MORE: ClassVar[Schema] = {"anyOf": [{"required": [name]} for name in ("password", "password_hash", "tags")]}
    tags: Tags | UnsetType = UNSET
    password: Annotated[
        Any,
        Meta(extra_json_schema=text_schema("In the clear; hashed before it is stored", minLength=1,
                                           maxLength=PASSWORD_BYTES_MAX)),
    ] = None  # fmt: skip
    password_hash: Annotated[
        Any,
        Meta(extra_json_schema=text_schema("As an export has it; empty: nobody signs in with a password", maxLength=400,
                                           pattern=r"^([A-Za-z0-9+/]*={0,2}|\$scrypt\$.*)$")),
    ] = UNSET  # fmt: skip
    hashing_algorithm: Annotated[Any, Meta(extra_json_schema=one_of(*_HASHES))] = SHA256
    limits: Annotated[
        dict[str, Any],
        Meta(extra_json_schema={"properties": dict.fromkeys(USER_LIMITS, _LIMIT), "additionalProperties": False}),
    ] | UnsetType = UNSET  # fmt: skip

    def command(self, at_ms: int, name: str, there: bool = False) -> tuple[c.PutUser, str | None]:
        """Make or replace it; with a password, that is still to be hashed, or a hash that RabbitMQ or we made.

        Of a user that is `there` the body may say a part: the tags alone, or the password alone. The rest stays as it
        is then, and so do limits of which the body says nothing.
        """
        tagged, secret = self.tags is not UNSET, self.password is not None or self.password_hash is not UNSET
        only: tuple[str, ...] = ()
        if there and tagged is not secret:
            only = ("tags",) if tagged else ("password_hash", "hash_algorithm")
        elif not tagged:
            raise bad_request("tags_not_present")
        elif not secret:
            raise bad_request("password or password_hash is missing")
        password, (stored, algorithm) = None, ("", SCRYPT)
        if self.password is not None:
            password = self._password()
        elif secret:
            stored, algorithm = self._hash()
        limits = None if there else UserLimits()
        if self.limits is not UNSET:
            only = (*only, "limits") if only else only
            fields: dict[str, Any] = {
                limit_field(USER_LIMITS, "user-limits", limit, value): value for limit, value in self.limits.items()
            }
            limits = UserLimits(**fields)
        command = c.PutUser(
            at_ms=at_ms,
            name=name,
            password_hash=stored,
            hash_algorithm=algorithm,
            tags=tuple(self.tags) if self.tags is not UNSET else (),
            limits=limits,
            only=only,
        )
        return command, password

    def _password(self) -> str:
        password = text("password", self.password)
        if not password:
            raise bad_request("the password is empty: give an empty password_hash for a user without a password")
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            raise bad_request(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
        return password

    def _hash(self) -> tuple[str, str]:
        stored = text("password_hash", self.password_hash)
        algorithm = text("hashing_algorithm", self.hashing_algorithm)
        if algorithm not in _HASHES:
            raise bad_request(f"hashing_algorithm is none of {', '.join(_HASHES)}")
        if algorithm != SCRYPT and not _BASE64.fullmatch(stored):
            raise bad_request("password_hash is not base64")
        return stored, algorithm


class ImportedUser(User):
    """A user of an import, said whole."""

    MORE: ClassVar[Schema] = {"anyOf": [{"required": ["tags", name]} for name in ("password", "password_hash")]}


def _read_names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(user, str) for user in value):
        raise bad_request(f"'{name}' should be a list of names")
    return value


class Users(Form):
    """Names of users."""

    users: Annotated[list[Name], Meta(extra={"take": _read_names})]


class Login(Form):
    """Who signs in."""

    username: str
    password: str


class Permission(Form):
    """What a user may do in a vhost."""

    configure: Pattern
    write: Pattern
    read: Pattern

    def command(self, at_ms: int, vhost: str, user: str) -> c.SetPermission:
        """Make or replace it."""
        return c.SetPermission(at_ms=at_ms, user=user, vhost=vhost, **asdict(self))


class TopicPermission(Form):
    """Which routing keys a user may use on a topic exchange."""

    exchange: str
    write: Pattern
    read: Pattern

    def command(self, at_ms: int, vhost: str, user: str) -> c.SetTopicPermission:
        """Make or replace it."""
        return c.SetTopicPermission(at_ms=at_ms, user=user, vhost=vhost, **asdict(self))


# -- policies, parameters, limits -----------------------------------------------------------------------------


class OperatorPolicy(Form):
    """A policy over those of users."""

    pattern: Pattern
    definition: Annotated[dict[str, Any], Meta(extra_json_schema=OPERATOR_DEFINITION)]
    apply_to: Annotated[str, Meta(extra_json_schema={"enum": list(APPLY_TO)}, extra={"also": "apply_to"})] = field(
        name="apply-to", default="all"
    )
    priority: int = 0

    def command(self, at_ms: int, vhost: str, name: str) -> c.PutPolicy | c.PutOperatorPolicy:
        """Make or replace it."""
        return c.PutOperatorPolicy(at_ms=at_ms, vhost=vhost, name=name, **self._fields())

    def _fields(self) -> dict[str, Any]:
        if self.apply_to not in APPLY_TO:
            raise bad_request(f"Validation failed\n\napply-to '{self.apply_to[:80]}' unrecognised\n")
        return asdict(self) | {"definition": storable_lives(self.definition)}


class Policy(OperatorPolicy, kw_only=True):
    """A policy."""

    definition: Annotated[dict[str, Any], Meta(extra_json_schema=POLICY_DEFINITION)]

    def command(self, at_ms: int, vhost: str, name: str) -> c.PutPolicy | c.PutOperatorPolicy:
        """Make or replace it."""
        return c.PutPolicy(at_ms=at_ms, vhost=vhost, name=name, **self._fields())


class Parameter(Form):
    """A runtime parameter."""

    value: Annotated[Any, Meta(description="Whatever the component takes")]

    def command(self, at_ms: int, vhost: str, component: str, name: str) -> c.PutParameter:
        """Make or replace it; a global one has neither vhost nor component."""
        return c.PutParameter(at_ms=at_ms, vhost=vhost, component=component, name=name, value=self.value)


class ClusterName(Form):
    """What the cluster is called."""

    name: ShortText


class Limit(Form):
    """A limit; a negative one is none."""

    value: int


def limit_field(names: Mapping[str, str], of: str, name: str, value: Any) -> str:
    """The field of a limit; refused if there is none of this name, or it cannot have this value. None takes it off."""
    if name not in names:
        raise bad_request(f"Validation failed\n\nUnrecognised terms [{name}] in {of}\n")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63):
        raise _no_number(name, value)
    return names[name]


def _no_number(name: str, value: Any) -> Exception:
    return bad_request(f"Validation failed\n\n{name} should be a number, actually was {shown(value)}\n")


def user_limit_command(at_ms: int, user: str, name: str, value: int | None) -> c.SetUserLimits:
    """One limit of a user; None takes it off."""
    changed = limit_field(USER_LIMITS, "user-limits", name, value)
    return c.SetUserLimits(at_ms=at_ms, name=user, limits=UserLimits(**{changed: value}), only=(changed,))


def vhost_limit_command(at_ms: int, vhost: str, name: str, value: int | None) -> c.SetVhostLimits:
    """One limit of a vhost; None takes it off."""
    fields: dict[str, Any] = {limit_field(VHOST_LIMITS, "limits", name, value): value}
    return c.SetVhostLimits(at_ms=at_ms, vhost=vhost, only=tuple(fields), **fields)


def vhost_limits_command(at_ms: int, vhost: str, limits: Mapping[str, Any]) -> c.SetVhostLimits:
    """All limits of a vhost."""
    fields: dict[str, Any] = {}
    for name, value in limits.items():
        fields[limit_field(VHOST_LIMITS, "limits", name, value)] = value
        if value is None:
            raise _no_number(name, value)
    return c.SetVhostLimits(at_ms=at_ms, vhost=vhost, **fields)


# -- queues, exchanges, bindings: commands of an import, methods of AMQP from a path --------------------------


class Queue(Form):
    """A queue."""

    durable: bool = True
    auto_delete: bool = False
    arguments: Annotated[dict[str, Any], _arguments(QUEUE_ARGUMENTS)] = field(default_factory=dict)

    def command(self, at_ms: int, vhost: str, name: str) -> c.DeclareQueue:
        """Of an import."""
        if said := unheeded(vhost, name, self.arguments):
            raise bad_request(said)
        return c.DeclareQueue(at_ms=at_ms, vhost=vhost, name=name, **asdict(self))


class Exchange(Form):
    """An exchange."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(DECLARABLE)})] = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: Annotated[bool, Meta(description="Clients cannot publish to it")] = False
    arguments: Annotated[dict[str, Any], _arguments(_EXCHANGE_ARGUMENTS)] = field(default_factory=dict)


class ImportedExchange(Exchange, kw_only=True):
    """An exchange of an import: its type is said."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(DECLARABLE)})]

    def command(self, at_ms: int, vhost: str, name: str) -> c.AnyExchangeDeclaration:
        """Make it."""
        said = asdict(self)
        said["type"], said["arguments"] = as_delayed(self.type, self.arguments)
        return declaration(said["type"])(at_ms=at_ms, vhost=vhost, name=name, **said)


class Binding(Form):
    """A binding."""

    routing_key: ShortText = ""
    arguments: Annotated[dict[str, Any], _arguments({})] = field(default_factory=dict)


class ImportedBinding(Binding):
    """A binding of an import, which says to what."""

    destination_type: Annotated[str, Meta(extra_json_schema={"enum": ["queue", "exchange"]})] = "queue"

    def command(self, at_ms: int, vhost: str, source: str, destination: str) -> c.Bind:
        """Make it."""
        kind = self.destination_type
        if kind not in ("queue", "exchange"):
            raise bad_request(f"destination_type '{kind}' is neither 'queue' nor 'exchange'")
        return c.Bind(
            at_ms=at_ms,
            vhost=vhost,
            source=source,
            destination=destination,
            destination_kind="queue" if kind == "queue" else "exchange",
            routing_key=self.routing_key,
            arguments=self.arguments,
        )


# -- operations -----------------------------------------------------------------------------------------------

_Member = Annotated[str, Meta(description="A member that has a copy")]


class Move(Form):
    """Where a queue goes."""

    to: _Member


class ForceOwner(Form):
    """Which replica becomes the leader, whatever it lacks."""

    MORE: ClassVar[Schema] = {"required": ["to", "confirm_loss"]}
    to: _Member
    confirm_loss: Annotated[bool, Meta(extra_json_schema={"const": True})] | UnsetType = UNSET


class Drain(Form):
    """The end of a drain as well."""

    undo: bool = False


class FeatureLevel(Form):
    """The cluster's feature level."""

    level: (
        Annotated[int, Meta(ge=1, description="Without it the highest that the node's release knows")] | UnsetType
    ) = UNSET


class QueueAction(Form):
    """What RabbitMQ does with mirrors."""

    action: Annotated[str, Meta(extra_json_schema={"enum": ["sync", "cancel_sync"]})]


class Resume(Form):
    """A queue, or the staged rows of an exchange."""

    staged: Annotated[bool, Meta(description="The name is a staging exchange's: its rows are meant")] = False


# -- messages -------------------------------------------------------------------------------------------------


class Publish(Form):
    """A message."""

    payload: str
    routing_key: ShortText
    payload_encoding: Annotated[str, Meta(extra_json_schema={"enum": ["string", "base64"]})] = "string"
    properties: Annotated[dict[str, Any], Meta(extra_json_schema=PROPERTIES)] = field(default_factory=dict)


class Get(Form):
    """How many messages, and what becomes of them."""

    ackmode: Annotated[str, Meta(extra_json_schema={"enum": list(ACK_MODES)})]
    encoding: Annotated[str, Meta(extra_json_schema={"enum": list(ENCODINGS)})]
    count: Annotated[int, Meta(ge=0, le=MESSAGES_MAX)]
    truncate: Annotated[int, Meta(ge=0, description="bytes of a payload that are shown; all without it")] | None = None


_Filter = Annotated[
    str, Meta(max_length=LENGTH_MAX, description="Conditions with AND between them; empty: all messages")
]


class _Range(Form):
    first: Seq = field(name="from", default=1)
    last: Seq = field(name="to", default=0)
    life: Annotated[str, Meta(max_length=64, description="As browsing told it")] = ""


class Browse(_Range):
    """Of a query: which messages of a queue are shown, and how much of each."""

    encoding: Annotated[str, Meta(extra_json_schema={"enum": list(ENCODINGS)})] = "auto"
    filter: _Filter = ""
    count: Annotated[int, Meta(ge=1, le=SHOWN_MAX)] = 50
    truncate: Annotated[int, Meta(ge=0, le=TRUNCATE_MAX)] = TRUNCATE_DEFAULT


def _read_seqs(_name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > TREATED_MAX:
        raise bad_request(f"'seqs' is a list of at most {TREATED_MAX} numbers")
    for seq in value:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq <= SEQ_MAX:
            raise bad_request(f"'seqs' is a list of numbers from 0 to {SEQ_MAX}")
    return value


_WHICH_ONES: Final[list[Schema]] = [{"required": ["seqs"]}, {"required": ["filter"]}]


class Which(_Range):
    """Which messages: by number, or by a filter and a range."""

    MORE: ClassVar[Schema] = {"oneOf": _WHICH_ONES}
    seqs: Annotated[list[Seq], Meta(max_length=TREATED_MAX, extra={"take": _read_seqs})] | UnsetType = UNSET
    filter: _Filter | UnsetType = UNSET
    count: Annotated[int, Meta(ge=1, le=TREATED_MAX)] = TREATED_MAX


class Deleted(Which):
    """Messages that are deleted."""

    staged: Annotated[bool, Meta(description="The name is a staging exchange's: its rows are meant")] = False


class Elsewhere(Which):
    """Messages that go elsewhere."""

    MORE: ClassVar[Schema] = {
        "allOf": [
            {"oneOf": _WHICH_ONES},
            {"oneOf": [
                {"required": ["to_queue"]},
                {"required": ["exchange"]},
                {"required": ["to_origin"], "properties": {"to_origin": {"const": True}}},
            ]},
        ]
    }  # fmt: skip
    to_origin: Annotated[bool, Meta(description="To the queue in which each died first")] = False
    to_queue: Name | UnsetType = UNSET
    exchange: ShortText | UnsetType = UNSET
    routing_key: Annotated[
        str, Meta(max_length=255, description="Without it each message's own")
    ] | UnsetType = UNSET  # fmt: skip
