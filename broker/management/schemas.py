"""What requests say and are answered, as JSON schemas: for the OpenAPI document, and whoever makes clients of it.

They describe what is taken in its plain form. The API takes more, as RabbitMQ does: a number or a truth value as a
text, and fields that it knows nothing of, which it passes over. What decides is the plan of each path; tests hold the
two against each other.
"""

from __future__ import annotations

from typing import Any, Final

from clusterbroker.broker.stats.inspection import SHOWN_MAX, TREATED_MAX, TRUNCATE_DEFAULT, TRUNCATE_MAX
from clusterbroker.broker.stats.message_filter import LENGTH_MAX
from clusterbroker.cluster.passwords import PASSWORD_BYTES_MAX, SCRYPT, SHA256, SHA512
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS
from clusterbroker.cluster.wiring.exchange_rules import TYPES
from clusterbroker.cluster.wiring.policies import ALTERNATE_EXCHANGE
from clusterbroker.cluster.wiring.queue_settings import ARGUMENT_RULES, MILLISECONDS_MAX, POLICY_RULES
from clusterbroker.cluster.wiring.stream_settings import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

from .amqp_operations import ACK_MODES, MESSAGES_MAX, NUMBERS, TEXTS
from .bodies import APPLY_TO, TAGS_MAX
from .definitions import SECTIONS
from .messages import SEQ_MAX
from .paging import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

Schema = dict[str, Any]
Place = tuple[str, str]
"""Method and path."""

INTEGER_MAX: Final = 2**63 - 1


