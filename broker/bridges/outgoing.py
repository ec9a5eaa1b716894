"""Definitions of this broker for RabbitMQ, which refuses a document with what it does not know.

users                 left out: it reads none of our password hashes
permissions           left out with them
exchanges             of types that RabbitMQ has without a plug-in; others are named
policies              keys that RabbitMQ knows; an empty one is left out
queues                without arguments that mean something here only
parameters            left out, but those of shovels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

EXCHANGES: Final = ("direct", "fanout", "topic", "headers")
OWN_ARGUMENTS: Final = (
    "x-durability", "x-ownership", "x-ownership-hold-ms", "x-replicas", "x-max-delayed", "x-max-delayed-bytes",
)  # fmt: skip
POLICY_KEYS: Final = frozenset({
    "alternate-exchange", "consumer-timeout", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
    "delivery-limit", "expires", "max-age", "max-in-memory-bytes", "max-in-memory-length", "max-length",
    "max-length-bytes", "message-ttl", "overflow", "queue-leader-locator", "queue-version",
})  # fmt: skip


class Outgoing(NamedTuple):
    """A document for RabbitMQ, and what it lacks: a line each."""

    document: dict[str, Any]
    warnings: list[str]


def outgoing(document: Mapping[str, Any], vhosts: frozenset[str] = frozenset()) -> Outgoing:
    """`vhosts`: only what is in these; empty: all."""
    warnings: list[str] = []

    def wanted(section: str, name: str = "vhost") -> list[dict[str, Any]]:
        return [entry for entry in document.get(section, []) if not vhosts or entry[name] in vhosts]

    if users := document.get("users", []):
        warnings.append(f"{len(users)} users and their permissions: not taken along, make them with new passwords")
    gone: set[tuple[str, str]] = set()
    exchanges = []
    for entry in wanted("exchanges"):
        if entry["type"] in EXCHANGES:
            exchanges.append(entry)
        else:
            gone.add((entry["vhost"], entry["name"]))
            warnings.append(f"exchange '{entry['name']}' in vhost '{entry['vhost']}': no type '{entry['type']}' there")
    policies = []
    for entry in wanted("policies"):
        definition = {key: value for key, value in entry["definition"].items() if key in POLICY_KEYS}
        lost = sorted(entry["definition"].keys() - definition.keys())
        if lost:
            warnings.append(f"policy '{entry['name']}' in vhost '{entry['vhost']}': without {', '.join(lost)}")
        if definition:
            policies.append({**entry, "definition": definition})
    queues = []
    for entry in wanted("queues"):
        arguments = {key: value for key, value in entry["arguments"].items() if key not in OWN_ARGUMENTS}
        queues.append({**entry, "arguments": arguments})
    bindings = [
        entry
        for entry in wanted("bindings")
        if (entry["vhost"], entry["source"]) not in gone
        and (entry["destination_type"] == "queue" or (entry["vhost"], entry["destination"]) not in gone)
    ]
    parameters = [entry for entry in wanted("parameters") if entry["component"] == "shovel"]
    return Outgoing(
        {
            "vhosts": [{"name": entry["name"]} for entry in wanted("vhosts", "name")],
            "exchanges": exchanges,
            "queues": queues,
            "bindings": bindings,
            "policies": policies,
            "parameters": parameters,
        },
        warnings,
    )
