"""All bindings, found by either end without a scan.

A binding is identified by all its fields (arguments as values, see arguments.py). Three indices point at the
same frozen Binding: by source, by source and routing key, by destination. Most exchanges and queues have very
few bindings under one key, so an index entry is the Binding itself until a second one comes; only then it
becomes a dictionary. All iteration is in the order of binding, never in hash order.

Invariants: (1) the three indices hold the same bindings; (2) no index has an empty entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from clusterbroker.journal.values import canonical_table

from .commands import Bind, Unbind
from .entities import Binding, DestinationKind

_K = TypeVar("_K", bound=Hashable)
_Identity = tuple[str, str, DestinationKind, str, Hashable]
_Entry = tuple[_Identity, Binding]


def identity(binding: Binding | Bind | Unbind) -> _Identity:
    """What makes two bindings of one vhost the same."""
    return (
        binding.source,
        binding.destination,
        binding.destination_kind,
        binding.routing_key,
        canonical_table(binding.arguments),
    )


class _Index(Generic[_K]):
    """key -> bindings in order of arrival; one alone is held without a dictionary around it."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[_K, _Entry | dict[_Identity, Binding]] = {}

    def add(self, key: _K, entry: _Entry) -> None:
        held = self._entries.get(key)
        if held is None:
            self._entries[key] = entry
        elif isinstance(held, dict):
            held[entry[0]] = entry[1]
        else:
            self._entries[key] = dict((held, entry))

    def remove(self, key: _K, identity_: _Identity) -> None:
        held = self._entries[key]
        if isinstance(held, dict):
            del held[identity_]
            if not held:
                del self._entries[key]
        else:
            assert held[0] == identity_, "an index entry of one binding is that binding's"
            del self._entries[key]

    def get(self, key: _K) -> tuple[Binding, ...]:
        held = self._entries.get(key)
        if held is None:
            return ()
        return tuple(held.values()) if isinstance(held, dict) else (held[1],)

    def count(self, key: _K) -> int:
        held = self._entries.get(key)
        return len(held) if isinstance(held, dict) else int(held is not None)

    def __contains__(self, key: _K) -> bool:
        return key in self._entries


class BindingTable:
    """The bindings of one vhost."""

    __slots__ = ("_all", "_by_destination", "_by_key", "_by_source")

    def __init__(self) -> None:
        self._all: dict[_Identity, Binding] = {}
        self._by_source: _Index[str] = _Index()
        self._by_key: _Index[tuple[str, str]] = _Index()
        self._by_destination: _Index[tuple[DestinationKind, str]] = _Index()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Binding]:
        """All bindings, oldest first."""
        return iter(self._all.values())

    def find(self, binding: Binding | Bind | Unbind) -> Binding | None:
        """The stored binding that is the same as this one, or that a command names."""
        return self._all.get(identity(binding))

    def add(self, binding: Binding) -> None:
        """Add a binding that is not there yet."""
        name = identity(binding)
        assert name not in self._all, "a binding is added once"
        entry = (name, binding)
        self._all[name] = binding
        self._by_source.add(binding.source, entry)
        self._by_key.add((binding.source, binding.routing_key), entry)
        self._by_destination.add((binding.destination_kind, binding.destination), entry)

    def remove(self, binding: Binding) -> None:
        """Remove a stored binding."""
        name = identity(binding)
        del self._all[name]
        self._by_source.remove(binding.source, name)
        self._by_key.remove((binding.source, binding.routing_key), name)
        self._by_destination.remove((binding.destination_kind, binding.destination), name)

    def from_source(self, source: str, routing_key: str | None = None) -> tuple[Binding, ...]:
        """Bindings that leave an exchange, all or those with one routing key."""
        if routing_key is None:
            return self._by_source.get(source)
        return self._by_key.get((source, routing_key))

    def to_destination(self, kind: DestinationKind, name: str) -> tuple[Binding, ...]:
        """Bindings that end at a queue or exchange."""
        return self._by_destination.get((kind, name))

    def count_from(self, source: str) -> int:
        """How many bindings leave the exchange."""
        return self._by_source.count(source)

    def leaves(self, source: str) -> bool:
        """Whether any binding leaves the exchange."""
        return source in self._by_source
