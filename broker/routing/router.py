"""From an exchange and a routing key to the queues of one virtual host.

The router is a fold of the wiring: it is told of every exchange, queue and binding that comes or goes, and
answers `route`. Finding a route is a walk over exchanges:

1. The default exchange (named '') has a binding to every queue by the queue's own name; it needs no storage.
2. Any other exchange answers with destinations (see `exchange`). A queue is noted; an exchange is visited
   next, if it was not visited before. So bindings may form circles, and no queue is noted twice.
3. An exchange that answers nothing at all hands the message to its alternate exchange, if it has one and that
   exists, under the same rule. Being bound to another exchange counts as an answer, even if that one finds
   nothing then.

A message may have several keys, its routing key and those of its CC and BCC headers; an exchange answers for
all of them at once, so the alternate exchange is asked only when none of the keys leads anywhere.

The queues of a route are in the order of their names: the same on every node, however the bindings came
about.

*Remembering.* A route that depended on the routing key alone is cached (see `route_cache`); one that did not
even depend on that (fanout exchanges only) is kept once per exchange. Every change of the wiring forgets all
routes and raises `generation`, so that callers can keep routes of their own as long as the number stays the
same.

*Objects.* A route carries the queues' names and, in the same order, what `resolve` made of them: whatever the
caller delivers to. A name that `resolve` does not know (None) is left out, and such a route is not cached,
since the object may appear without a change of the wiring. A caller whose objects change under a name calls
`forget`.

Direct reply-to names (`amq.rabbitmq.reply-to.*`) are no queues of the wiring; the session takes them out
before it asks.

*Delays in keys.* An exchange with `key_bits` (`set_key_bits`) gives a message whose only key begins with the bits of a
delay to the queue in which it waits, and to nothing else. All other messages go by its bindings.

*Choosing.* An exchange of a random type gives each message to one of its destinations (see `choosing`): by chance, or
by the message's `number`. Which queues are here is asked for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from clusterbroker.broker.routing.binding import NO_ARGUMENTS, Binding, Destination
from clusterbroker.broker.routing.choosing import Chance, Draws, one_of
from clusterbroker.broker.routing.delays import due_ms, key_delay_s, undelayed
from clusterbroker.broker.routing.exchange import EXCHANGE_TYPES, Exchange, PropertyOf
from clusterbroker.broker.routing.histories import is_kept
from clusterbroker.broker.routing.labour import STEPS_MAX, Labour, Steps, TooCostly
from clusterbroker.broker.routing.repeats import is_compared, uncompared
from clusterbroker.broker.routing.route_cache import RouteCache

Q = TypeVar("Q")

DEFAULT_EXCHANGE = ""
CACHE_HALF_BYTES_MAX = 4 * 1024 * 1024
_EXCHANGE_STEPS = 20
_DESTINATION_STEPS = 4
_ENTRY_BYTES = 400
"""About what an entry of the cache takes without its key's text and its queues."""


class Route(Generic[Q]):
    """Where a message goes. Shared between callers: do not change it."""

    __slots__ = (
        "counts", "enters", "found_exchange", "internal", "leads_on", "onward", "queues", "targets", "uncacheable",
    )  # fmt: skip

    def __init__(
        self,
        queues: tuple[str, ...] = (),
        targets: tuple[Q, ...] = (),
        found_exchange: bool = True,
        internal: bool = False,
        uncacheable: bool = False,
    ) -> None:
        self.queues = queues
        """Names of the queues, each once, sorted; empty: the message is unroutable."""

        self.targets = targets
        """What `resolve` gave for each of `queues`, in the same order."""

        self.found_exchange = found_exchange
        """False: there is no such exchange (404 for a publisher)."""

        self.internal = internal
        """The named exchange is internal: a client may not publish to it (403)."""

        self.uncacheable = uncacheable
        """The answer may differ for the next message with the same key."""

        self.onward: Route[Q] | None = None
        """Of a staging exchange: where its target leads now. Its own targets keep what comes until it is committed."""

        self.leads_on: Callable[[], bool] | None = None
        """Of a message that is delayed or compared on the way, or kept in a history: whether it would find a queue
        without that. None: it is nothing of these."""

        self.counts: Any = None
        """Of its exchange, for whoever counts what takes this way."""

        self.enters: bool | None = None
        """Whether it leads into a worker pool, for whoever asks; None: nobody has."""

    def without(self, kept: Collection[str]) -> Route[Q]:
        """The same way to these of its queues only."""
        pairs = [pair for pair in zip(self.queues, self.targets, strict=True) if pair[0] in kept]
        queues, targets = tuple(name for name, _ in pairs), tuple(target for _, target in pairs)
        return Route(queues, targets, self.found_exchange, self.internal, self.uncacheable)

    def __repr__(self) -> str:
        return (
            f"Route(queues={self.queues!r}, found_exchange={self.found_exchange}, "
            f"internal={self.internal}, uncacheable={self.uncacheable})"
        )