def text(description: str = "", **more: Any) -> Schema:
    """A text."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def integer(least: int, most: int, description: str = "", **more: Any) -> Schema:
    """A whole number within bounds."""
    told = {"description": description} if description else {}
    return {"type": "integer", "minimum": least, "maximum": most, **told, **more}


def flag(description: str = "", default: bool | None = None) -> Schema:
    """A truth value."""
    told: Schema = {"description": description} if description else {}
    return {"type": "boolean", **told, **({} if default is None else {"default": default})}


def one_of(*allowed: str, **more: Any) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(allowed), **more}


def table(fields: dict[str, Schema] | None = None, required: tuple[str, ...] = (), **more: Any) -> Schema:
    """An object; what it says beyond its fields is passed over."""
    schema: Schema = {"type": "object"}
    if fields:
        schema["properties"] = fields
    if required:
        schema["required"] = list(required)
    return {**schema, **more}


def list_of(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


# -- what is declared

NAME: Final = text(minLength=1, maxLength=255)
_MILLISECONDS: Final = integer(0, MILLISECONDS_MAX, "ms")
_COUNT: Final = integer(0, INTEGER_MAX)
_KNOWN: Final[dict[str, Schema]] = {
    "expires": integer(1, MILLISECONDS_MAX, "ms without a consumer, after which the queue is deleted"),
    "message-ttl": integer(0, MILLISECONDS_MAX, "ms that a message is kept for at most"),
    "dead-letter-exchange": text("Where messages go that are rejected, expire or have no room", maxLength=255),
    "dead-letter-routing-key": text(maxLength=255),
    "dead-letter-strategy": one_of("at-most-once", "at-least-once"),
    "max-length": _COUNT,
    "max-length-bytes": _COUNT,
    "max-priority": integer(1, 255),
    "overflow": one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "queue-mode": one_of("default", "lazy"),
    "queue-version": integer(1, 2),
    "single-active-consumer": flag(),
    "queue-type": one_of("classic", "quorum", "stream"),
    "max-age": text(
        "Of a stream's messages: a number and Y, M, D, h, m or s", pattern="^[0-9]{1,12}[YMDhms]$", examples=["7D"]
    ),
    "stream-max-segment-size-bytes": integer(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "stream-filter-size-bytes": integer(16, 255),
    "initial-cluster-size": integer(1, 255),
    "consumer-disconnected-timeout": _MILLISECONDS,
    "max-in-memory-length": _COUNT,
    "max-in-memory-bytes": _COUNT,
    "queue-master-locator": text(),
    "queue-leader-locator": one_of("client-local", "balanced"),
    "delivery-limit": integer(-1, 2**31 - 1),
    "consumer-timeout": _MILLISECONDS,
    "delayed-retry-type": one_of("disabled", "all", "failed", "returned"),
    "delayed-retry-min": _MILLISECONDS,
    "delayed-retry-max": _MILLISECONDS,
    "quorum-initial-group-size": integer(1, 255),
    "replicas": integer(1, 255),
    "min-in-sync": integer(1, 255),
    "durability": one_of("memory", "disk", "fsync"),
    "ownership": one_of("shared", "rotating"),
    "ownership-hold-ms": integer(1, MILLISECONDS_MAX),
}
QUEUE_ARGUMENTS: Final = table({name: _KNOWN.get(name.removeprefix("x-"), {}) for name in ARGUMENT_RULES})
_POLICY_KEYS: Final = {name: _KNOWN.get(name, {}) for name in POLICY_RULES}
POLICY_DEFINITION: Final = table(
    {**_POLICY_KEYS, ALTERNATE_EXCHANGE: text()}, minProperties=1, additionalProperties=False
)
OPERATOR_DEFINITION: Final = table(_POLICY_KEYS, minProperties=1, additionalProperties=False)
_EXCHANGE_ARGUMENTS: Final = table(
    {ALTERNATE_EXCHANGE: text("Where messages go that no queue is bound for"), "hash-header": text(),
     "hash-property": one_of("correlation_id", "message_id", "timestamp")}
)  # fmt: skip
_TAGS: Final = {
    "description": "With commas, or a list",
    "anyOf": [text(), list_of(text(), maxItems=TAGS_MAX)],
}
_PATTERN: Final = text("A regular expression (RE2)", format="regex")
_LIMIT: Final = integer(-INTEGER_MAX, INTEGER_MAX)
_USER_LIMITS: Final = table({"max-connections": _LIMIT, "max-channels": _LIMIT}, additionalProperties=False)
_VHOST_LIMITS: Final = table(dict.fromkeys(VHOST_LIMITS, _LIMIT), additionalProperties=False)

VHOST: Final = table(
    {
        "description": text(),
        "tags": _TAGS,
        "default_queue_type": one_of("classic", "quorum"),
        "tracing": flag("Whether the firehose tells what is published and got here"),
    }
)
USER: Final = table(
    {
        "password": text("In the clear; hashed before it is stored", minLength=1, maxLength=PASSWORD_BYTES_MAX),
        "password_hash": text(
            "As an export has it; empty: nobody signs in with a password",
            maxLength=400,
            pattern=r"^([A-Za-z0-9+/]*={0,2}|\$scrypt\$.*)$",
        ),
        "hashing_algorithm": one_of(SHA256, SHA512, SCRYPT, default=SHA256),
        "tags": _TAGS,
        "limits": _USER_LIMITS,
    },
    anyOf=[{"required": ["password"]}, {"required": ["password_hash"]}, {"required": ["tags"]}],
    description="A new user needs tags and one of password and password_hash; of one that is there, what is left out "
    "stays as it is.",
)
PERMISSION: Final = table(dict.fromkeys(("configure", "write", "read"), _PATTERN), ("configure", "write", "read"))
TOPIC_PERMISSION: Final = table(
    {"exchange": text(), "write": _PATTERN, "read": _PATTERN}, ("exchange", "write", "read")
)


def _policy(definition: Schema) -> Schema:
    fields = {
        "pattern": _PATTERN,
        "definition": definition,
        "apply-to": one_of(*APPLY_TO, default="all"),
        "priority": integer(-INTEGER_MAX, INTEGER_MAX, default=0),
    }
    return table(fields, ("pattern", "definition"))


QUEUE: Final = table({"durable": flag(default=True), "auto_delete": flag(default=False), "arguments": QUEUE_ARGUMENTS})
EXCHANGE: Final = table(
    {
        "type": one_of(*TYPES, default="direct"),
        "durable": flag(default=True),
        "auto_delete": flag(default=False),
        "internal": flag("Clients cannot publish to it", default=False),
        "arguments": _EXCHANGE_ARGUMENTS,
    }
)
BINDING: Final = table({"routing_key": text(maxLength=255, default=""), "arguments": table()})
PARAMETER: Final = table({"value": {"description": "Whatever the component takes"}}, ("value",))
LIMIT: Final = table({"value": _LIMIT}, ("value",))


def _imported(schema: Schema, *names: str) -> Schema:
    """An entry of a document of definitions: what a path says otherwise is in it."""
    fields = dict.fromkeys(names, NAME) | schema.get("properties", {})
    return {**schema, "properties": fields, "required": [*names, *schema.get("required", ())]}


_ENTRIES: Final[dict[str, Schema]] = {
    "vhosts": _imported(VHOST, "name"),
    "users": _imported(USER, "name"),
    "permissions": _imported(PERMISSION, "vhost", "user"),
    "topic_permissions": _imported(TOPIC_PERMISSION, "vhost", "user"),
    "parameters": _imported(PARAMETER, "vhost", "component", "name"),
    "global_parameters": _imported(PARAMETER, "name"),
    "policies": _imported(_policy(POLICY_DEFINITION), "vhost", "name"),
    "operator_policies": _imported(_policy(OPERATOR_DEFINITION), "vhost", "name"),
    "queues": _imported(QUEUE, "vhost", "name"),
    "exchanges": _imported({**EXCHANGE, "required": ["type"]}, "vhost", "name"),
    "bindings": _imported(
        table({**BINDING["properties"], "destination_type": one_of("queue", "exchange", default="queue")}),
        "vhost",
        "source",
        "destination",
    ),
}
assert set(_ENTRIES) == set(SECTIONS), "every section of a document of definitions has a schema"


def _document(of_one_vhost: bool) -> Schema:
    entries = _ENTRIES
    if of_one_vhost:
        entries = {
            section: {**entry, "required": [name for name in entry["required"] if name != "vhost"]}
            for section, entry in _ENTRIES.items()
            if "vhost" in entry["properties"] and "user" not in entry["properties"]
        }
    return table({section: list_of(entry) for section, entry in entries.items()})


# -- messages

PROPERTIES: Final = table(
    {
        **{name: text(maxLength=255) for name in TEXTS},
        **{name: integer(0, most) for name, most in NUMBERS.items()},
        "headers": table(),
    },
    additionalProperties=False,
)
PUBLISH: Final = table(
    {
        "routing_key": text(maxLength=255),
        "payload": text(),
        "payload_encoding": one_of("string", "base64", default="string"),
        "properties": PROPERTIES,
    },
    ("routing_key", "payload"),
)
GET: Final = table(
    {
        "count": integer(0, MESSAGES_MAX),
        "ackmode": one_of(*ACK_MODES),
        "encoding": one_of("auto", "base64"),
        "truncate": integer(0, INTEGER_MAX, "bytes of a payload that are shown; all without it"),
    },
    ("count", "ackmode", "encoding"),
)
_SEQ: Final = integer(0, SEQ_MAX)
_FILTER: Final = text("Conditions with AND between them; empty: all messages", maxLength=LENGTH_MAX)
_WHICH: Final[dict[str, Schema]] = {
    "seqs": list_of(_SEQ, maxItems=TREATED_MAX),
    "filter": _FILTER,
    "from": _SEQ,
    "to": _SEQ,
    "count": integer(1, TREATED_MAX),
    "life": text("As browsing told it", maxLength=64),
}
_WHICH_ONES: Final[list[Schema]] = [{"required": ["seqs"]}, {"required": ["filter"]}]
_WHERE: Final[dict[str, Schema]] = {
    "to_queue": NAME,
    "exchange": text(maxLength=255),
    "routing_key": text("Without it each message's own", maxLength=255),
    "to_origin": flag("To the queue in which each died first", default=False),
}
_STAGED: Final = flag("The name is a staging exchange's: its rows are meant", default=False)
_SOME_ELSEWHERE: Final = table(
    {**_WHICH, **_WHERE},
    allOf=[
        {"oneOf": _WHICH_ONES},
        {
            "oneOf": [
                {"required": ["to_queue"]},
                {"required": ["exchange"]},
                {"required": ["to_origin"], "properties": {"to_origin": {"const": True}}},
            ]
        },
    ],
)

# -- by place

_TO: Final = text("A member that has a copy")
_MESSAGES: Final = "/api/queues/{vhost}/{name}/messages"
BODIES: Final[dict[Place, Schema]] = {
    ("PUT", "/api/vhosts/{vhost}"): VHOST,
    ("PUT", "/api/users/{user}"): USER,
    ("POST", "/api/users/bulk-delete"): table({"users": list_of(NAME)}, ("users",)),
    ("PUT", "/api/permissions/{vhost}/{user}"): PERMISSION,
    ("PUT", "/api/topic-permissions/{vhost}/{user}"): TOPIC_PERMISSION,
    ("PUT", "/api/policies/{vhost}/{name}"): _policy(POLICY_DEFINITION),
    ("PUT", "/api/operator-policies/{vhost}/{name}"): _policy(OPERATOR_DEFINITION),
    ("PUT", "/api/parameters/{component}/{vhost}/{name}"): PARAMETER,
    ("PUT", "/api/global-parameters/{name}"): PARAMETER,
    ("PUT", "/api/cluster-name"): table({"name": text(maxLength=255)}, ("name",)),
    ("PUT", "/api/vhost-limits/{vhost}/{name}"): LIMIT,
    ("PUT", "/api/user-limits/{user}/{name}"): LIMIT,
    ("POST", "/api/definitions"): _document(of_one_vhost=False),
    ("POST", "/api/definitions/{vhost}"): _document(of_one_vhost=True),
    ("PUT", "/api/queues/{vhost}/{name}"): QUEUE,
    ("POST", "/api/queues/{vhost}/{name}/get"): GET,
    ("POST", "/api/queues/{vhost}/{name}/actions"): table({"action": one_of("sync", "cancel_sync")}, ("action",)),
    ("PUT", "/api/exchanges/{vhost}/{name}"): EXCHANGE,
    ("POST", "/api/exchanges/{vhost}/{name}/publish"): PUBLISH,
    ("POST", "/api/bindings/{vhost}/e/{source}/q/{destination}"): BINDING,
    ("POST", "/api/bindings/{vhost}/e/{source}/e/{destination}"): BINDING,
    ("POST", "/api/queues/{vhost}/{name}/move"): table({"to": _TO}, ("to",)),
    ("POST", "/api/queues/{vhost}/{name}/force-owner"): table(
        {"to": _TO, "confirm_loss": {"type": "boolean", "const": True}}, ("to", "confirm_loss")
    ),
    ("POST", "/api/nodes/{name}/drain"): table({"undo": flag(default=False)}),
    ("POST", f"{_MESSAGES}/delete"): table({**_WHICH, "staged": _STAGED}, oneOf=_WHICH_ONES),
    ("PUT", "/api/queues/{vhost}/{name}/resume"): table({"staged": _STAGED}),
    ("POST", f"{_MESSAGES}/move"): _SOME_ELSEWHERE,
    ("POST", f"{_MESSAGES}/replay"): _SOME_ELSEWHERE,
    ("POST", "/api/login"): table({"username": text(), "password": text()}, ("username", "password")),
}
"""Of a place that is not here the body says nothing, and may be missing."""

_TRUE: Final = one_of("true", "false", default="false")
_PAGED: Final[dict[str, Schema]] = {
    "page": integer(1, INTEGER_MAX, "Number of the page, from 1"),
    "page_size": integer(1, PAGE_SIZE_MAX, "Items on a page", default=PAGE_SIZE_DEFAULT),
    "name": text("Only items whose name contains this"),
    "use_regex": one_of("true", "false", description="`true`: name is a regular expression", default="false"),
    "sort": text("Dotted path of the field to sort by"),
    "sort_reverse": one_of("true", "false", description="`true`: the last one first", default="false"),
    "cursor": text("Instead of a page: where the last answer ended; empty to begin"),
    "limit": integer(1, PAGE_SIZE_MAX, "With a cursor: how many items", default=PAGE_SIZE_DEFAULT),
}
_COLUMNS: Final = {"columns": text("Dotted paths of the fields to answer, with commas")}
_QUERIES: Final[dict[Place, dict[str, Schema]]] = {
    ("GET", "/api/moves"): {"grouped": _TRUE},
    ("GET", _MESSAGES): {
        "from": _SEQ,
        "to": _SEQ,
        "count": integer(1, SHOWN_MAX, default=50),
        "filter": _FILTER,
        "truncate": integer(0, TRUNCATE_MAX, default=TRUNCATE_DEFAULT),
        "encoding": one_of("auto", "base64", default="auto"),
        "life": text("As an answer before told it", maxLength=64),
    },
    ("POST", "/api/definitions"): {"dry_run": _TRUE},
    ("POST", "/api/definitions/{vhost}"): {"dry_run": _TRUE},
    ("DELETE", "/api/queues/{vhost}/{name}"): {"if-unused": _TRUE, "if-empty": _TRUE},
    ("DELETE", "/api/exchanges/{vhost}/{name}"): {"if-unused": _TRUE},
    ("DELETE", "/api/queues/{vhost}/{name}/lease"): {"name": text("Only if this reader has it", maxLength=200)},
    ("DELETE", "/api/nodes/{name}"): {"accept-loss": _TRUE},
}
_PATHS: Final[dict[str, dict[str, Schema]]] = {
    "/api/vhost-limits/{vhost}/{name}": {"name": one_of(*VHOST_LIMITS)},
    "/api/user-limits/{user}/{name}": {"name": one_of("max-connections", "max-channels")},
    "/api/health/checks/port-listener/{port}": {"port": integer(0, 65535)},
    "/api/health/checks/certificate-expiration/{within}/{unit}": {
        "within": integer(1, 10_000), "unit": one_of("days", "weeks", "months", "years"),
    },
}  # fmt: skip
"""What may stand in a path, where that is not any name."""
_IN_PATH: Final = {"vhost": {**NAME, "example": "/"}, "user": NAME}


def of_path(path: str) -> dict[str, Schema]:
    """The parameters in a path."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {name: _PATHS.get(path, {}).get(name, _IN_PATH.get(name, text(minLength=1))) for name in names}


