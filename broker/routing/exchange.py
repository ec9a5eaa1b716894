# ruff: noqa: ARG002  (one signature for all types: each reads only what it needs)
"""The exchange types behind one signature.

An exchange keeps bindings and answers one question: to which destinations does a message with this routing
key and these headers go? It knows nothing of queues, other exchanges or alternates; the router follows the
answers.

    type               a binding matches when                                     answer depends on
    direct             its key equals the routing key                             key
    fanout             always                                                     nothing
    topic              its pattern matches the routing key (see `topic`)          key
    headers            its arguments match the headers (see `headers`)            headers
    x-consistent-hash  it owns the hash of the key, header or property            key, header or property
                       (see `hashing`); exactly one destination is chosen
    x-random           always; the router chooses one (see `choosing`)
    x-local-random     always; the router chooses one of those at this node
    x-modulus-hash     always; one is chosen by the keys                          key
    x-recent-history   always; the router adds the exchange's own queue           header x-recent-history-no-store
    x-message-deduplication  as fanout; the router gives it the exchange's queue  header x-deduplication-header

*Validity.* What a client may declare is checked by the cluster map (cluster/wiring/exchange_rules.py); `bind` trusts
its caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Literal

from clusterbroker.broker.routing.binding import NO_ARGUMENTS, Binding, Destination
from clusterbroker.broker.routing.choosing import by_modulus
from clusterbroker.broker.routing.hashing import HashRing
from clusterbroker.broker.routing.headers import HeadersIndex, HeadersMatch
from clusterbroker.broker.routing.labour import Steps
from clusterbroker.broker.routing.topic import TopicTrie
from clusterbroker.journal.values import LongBytes, canonical

Headers = Mapping[str, object]
PropertyOf = Callable[[str], object]
"""Reads a basic property of the message by its field name ("message_id"); None when it is absent."""

_NONE: tuple[Destination, ...] = ()


class Exchange(ABC):
    """The bindings of one exchange. Binding twice or unbinding what is not bound changes nothing."""

    __slots__ = ("bindings", "cacheable", "key_free")

    chooses: ClassVar[Literal["", "any", "local"]] = ""
    """The router gives each message to one of the destinations that match, or of those at this node."""

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        self.bindings: dict[Binding, None] = {}
        """All bindings, in the order in which they were made."""

        self.cacheable = True
        """Whether the answer depends on the routing key at most, and so may be remembered by it."""

        self.key_free = False
        """Whether the routing key makes no difference at all."""

    def bind(self, binding: Binding) -> bool:
        """Add a binding; False when it was there already."""
        if binding in self.bindings:
            return False
        self._add(binding)
        self.bindings[binding] = None
        return True

    def unbind(self, binding: Binding) -> bool:
        """Take a binding away; False when it was not there."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        self._remove(binding)
        return True

    @abstractmethod
    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        """The destinations of a message, each once, in no particular order.

        `headers` and `property_of` are read only by types that are not `cacheable`. The answer is a view that
        the caller must not change nor keep beyond the next wiring change. Raises TooCostly when `steps` do not suffice.
        """

    def match_keys(
        self, routing_keys: Sequence[str], headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        """The destinations of a message with several keys (routing key, then CC and BCC), each destination once."""
        if len(routing_keys) == 1:
            return self.match(routing_keys[0], headers, property_of, steps)
        found: set[Destination] = set()
        for key in routing_keys:
            matched = self.match(key, headers, property_of, steps)
            if steps is not None:
                steps.take(1 + len(matched))
            found.update(matched)
        return found

    @abstractmethod
    def _add(self, binding: Binding) -> None: ...

    @abstractmethod
    def _remove(self, binding: Binding) -> None: ...


class _Counted(dict[Destination, int]):
    """Destinations, each with the number of bindings that lead to it."""

    __slots__ = ()

    def add(self, destination: Destination) -> None:
        self[destination] = self.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        self[destination] -= 1
        if self[destination] == 0:
            del self[destination]


class DirectExchange(Exchange):
    """AMQP 0-9-1, 3.1.3.1: the binding key equals the routing key."""

    __slots__ = ("_by_key",)

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self._by_key: dict[str, _Counted] = {}

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self._by_key.get(routing_key, _NONE)

    def _add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, _Counted()).add(binding.destination)

    def _remove(self, binding: Binding) -> None:
        counted = self._by_key[binding.routing_key]
        counted.remove(binding.destination)
        if not counted:
            del self._by_key[binding.routing_key]