class _WiredExchange:
    """An exchange with what the router needs to know beside its bindings."""

    __slots__ = ("alternate", "compares", "delays", "exchange", "internal", "keeps", "key_bits", "type")

    def __init__(
        self, exchange_type: str, exchange: Exchange, alternate: str | None, internal: bool, delays: str | None,
        keeps: str | None, compares: str | None,
    ) -> None:  # fmt: skip
        self.type = exchange_type
        self.delays = delays  # the queue in which delayed messages wait
        self.keeps = keeps  # the queue of its recent messages
        self.compares = compares  # the queue through which messages pass that are compared
        self.key_bits: tuple[int, str] | None = None  # of the delay in a key, and the queue in which such messages wait
        self.exchange = exchange
        self.alternate = alternate
        self.internal = internal


class Router(Generic[Q]):
    """The exchanges, queues and bindings of one virtual host.

    Invariants: (1) every binding starts at an exchange that exists and points to a queue or exchange that
    exists; (2) a binding is in its exchange exactly when it is under its destination; (3) no remembered route
    is older than `generation`.
    """

    __slots__ = (
        "_by_destination", "_cache", "_chance", "_clock", "_exchanges", "_is_here", "_key_free", "_keyless",
        "_queues", "_resolve", "generation", "labour",
    )  # fmt: skip

    def __init__(
        self,
        resolve: Callable[[str], Q | None],
        cache_half_bytes_max: int = CACHE_HALF_BYTES_MAX,
        labour: Labour | None = None,
        clock: Callable[[], int] = lambda: 0,
        chance: Chance | None = None,
        is_here: Callable[[Q], bool] = lambda _: True,
    ) -> None:
        self._chance: Chance = chance or Draws()
        self._is_here = is_here  # whether a queue has its leader at this node
        self._clock = clock  # ms since 1970, of what is being handled
        self.labour = labour or Labour()
        """Counts what routes cost."""

        self.generation = 0
        """Raised by every change of the wiring."""

        self._resolve = resolve
        self._exchanges: dict[str, _WiredExchange] = {}
        self._queues: set[str] = set()
        self._keyless: set[str] = set()
        """Those of them that the default exchange does not lead to."""
        self._by_destination: dict[Destination, dict[Binding, None]] = {}
        self._cache: RouteCache[Route[Q]] = RouteCache(cache_half_bytes_max)
        self._key_free: dict[str, Route[Q]] = {}

    # The wiring. Adding what is there and removing what is not there changes nothing but `generation`.

    def add_exchange(
        self,
        name: str,
        exchange_type: str,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
        alternate: str | None = None,
        internal: bool = False,
        delays: str | None = None,
        keeps: str | None = None,
        compares: str | None = None,
    ) -> None:
        """An exchange was declared. `alternate` is the effective one, from argument or policy. `delays`: the queue in
        which the messages of a delayed exchange wait; its `exchange_type` is that by which they are routed. `keeps`:
        the queue of the recent messages of one of type `x-recent-history`. `compares`: the queue through which the
        messages of one of type `x-message-deduplication` pass."""
        assert name != DEFAULT_EXCHANGE, "the default exchange is always there and never declared"
        if name not in self._exchanges:
            exchange = EXCHANGE_TYPES[exchange_type](arguments)
            self._exchanges[name] = _WiredExchange(
                exchange_type, exchange, alternate, internal, delays, keeps, compares
            )
        self.forget()

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """The alternate exchange of an exchange changed (by policy)."""
        self._exchanges[name].alternate = alternate
        self.forget()

    def set_key_bits(self, name: str, bits: int, queue: str) -> None:
        """Messages of an exchange whose keys begin with so many bits of a delay wait in this queue from now on; 0 bits:
        they go by its bindings."""
        after = (bits, queue) if bits else None
        if self._exchanges[name].key_bits != after:
            self._exchanges[name].key_bits = after
            self.forget()

    def remove_exchange(self, name: str) -> list[Binding]:
        """An exchange was deleted; returns the bindings from it and to it, which went with it."""
        wired = self._exchanges.get(name)
        removed: list[Binding] = []
        if wired is not None:
            removed = list(wired.exchange.bindings)
            removed += [
                binding
                for binding in self._by_destination.get(Destination(name, is_exchange=True), ())
                if binding.source != name
            ]
            for binding in removed:
                self._unbind(binding)
            del self._exchanges[name]
        self.forget()
        return removed

    def add_queue(self, name: str, keyless: bool = False) -> None:
        """A queue was declared. `keyless`: the default exchange does not lead to it."""
        self._queues.add(name)
        if keyless:
            self._keyless.add(name)
        self.forget()

    def remove_queue(self, name: str) -> list[Binding]:
        """A queue was deleted; returns the bindings to it, which went with it."""
        removed = list(self._by_destination.get(Destination(name), ()))
        for binding in removed:
            self._unbind(binding)
        self._queues.discard(name)
        self._keyless.discard(name)
        self.forget()
        return removed

    def bind(self, binding: Binding) -> bool:
        """A binding was made; False when it existed."""
        assert binding.source in self._exchanges, "a binding starts at an exchange that was declared before"
        assert self._exists(binding.destination), "a binding points to what was declared before"
        added = self._exchanges[binding.source].exchange.bind(binding)
        if added:
            self._by_destination.setdefault(binding.destination, {})[binding] = None
        self.forget()
        return added

    def unbind(self, binding: Binding) -> bool:
        """A binding was removed; False when there was none (amqp-rules 5.3: that succeeds)."""
        removed = self._unbind(binding)
        self.forget()
        return removed

    def forget(self) -> None:
        """Forget all remembered routes: the wiring changed, or what `resolve` answers did."""
        self.generation += 1
        self._cache.clear()
        self._key_free.clear()

    # Questions about the wiring.

    def has_key(self, key: str) -> bool:
        """Whether the default exchange leads to a queue of this name."""
        return key in self._queues and key not in self._keyless

    def exchange_type(self, name: str) -> str | None:
        """The type of an exchange; None when there is none of the name."""
        if name == DEFAULT_EXCHANGE:
            return "direct"
        wired = self._exchanges.get(name)
        return None if wired is None else wired.type

    # Routing.

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers_thunk: Callable[[], Mapping[str, object] | None] | None = None,
        cc_keys: Sequence[str] = (),
        property_of: PropertyOf | None = None,
        number: bytes | None = None,
    ) -> Route[Q]:
        """The queues of a message.

        `headers_thunk` gives the message's headers and is called at most once, and only when an exchange on
        the way reads them; `property_of` reads a basic property by name for `hash-property`. `cc_keys` are
        the further keys of the CC and BCC headers (amqp-rules 5.6); routes of messages with such keys are not
        cached. `number`: what one exchange or the other chooses by (see `choosing`). Raises TooCostly for one that
        would take too many steps (see `labour`).
        """
        if cc_keys:
            return self._walk(exchange, (routing_key, *cc_keys), headers_thunk, property_of, number)[0]
        cache_key = (exchange, routing_key)
        route = self._cache.get(cache_key)
        if route is not None:
            return route
        route = self._key_free.get(exchange)
        if route is not None:
            return route
        route, key_free = self._walk(exchange, (routing_key,), headers_thunk, property_of, number)
        # an unknown exchange is not remembered: its name, too, was invented by a client
        if route.uncacheable or not route.found_exchange:
            return route
        if key_free:
            self._key_free[exchange] = route
        else:
            size_bytes = _ENTRY_BYTES + len(exchange) + len(routing_key) + 16 * len(route.queues)
            self._cache.put(cache_key, route, size_bytes)
        return route

    def ways(self, exchange: str, routing_key: str) -> tuple[Route[Q], Route[Q]] | None:
        """Of a delayed exchange: the routes of a message without a delay, and of one that waits. None: it is no such
        exchange, or the way depends on more than the key."""
        wired = self._exchanges.get(exchange)
        if wired is None or wired.delays is None:
            return None
        now = self.due(exchange, exchange, (routing_key,), dict)
        if now.uncacheable:
            return None
        waiting = self._resolved({wired.delays}, wired.internal, True)
        waiting.leads_on = lambda: bool(now.queues)
        return now, waiting

    def reach(
        self,
        exchange: str,
        routing_key: str,
        headers_thunk: Callable[[], Mapping[str, object] | None] | None = None,
        cc_keys: Sequence[str] = (),
        property_of: PropertyOf | None = None,
        number: bytes | None = None,
    ) -> Route[Q]:
        """As `route`, for what the broker itself publishes: one that costs too much leads nowhere."""
        try:
            return self.route(exchange, routing_key, headers_thunk, cc_keys, property_of, number)
        except TooCostly:
            return Route(uncacheable=True)

    def due(
        self,
        delayed: str,
        exchange: str,
        keys: Sequence[str],
        headers_thunk: Callable[[], Mapping[str, object] | None],
        property_of: PropertyOf | None = None,
        number: bytes | None = None,
    ) -> Route[Q]:
        """The queues of a message that was published to `exchange`, has waited at the exchange `delayed`, and is due:
        those behind that and behind all delayed exchanges that it would meet now. No exchange on the way delays it. One
        that costs too much leads nowhere."""
        cache_key = (delayed, exchange, keys[0])
        if len(keys) == 1 and (known := self._cache.get(cache_key)) is not None:
            return known
        met: list[str] = []
        is_certain = True
        try:
            if exchange != delayed and exchange != DEFAULT_EXCHANGE:
                way, _ = self._walk(exchange, keys, headers_thunk, property_of, number, None, met)
                is_certain = not way.uncacheable
            # a way that headers or chance decide is not asked for again: it may be another one by now
            more = [name for name in met if name != delayed] if is_certain or delayed in met else []
            route = self._walk(delayed, keys, headers_thunk, property_of, number, more)[0]
        except TooCostly:
            return Route(uncacheable=True)
        route.uncacheable |= not is_certain
        self._remember(cache_key, keys, route)
        return route

    def passing(
        self,
        exchange: str,
        keys: Sequence[str],
        headers_thunk: Callable[[], Mapping[str, object] | None],
        property_of: PropertyOf | None = None,
        number: bytes | None = None,
    ) -> Route[Q]:
        """The queues of a message that this exchange has compared, and passes on. One that costs too much leads
        nowhere."""
        cache_key = ("", exchange, keys[0])
        if len(keys) == 1 and (known := self._cache.get(cache_key)) is not None:
            return known
        try:
            route, _ = self._walk(exchange, keys, headers_thunk, property_of, number, passed=exchange)
        except TooCostly:
            return Route(uncacheable=True)
        self._remember(cache_key, keys, route)
        return route

    def _remember(self, cache_key: tuple[str, str, str], keys: Sequence[str], route: Route[Q]) -> None:
        if len(keys) == 1 and not route.uncacheable and route.found_exchange:
            self._cache.put(cache_key, route, _ENTRY_BYTES + sum(map(len, cache_key)) + 16 * len(route.queues))

    def _walk(
        self,
        exchange: str,
        keys: Sequence[str],
        headers_thunk: Callable[[], Mapping[str, object] | None] | None,
        property_of: PropertyOf | None,
        number: bytes | None,
        due: Sequence[str] | None = None,
        met: list[str] | None = None,
        passed: str = "",
    ) -> tuple[Route[Q], bool]:
        """The route, and whether it would be the same for any other key. `due`: nothing is delayed, and the walk begins
        at these exchanges as well. `met`: gets the delayed exchanges, at which the walk ends. `passed`: this exchange
        does not compare the message. Raises TooCostly."""
        steps = Steps()
        try:
            return self._walked(exchange, keys, headers_thunk, property_of, number, steps, due, met, passed)
        except TooCostly:
            self.labour.refused += 1
            raise
        finally:
            self.labour.done += STEPS_MAX - steps.left

    def _walked(
        self,
        exchange: str,
        keys: Sequence[str],
        headers_thunk: Callable[[], Mapping[str, object] | None] | None,
        property_of: PropertyOf | None,
        number: bytes | None,
        steps: Steps,
        due: Sequence[str] | None,
        met: list[str] | None,
        passed: str,
    ) -> tuple[Route[Q], bool]:
        if exchange == DEFAULT_EXCHANGE:
            return self._resolved({key for key in keys if self.has_key(key)}, False, False), False
        first = self._exchanges.get(exchange)
        if first is None:
            return Route(found_exchange=False, uncacheable=True), False
        headers: Mapping[str, object] | None = None
        uncacheable, key_free = False, True
        delayed: list[tuple[str, str]] = []
        queues: set[str] = set()
        histories: set[str] = set()
        compared: set[str] = set()
        seen = {exchange, *(due or ())}
        waiting = [(exchange, first), *((name, self._exchanges[name]) for name in due or ())]
        while waiting:
            here, wired = waiting.pop()
            looks = (wired.delays is not None and due is None and met is None) or not wired.exchange.cacheable
            if looks or (wired.compares is not None and here != passed):
                if not uncacheable and headers_thunk is not None:
                    headers = headers_thunk()
                uncacheable = True
            if wired.delays is not None and met is not None:
                met.append(here)
                continue
            if wired.delays is not None and due is None and due_ms(headers, self._clock(), bool(number)) is not None:
                delayed.append((here, wired.delays))
                continue
            if wired.compares is not None and here != passed and is_compared(headers):
                compared.add(wired.compares)
                continue
            if wired.key_bits is not None:
                key_free = False
                if len(keys) == 1 and key_delay_s(keys[0], wired.key_bits[0]):
                    queues.add(wired.key_bits[1])
                    continue
            key_free = key_free and wired.exchange.key_free
            if wired.keeps is not None and is_kept(headers):
                histories.add(wired.keeps)
            destinations = wired.exchange.match_keys(keys, headers, property_of, steps)
            steps.take(_EXCHANGE_STEPS + _DESTINATION_STEPS * len(destinations))
            if wired.exchange.chooses:
                if wired.exchange.chooses == "local" and number is None:
                    destinations = [each for each in destinations if self._is_local(each)]
                destinations = one_of(destinations, number, self._chance)
            following: list[str] = []
            for name, is_exchange in destinations:
                if is_exchange:
                    following.append(name)
                else:
                    queues.add(name)
            if not destinations and wired.alternate is not None:
                following.append(wired.alternate)
            for name in following:
                if name == DEFAULT_EXCHANGE:
                    # only an alternate can name it: nothing is ever bound to the default exchange
                    queues.update(key for key in keys if self.has_key(key))
                    key_free = False
                elif name not in seen:
                    seen.add(name)
                    # "if the alternate exchange does not exist, the message is dropped" as if it had none
                    if (found := self._exchanges.get(name)) is not None:
                        waiting.append((name, found))
        if delayed:  # it waits once, at the first of them by name, and all of them route it then (`due`)
            queues.add(min(delayed)[1])
        route = self._resolved(queues | histories | compared, first.internal, uncacheable)
        if histories and not delayed:
            route.leads_on = lambda: bool(queues)
        if delayed or compared:
            now = uncompared(undelayed(headers or {}))
            route.leads_on = lambda: self._finds(exchange, keys, now, property_of, number)
        return route, key_free

    def _finds(self, exchange: str, keys: Sequence[str], headers: Mapping[str, object], *more: Any) -> bool:
        """Whether there is a queue at all; none for what costs too much."""
        try:
            return bool(self._walk(exchange, keys, lambda: headers, *more)[0].queues)
        except TooCostly:
            return False

    def _resolved(self, names: set[str], internal: bool, uncacheable: bool) -> Route[Q]:
        queues: list[str] = []
        targets: list[Q] = []
        for name in sorted(names):
            target = self._resolve(name)
            if target is None:
                uncacheable = True
            else:
                queues.append(name)
                targets.append(target)
        return Route(tuple(queues), tuple(targets), internal=internal, uncacheable=uncacheable)

    def _is_local(self, destination: Destination) -> bool:
        queue = None if destination.is_exchange else self._resolve(destination.name)
        return queue is not None and self._is_here(queue)

    def _exists(self, destination: Destination) -> bool:
        return destination.name in (self._exchanges if destination.is_exchange else self._queues)

    def _unbind(self, binding: Binding) -> bool:
        wired = self._exchanges.get(binding.source)
        if wired is None or not wired.exchange.unbind(binding):
            return False
        pointing = self._by_destination[binding.destination]
        del pointing[binding]
        if not pointing:
            del self._by_destination[binding.destination]
        return True