def of_query(method: str, path: str, listed: bool) -> dict[str, Schema]:
    """The parameters of a query. `listed`: the answer is a list."""
    own = _QUERIES.get((method, path), {})
    if method != "GET" or path == _MESSAGES:
        return own
    return {**own, **(_PAGED if listed else {}), **_COLUMNS}


# -- answers

REFUSED: Final = table({"error": text(), "reason": {"description": "Why, a text or a list"}}, ("error", "reason"))
DOCUMENT: Final = table()
DOCUMENTS: Final = {
    "description": "A list; with `page` or `cursor` an object with its `items`",
    "anyOf": [list_of(DOCUMENT), table({"items": list_of(DOCUMENT)}, ("items",))],
}
_NUMBERS: Final = list_of({"type": "integer"})
_LOOKED: Final[dict[str, Schema]] = {
    "queue_id": {"type": "integer"},
    "life": text(),
    "owner": text(),
    "looked_at": {"type": "integer"},
    "next": {"type": ["integer", "null"]},
    "last": {"type": "integer"},
}
_MESSAGE: Final[dict[str, Schema]] = {
    "exchange": text(),
    "routing_key": text(),
    "properties": PROPERTIES,
    "payload": text(),
    "payload_encoding": one_of("string", "base64"),
    "payload_bytes": {"type": "integer"},
    "redelivered": flag(),
}


