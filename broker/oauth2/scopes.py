"""What a token allows: its scopes, as RabbitMQ reads them.

    PREFIX configure:VHOST/NAME         declare and delete queues and exchanges with such names
    PREFIX write:VHOST/NAME[/KEY]       publish to exchanges, bind to queues; with such routing keys to topic exchanges
    PREFIX read:VHOST/NAME[/KEY]        consume from queues, bind from exchanges
    PREFIX tag:TAG                      administrator, monitoring, policymaker, management

VHOST, NAME and KEY are percent-encoded, and `*` in them stands for anything: `read:%2F/orders.*`. A vhost may be
entered when any of the first three names it. What cannot be read, or has another prefix, allows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

from clusterbroker.cluster.wiring.queue_rules import GUARDED_WORD, is_guarded

Kind = Literal["configure", "write", "read"]
SCOPES_MAX: Final = 500
TAGS: Final = ("administrator", "monitoring", "policymaker", "management")
_KINDS: Final[tuple[Kind, ...]] = ("configure", "write", "read")

Pattern = tuple[str, ...]
"""What stands between the stars."""


class Grant(NamedTuple):
    """One scope."""

    kind: Kind
    vhost: Pattern
    name: Pattern
    key: Pattern | None
    """None: any routing key."""


class Grants:
    """All that one token allows."""

    __slots__ = ("_grants", "tags")
    gone = ""
    """Its connection ends with the token, which its connection watches."""
    may_publish = took = unheard = None
    """Nothing is looked at by key or delivery."""

    def __init__(self, grants: Iterable[Grant] = (), tags: Iterable[str] = ()) -> None:
        self._grants = tuple(grants)
        self.tags = tuple(tags)

    def enters(self, vhost: str) -> bool:
        """Whether the vhost is open to it."""
        return any(matches(grant.vhost, vhost) for grant in self._grants)

    def allowed(self, vhost: str, kind: Kind, resource: str) -> bool:
        """Whether the exchange or queue of this name may be configured, written to or read from. The default exchange
        is called `amq.default`."""
        guarded = is_guarded(resource) and "administrator" not in self.tags
        return any(
            grant.kind == kind
            and matches(grant.vhost, vhost)
            and matches(grant.name, resource or "amq.default")
            and not (guarded and not any(GUARDED_WORD in part for part in grant.name))
            for grant in self._grants
        )

    def some(self, vhost: str, kind: Kind) -> bool:
        """Whether something of some name may be configured, written or read there."""
        return any(grant.kind == kind and matches(grant.vhost, vhost) for grant in self._grants)

    def topic_allowed(self, vhost: str, kind: Literal["write", "read"], exchange: str, routing_key: str) -> bool:
        """Whether this routing key may be used at a topic exchange."""
        return any(
            grant.kind == kind
            and matches(grant.vhost, vhost)
            and matches(grant.name, exchange)
            and (grant.key is None or matches(grant.key, routing_key))
            for grant in self._grants
        )

    def topic_limited(self, vhost: str, exchange: str) -> bool:  # noqa: ARG002
        """Scopes name the keys that they allow: there is always some key to be said."""
        return True


def granted(scopes: Iterable[str], prefix: str) -> Grants:
    """What these scopes allow; SCOPES_MAX of them count."""
    grants, tags = [], []
    mine = [scope[len(prefix) :] for scope in scopes if scope.startswith(prefix)]
    for scope in mine[:SCOPES_MAX]:
        kind, colon, rest = scope.partition(":")
        if not colon:
            continue
        if kind == "tag":
            if rest in TAGS and rest not in tags:
                tags.append(rest)
            continue
        parts = rest.split("/")
        known = next((one for one in _KINDS if one == kind), None)
        if known is None or len(parts) not in (2, 3) or not parts[0]:
            continue
        try:
            vhost, name, *key = (pattern(part) for part in parts)
        except UnicodeDecodeError:
            continue
        grants.append(Grant(known, vhost, name, key[0] if key else None))
    return Grants(grants, tags)


def pattern(text: str) -> Pattern:
    """A pattern as it stands in a scope. An escaped star is a star. Raises UnicodeDecodeError."""
    return tuple(unquote(part, errors="strict") for part in text.split("*"))


def matches(wanted: Pattern, name: str) -> bool:
    """Whether the name fits; takes no longer than pattern and name are long, multiplied."""
    first, *middle = wanted
    if not middle:
        return name == first
    last = middle.pop()
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
