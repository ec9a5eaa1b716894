"""What schemathesis is told beyond the API's own document: names of what is there, so that not every answer is 404.

It runs in a process of its own, which loads this module by its name (SCHEMATHESIS_HOOKS).
"""

from __future__ import annotations

import atexit
from collections import Counter
from typing import Any, Final

import schemathesis

OWN: Final = "fuzzer"
VHOSTS: Final = ["/", "fuzz/ed", "nowhere"]
NAMES: Final[dict[str, dict[str, list[str]]]] = {
    "": {
        "vhost": VHOSTS,
        "user": ["alice", "nobody"],
        "source": ["topic", "fan", "amq.direct", "amq.default"],
        "destination": ["q", "q.dead", "fan"],
        "properties_key": ["~", "k"],
        "component": ["shovel", "policy", "vhost-limits"],
        "exchange": ["topic", "fan"],
        "port": ["5672", "1"],
        "protocol": ["amqp", "http"],
        "within": ["1", "10"],
        "unit": ["days", "months"],
    },
    "queues": {"name": ["q", "q.dead", "a/b?%", "gone"]},
    "exchanges": {"name": ["topic", "fan", "amq.default", "amq.topic", "gone"]},
    "nodes": {"name": ["n1", "a", "b", "c", "gone"]},
    "auth": {"name": ["n1", "a", "b", "c", "gone"]},
    "vhost-limits": {
        "name": ["max-queues", "max-connections", "max-bindings", "max-bindings-per-exchange", "max-policies", "else"]
    },
    "user-limits": {"name": ["max-channels", "max-connections", "else"]},
}
"""By the path's topic, and for all topics; anything else has the name `p`."""

SPARED: Final = (
    "/api/vhosts/{vhost}",
    "/api/users/{user}",
    "/api/queues/{vhost}/{name}",
    "/api/exchanges/{vhost}/{name}",
)
"""What all the rest is asked about is deleted rarely: by names that nobody chose."""


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Most parameters of a path name something that may be there."""
    for path, methods in raw_schema["paths"].items():
        topic = path.split("/")[2] if path.startswith("/api/") else ""
        for method, operation in methods.items():
            if method == "delete" and path in SPARED:
                continue
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] != "path":
                    continue
                known = NAMES.get(topic, {}).get(name) or NAMES[""].get(name, ["p"])
                parameter["schema"] = {"anyOf": [{"enum": known}, {"enum": known[:1]}, parameter["schema"]]}


_answers: Counter[int] = Counter()


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """It learns names from answers: its own user is left in peace."""
    if (case.path_parameters or {}).get("user") == OWN:
        case.path_parameters["user"] = "alice"
    if case.operation.path == "/api/users/bulk-delete" and OWN in str(case.body):
        case.body = {"users": ["nobody"]}


@schemathesis.hook
def after_call(_context: Any, _case: Any, response: Any) -> None:
    """For the last line: how many went in, and how many ended at the door."""
    _answers[response.status_code] += 1


@atexit.register
def _told() -> None:
    print("answers:", *(f"{status}x{count}" for status, count in sorted(_answers.items())))