def _treated(counted: str) -> Schema:
    fields = {**_LOOKED, counted: {"type": "integer"}, "skipped": table(additionalProperties=_NUMBERS)}
    return table(fields, tuple(fields))


_TRIED: Final = table(
    additionalProperties=table(
        {
            **{name: {"type": "integer"} for name in ("new", "changed", "same")},
            "names": table({name: list_of(text()) for name in ("new", "changed")}),
        }
    ),
    description="Of a trial",
)
ANSWERS: Final[dict[Place, Schema]] = {
    # without `required`: `columns` may ask for less
    ("GET", "/api/whoami"): table({"name": text(), "tags": list_of(text())}),
    ("GET", "/api/cluster-name"): table({"name": text()}),
    ("GET", "/api/aliveness-test/{vhost}"): table({"status": one_of("ok")}, ("status",)),
    ("POST", "/api/queues/{vhost}/{name}/get"): list_of(
        table({**_MESSAGE, "message_count": {"type": "integer"}}, (*_MESSAGE, "message_count"))
    ),
    ("POST", "/api/exchanges/{vhost}/{name}/publish"): table({"routed": flag()}, ("routed",)),
    ("GET", _MESSAGES): table(
        {**_LOOKED, "items": list_of(table({**_MESSAGE, "seq": _SEQ, "state": text()}, (*_MESSAGE, "seq", "state")))},
        (*_LOOKED, "items"),
    ),
    ("POST", f"{_MESSAGES}/delete"): _treated("deleted"),
    ("POST", f"{_MESSAGES}/move"): _treated("moved"),
    ("POST", f"{_MESSAGES}/replay"): _treated("replayed"),
    ("POST", "/api/definitions"): _TRIED,
    ("POST", "/api/definitions/{vhost}"): _TRIED,
    ("POST", "/api/login"): table({"name": text(), "tags": list_of(text())}, ("name", "tags")),
}
"""Of what is answered with a document; without one here any."""
