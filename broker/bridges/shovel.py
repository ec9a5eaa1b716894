"""What a bridge is to do: the value of a parameter of component `shovel`, in RabbitMQ's syntax.

src-uri, dest-uri             an AMQP 0-9-1 URI, or a list of up to 32 of which one is taken after the other
                              `amqp://USER:PASSWORD@/VHOST`, without a host: the node that runs the bridge
src-queue                     or src-exchange with src-exchange-key: a queue of the bridge's own is bound there
dest-queue                    or dest-exchange with dest-exchange-key; neither: as the message was published
src-queue-args, dest-queue-args   for a queue that is not there and is made
src-prefetch-count            1000
src-delete-after              never, queue-length, or a number of messages: the bridge ends then
reconnect-delay               5 s

ack-mode                      on-confirm, whatever it says: the other modes lose messages
without effect                dest-add-forward-headers, dest-add-timestamp-header, dest-[publish-]properties
src-protocol, dest-protocol   amqp091 alone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from clusterbroker.broker.bridges.places import MASK, Place, place
from clusterbroker.cluster.wiring.queue_rules import BRIDGE_PREFIX, MOVER_PREFIX, NAME_BYTES_MAX

COMPONENT: Final = "shovel"
NO_EFFECT: Final = (
    "dest-add-forward-headers", "dest-add-timestamp-header", "dest-properties", "dest-publish-properties",
    "add-forward-headers", "add-timestamp-header", "publish-properties",
)  # fmt: skip
"""Keys that are read over."""
_OTHERWISE: Final = {
    "src": "say src-protocol amqp091 and src-queue in place of src-address, if that broker speaks AMQP 0-9-1; else let "
    "a client of AMQP 1.0 publish here what it receives there",
    "dest": "say dest-protocol amqp091 and dest-queue or dest-exchange in place of dest-address, if that broker speaks "
    "AMQP 0-9-1; else let a client of AMQP 1.0 receive here what it publishes there",
}
"""What to do about an end of another protocol."""
_ALIASES: Final = {"prefetch-count": "src-prefetch-count", "delete-after": "src-delete-after"}
"""Names of older releases."""
QUEUE: Final = BRIDGE_PREFIX
SOURCE_QUEUE: Final = "clusterbroker.source."
"""Of the durable queue that a bridge binds to its source exchange."""
NAME_MAX: Final = NAME_BYTES_MAX - len(BRIDGE_PREFIX) - len(MOVER_PREFIX)
URIS_MAX: Final = 32
PREFETCH: Final = 1000
PREFETCH_MAX: Final = 65535
DELAY_S: Final = 5.0


class BadBridge(ValueError):
    """One line says what of a parameter cannot be done."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """From a queue to a queue or an exchange."""

    vhost: str
    name: str
    sources: tuple[Place, ...]
    destinations: tuple[Place, ...]
    queue: str
    """Of the source."""
    bound_to: tuple[str, str] | None
    """(exchange, key): `queue` is the bridge's own, and bound there."""
    exchange: str
    """Of the destination."""
    key: str | None
    """None: as the message was published."""
    prefetch: int = PREFETCH
    delay_s: float = DELAY_S
    most: int = 0
    """ends after so many messages"""
    until_empty: bool = False
    """ends when it has seen its source empty"""
    queue_arguments: Mapping[str, Any] = field(default_factory=dict)
    target_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_queue(self) -> str:
        """The small queue whose owner runs the bridge, in its vhost here."""
        return QUEUE + self.name


def bridge(vhost: str, name: str, value: Any) -> Bridge:
    """Raises BadBridge."""
    if not isinstance(value, Mapping):
        raise BadBridge("it is no object")
    if _size(name) > NAME_MAX:
        raise BadBridge(f"the name of a bridge has {NAME_MAX} bytes at most")
    said: dict[str, Any] = {_ALIASES.get(str(key), str(key)): inner for key, inner in value.items()}
    for end in ("src", "dest"):
        if (protocol := said.get(f"{end}-protocol", "amqp091")) != "amqp091":
            raise BadBridge(f"{end}-protocol {str(protocol)[:20]!r}: a bridge speaks amqp091: {_OTHERWISE[end]}")
    queue, exchange = _text(said, "src-queue"), _text(said, "src-exchange")
    if (not queue) is (not exchange):
        raise BadBridge("say src-queue or src-exchange, one of them")
    target, out = _text(said, "dest-queue"), _text(said, "dest-exchange")
    if target and out:
        raise BadBridge("say dest-queue or dest-exchange, not both")
    if not target and not out:
        raise BadBridge("say dest-queue or dest-exchange")
    key = target or (_text(said, "dest-exchange-key") if "dest-exchange-key" in said else None)
    after = said.get("src-delete-after", "never")
    if after not in ("never", "queue-length") and not _is_count(after):
        raise BadBridge("src-delete-after is never, queue-length or a number of messages")
    prefetch = said.get("src-prefetch-count", PREFETCH)
    if not _is_count(prefetch):
        raise BadBridge("src-prefetch-count is a number of messages")
    delay = said.get("reconnect-delay", DELAY_S)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= 86_400:
        raise BadBridge("reconnect-delay is a number of seconds")
    return Bridge(
        vhost,
        name,
        _places(said, "src-uri", vhost),
        _places(said, "dest-uri", vhost),
        queue or SOURCE_QUEUE + name,
        (exchange, _text(said, "src-exchange-key")) if exchange else None,
        out,
        key,
        min(prefetch, PREFETCH_MAX),
        max(float(delay), 0.1),
        after if _is_count(after) else 0,
        after == "queue-length",
        _table(said, "src-queue-args"),
        _table(said, "dest-queue-args"),
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name, "")
    if not isinstance(value, str) or _size(value) > 255:
        raise BadBridge(f"{name} is a text of 255 bytes at most")
    return value


def _table(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = said.get(name, {})
    if not isinstance(value, Mapping):
        raise BadBridge(f"{name} is an object")
    return value


def _places(said: Mapping[str, Any], name: str, vhost: str) -> tuple[Place, ...]:
    uris = said.get(name)
    if isinstance(uris, str):
        uris = [uris]
    if not isinstance(uris, list) or not uris or not all(isinstance(uri, str) for uri in uris):
        raise BadBridge(f"{name} is an AMQP URI, or a list of them")
    if len(uris) > URIS_MAX:
        raise BadBridge(f"{name} has {len(uris)} URIs: {URIS_MAX} are read at most")
    try:
        found = tuple(place(uri) for uri in uris)
    except ValueError as error:
        raise BadBridge(f"{name}: {error}") from None
    if any(each.password == MASK for each in found):
        raise BadBridge(f"{name}: '{MASK}' stands for a password that was not shown: say it")
    # "amqp://" says no vhost: RabbitMQ takes that of the parameter
    return tuple(each._replace(vhost=vhost) if not each.host and each.vhost == "/" else each for each in found)