class FanoutExchange(Exchange):
    """AMQP 0-9-1, 3.1.3.2: every binding matches, whatever its key."""

    __slots__ = ("_counted",)

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self.key_free = True
        self._counted = _Counted()

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self._counted

    def match_keys(
        self, routing_keys: Sequence[str], headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self._counted

    def _add(self, binding: Binding) -> None:
        self._counted.add(binding.destination)

    def _remove(self, binding: Binding) -> None:
        self._counted.remove(binding.destination)


class TopicExchange(Exchange):
    """AMQP 0-9-1, 3.1.3.3: the binding's pattern matches the routing key."""

    __slots__ = ("_trie",)

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self._trie: TopicTrie[Destination] = TopicTrie()

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self._trie.match(routing_key, steps)

    def _add(self, binding: Binding) -> None:
        self._trie.bind(binding.routing_key, binding.destination)

    def _remove(self, binding: Binding) -> None:
        removed = self._trie.unbind(binding.routing_key, binding.destination)
        assert removed, "every binding of a topic exchange is in its trie"


class HeadersExchange(Exchange):
    """AMQP 0-9-1, 3.1.3.4: the binding's arguments match the headers; keys are ignored on both sides."""

    __slots__ = ("_index",)

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self.cacheable = False
        self.key_free = True
        self._index: HeadersIndex[Destination] = HeadersIndex()

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self._index.find(headers, steps)

    def match_keys(
        self, routing_keys: Sequence[str], headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self.match("", headers, None, steps)

    def _add(self, binding: Binding) -> None:
        self._index.add(HeadersMatch(binding.arguments), binding.destination)

    def _remove(self, binding: Binding) -> None:
        self._index.remove(HeadersMatch(binding.arguments), binding.destination)


class ConsistentHashExchange(Exchange):
    """RabbitMQ's consistent-hash plugin: one destination, in proportion to the weights that the keys say.

    The exchange argument `hash-header` names a header and `hash-property` a basic property to hash instead of
    the routing key. A message without it is hashed like the empty string, so all such messages go the same
    way.
    """

    __slots__ = ("_header", "_property", "_ring")

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        header, named = arguments.get("hash-header"), arguments.get("hash-property")
        self._header = header if isinstance(header, str) else None
        self._property = named if isinstance(named, str) else None
        self.cacheable = self._header is None and self._property is None
        self.key_free = not self.cacheable
        self._ring: HashRing[Destination] = HashRing(lambda destination: destination.label)

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        hashed: object = routing_key
        if self._header is not None:
            hashed = None if headers is None else headers.get(self._header)
        elif self._property is not None:
            hashed = None if property_of is None else property_of(self._property)
        chosen = self._ring.pick(_hash_material(hashed))
        return _NONE if chosen is None else (chosen,)

    def match_keys(
        self, routing_keys: Sequence[str], headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        # RabbitMQ hashes the first routing key only: a CC key does not make a second copy
        return self.match(routing_keys[0], headers, property_of, steps)

    # The cluster map decided which keys are weights; what it ordered is folded and never refused. Weight 0 is none.

    def _add(self, binding: Binding) -> None:
        if weight := int(binding.routing_key):
            self._ring.add(binding.destination, weight)

    def _remove(self, binding: Binding) -> None:
        if weight := int(binding.routing_key):
            self._ring.remove(binding.destination, weight)


class RandomExchange(FanoutExchange):
    """RabbitMQ's `x-random`: one destination for each message, whatever its key."""

    __slots__ = ()
    chooses: ClassVar[Literal["", "any", "local"]] = "any"

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self.cacheable = False


class LocalRandomExchange(RandomExchange):
    """RabbitMQ's `x-local-random`: one queue of those whose leader is the publisher's node."""

    __slots__ = ()
    chooses = "local"


class RecentHistoryExchange(FanoutExchange):
    """RabbitMQ's `x-recent-history`: a fanout; the router adds the queue that keeps its recent messages."""

    __slots__ = ()

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self.cacheable = False


class ModulusHashExchange(FanoutExchange):
    """RabbitMQ's `x-modulus-hash`: one destination, by the hash of the routing keys."""

    __slots__ = ("_sorted",)

    def __init__(self, arguments: Headers = NO_ARGUMENTS) -> None:
        super().__init__(arguments)
        self.key_free = False
        self._sorted: list[Destination] | None = None  # None: the bindings have changed

    def match(
        self, routing_key: str, headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        return self.match_keys((routing_key,))

    def match_keys(
        self, routing_keys: Sequence[str], headers: Headers | None = None, property_of: PropertyOf | None = None,
        steps: Steps | None = None,
    ) -> Collection[Destination]:  # fmt: skip
        if self._sorted is None:
            if steps is not None:
                steps.take(1 + len(self._counted))
            self._sorted = sorted(self._counted)
        return (by_modulus(self._sorted, routing_keys),) if self._sorted else _NONE

    def _add(self, binding: Binding) -> None:
        super()._add(binding)
        self._sorted = None

    def _remove(self, binding: Binding) -> None:
        super()._remove(binding)
        self._sorted = None


EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
    "x-consistent-hash": ConsistentHashExchange,
    "x-random": RandomExchange,
    "x-local-random": LocalRandomExchange,
    "x-modulus-hash": ModulusHashExchange,
    "x-recent-history": RecentHistoryExchange,
    "x-message-deduplication": FanoutExchange,
}


def _hash_material(value: object) -> bytes:
    """The bytes to hash for a key, header or property: the same on every node for the same value."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, LongBytes):
        return bytes(value)
    return repr(canonical(value)).encode("utf-8", "surrogatepass")
