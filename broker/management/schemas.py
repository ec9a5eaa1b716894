"""What paths and queries may say, and what is answered, as JSON schemas: for the OpenAPI document, and whoever makes
clients of it. Bodies say it themselves (`forms`).

The schemas describe what is taken in its plain form. The API takes more, as RabbitMQ does: a number or a truth value as
a text, and unknown fields, which are passed over.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.cluster.wiring.entities import VHOST_LIMITS

from .bodies import PROPERTIES, SEQ_MAX, USER_LIMITS, Browse
from .definitions import document_schema
from .forms import Form
from .json_schema import INTEGER_MAX, Schema, flag, integer, list_of, one_of, table, text
from .messages import COUNTED
from .paging import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from .pool_groups import Glance
from .pool_history import HISTORY
from .pool_reasons import REASONS
from .pool_requests import SEARCHES

Place = tuple[str, str]
"""Method and path."""

NAME: Final = text(minLength=1, maxLength=255)
_MESSAGES: Final = "/api/queues/{vhost}/{name}/messages"
_DEFINITIONS: Final = ("/api/definitions", "/api/definitions/{vhost}")


def of_body(method: str, path: str, form: type[Form] | None) -> Schema | None:
    """Of a place whose body says something; of another one it may be missing."""
    if form is not None:
        return form.schema()
    imports = method == "POST" and path in _DEFINITIONS
    return document_schema(of_one_vhost=path != _DEFINITIONS[0]) if imports else None


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
_QUEUES: Final = ("/api/queues", "/api/queues/{vhost}")
_QUERIES: Final[dict[Place, dict[str, Schema]]] = {
    ("GET", "/api/moves"): {"grouped": _TRUE},
    **{("GET", path): {"leader": text("Only queues that this node leads")} for path in _QUEUES},
    ("GET", "/api/pools/{vhost}/{name}/keys"): Glance.schema()["properties"],
    ("GET", _MESSAGES): Browse.schema()["properties"],
    **{(search.method, search.path): search.query.schema()["properties"] for search in (*SEARCHES, REASONS, HISTORY)},
    **{("POST", path): {"dry_run": _TRUE, "skip_unsupported": _TRUE} for path in _DEFINITIONS},
    ("DELETE", "/api/queues/{vhost}/{name}"): {"if-unused": _TRUE, "if-empty": _TRUE},
    ("DELETE", "/api/exchanges/{vhost}/{name}"): {"if-unused": _TRUE},
    ("DELETE", "/api/queues/{vhost}/{name}/lease"): {"name": text("Only if this reader has it", maxLength=200)},
    ("DELETE", "/api/nodes/{name}"): {"accept-loss": _TRUE},
}
_PATHS: Final[dict[str, dict[str, Schema]]] = {
    "/api/vhost-limits/{vhost}/{name}": {"name": one_of(*VHOST_LIMITS)},
    "/api/user-limits/{user}/{name}": {"name": one_of(*USER_LIMITS)},
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
    {name: list_of(text()) for name in ("warnings", "unsupported", "obstacles")},
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
        {
            **_LOOKED,
            "items": list_of(
                table({**_MESSAGE, "seq": integer(0, SEQ_MAX), "state": text()}, (*_MESSAGE, "seq", "state"))
            ),
        },
        (*_LOOKED, "items"),
    ),
    **{("POST", f"{_MESSAGES}/{what}"): _treated(counted) for what, counted in COUNTED.items()},
    **{("POST", path): _TRIED for path in _DEFINITIONS},
    ("POST", "/api/login"): table({"name": text(), "tags": list_of(text())}, ("name", "tags")),
}
"""Of what is answered with a document; without one here any."""
