"""What a binding is: an arrow from an exchange to a queue or to another exchange.

Two bindings are the same when source, destination, routing key and arguments are the same, arguments compared
by type class (amqp-rules 5.3). The same queue may thus hang on one exchange by several bindings, and goes on
receiving until the last of them is unbound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from clusterbroker.journal.values import Canonical, canonical_table

NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})


class Destination(NamedTuple):
    """Where a binding points. Queues and exchanges have separate name spaces."""

    name: str
    is_exchange: bool = False

    @property
    def label(self) -> str:
        """The destination as one string, the same on every node; a hash ring is built from it."""
        return f"exchange:{self.name}" if self.is_exchange else f"queue:{self.name}"


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding; equal and hashable by its identity, not by the spelling of its arguments."""

    source: str
    """Name of the exchange that it starts from."""

    destination: Destination

    routing_key: str = ""
    """The binding key: a literal key, a topic pattern or a weight, as the exchange's type has it."""

    arguments: Mapping[str, object] = field(default_factory=lambda: NO_ARGUMENTS, compare=False)
    """As the client gave them; a headers exchange matches with them."""

    identity: tuple[tuple[str, Canonical], ...] = field(init=False, repr=False)
    """The arguments by type class."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", canonical_table(self.arguments) if self.arguments else ())
