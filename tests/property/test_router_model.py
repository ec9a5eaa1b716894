"""The router against a naive model, while its wiring changes: the same answers, with and without its cache."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from clusterbroker.broker.routing.binding import Binding, Destination
from clusterbroker.broker.routing.router import Router
from clusterbroker.broker.routing.topic import TopicTrie
from tests.budget import examples

EXCHANGES = ["x", "y", "z"]
QUEUES = ["p", "q", "r"]
exchanges = st.sampled_from(EXCHANGES)
queues = st.sampled_from(QUEUES)
types = st.sampled_from(["direct", "fanout", "topic", "headers"])
KEYS = ["", "k", "k.l", "p"]
keys = st.sampled_from(KEYS)
patterns = st.sampled_from(["", "k", "k.l", "#", "k.*", "*"])
header_tables: st.SearchStrategy[dict[str, object]] = st.sampled_from([{}, {"h": 1}, {"h": 2}])


class Model:
    """The wiring as plain sets, and routing written down as the rules are spoken."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.alternates: dict[str, str | None] = {}
        self.queues: set[str] = set()
        self.bindings: set[Binding] = set()

    def matches(self, binding: Binding, key: str, headers: Mapping[str, object]) -> bool:
        exchange_type = self.types[binding.source]
        if exchange_type == "topic":
            trie: TopicTrie[str] = TopicTrie()
            trie.bind(binding.routing_key, "it")
            return bool(trie.match(key))
        if exchange_type == "headers":
            return all(headers.get(name) == value for name, value in binding.arguments.items())
        return exchange_type == "fanout" or binding.routing_key == key

    def route(self, exchange: str, keys: list[str], headers: Mapping[str, object]) -> set[str] | None:
        if exchange == "":
            return self.queues.intersection(keys)
        if exchange not in self.types:
            return None
        found: set[str] = set()
        visited: set[str] = set()

        def visit(name: str) -> None:
            if name in visited or name not in self.types:
                return
            visited.add(name)
            here = [
                binding.destination
                for binding in self.bindings
                if binding.source == name and any(self.matches(binding, key, headers) for key in keys)
            ]
            for destination in here:
                if destination.is_exchange:
                    visit(destination.name)
                else:
                    found.add(destination.name)
            alternate = self.alternates[name]
            if not here and alternate is not None:
                visit(alternate)

        visit(exchange)
        return found


class RouterUnderChange(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # a cache of a few entries, so that it is full most of the time
        self.router: Router[str] = Router(lambda name: name, cache_half_bytes_max=1_300)
        self.model = Model()

    @initialize(kinds=st.lists(types, min_size=3, max_size=3))
    def begin(self, kinds: list[str]) -> None:
        for name, kind in zip(EXCHANGES, kinds, strict=True):
            self.declare_exchange(name, kind, None)
        for queue in QUEUES:
            self.declare_queue(queue)

    @rule(name=exchanges, kind=types, alternate=st.none() | exchanges)
    def declare_exchange(self, name: str, kind: str, alternate: str | None) -> None:
        if name in self.model.types:
            self.router.set_alternate(name, alternate)
        else:
            self.router.add_exchange(name, kind, alternate=alternate)
            self.model.types[name] = kind
        self.model.alternates[name] = alternate

    @rule(name=exchanges)
    def delete_exchange(self, name: str) -> None:
        target = Destination(name, is_exchange=True)
        gone = {b for b in self.model.bindings if b.source == name or b.destination == target}
        removed = self.router.remove_exchange(name)
        assert set(removed) == gone
        assert len(removed) == len(gone)
        self.model.types.pop(name, None)
        self.model.bindings -= gone

    @rule(queue=queues)
    def declare_queue(self, queue: str) -> None:
        self.router.add_queue(queue)
        self.model.queues.add(queue)

    @rule(queue=queues)
    def delete_queue(self, queue: str) -> None:
        gone = {b for b in self.model.bindings if b.destination == Destination(queue)}
        assert set(self.router.remove_queue(queue)) == gone
        self.model.queues.discard(queue)
        self.model.bindings -= gone

    @rule(source=exchanges, queue=queues, key=patterns, arguments=header_tables)
    def bind_queue(self, source: str, queue: str, key: str, arguments: dict[str, object]) -> None:
        if source in self.model.types and queue in self.model.queues:
            binding = Binding(source, Destination(queue), key, arguments)
            assert self.router.bind(binding) == (binding not in self.model.bindings)
            self.model.bindings.add(binding)

    @rule(source=exchanges, to=exchanges, key=patterns)
    def bind_exchange(self, source: str, to: str, key: str) -> None:
        if source in self.model.types and to in self.model.types:
            binding = Binding(source, Destination(to, is_exchange=True), key)
            self.router.bind(binding)
            self.model.bindings.add(binding)

    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        if self.model.bindings:
            binding = data.draw(st.sampled_from(sorted(self.model.bindings, key=repr)))
            assert self.router.unbind(binding)
            assert not self.router.unbind(binding)
            self.model.bindings.remove(binding)

    @rule(
        exchange=st.sampled_from(["", *EXCHANGES]),
        key=keys,
        copies=st.lists(keys, max_size=2),
        headers=header_tables,
    )
    def route(self, exchange: str, key: str, copies: list[str], headers: dict[str, object]) -> None:
        self.compare(exchange, key, copies, headers)

    @rule(headers=header_tables)
    def route_everything(self, headers: dict[str, object]) -> None:
        for exchange in ["", *EXCHANGES]:
            for key in KEYS:
                self.compare(exchange, key, [], headers)

    def compare(self, exchange: str, key: str, copies: list[str], headers: dict[str, object]) -> None:
        for _ in range(2):  # the second answer may come from the cache
            route = self.router.route(exchange, key, lambda: headers, copies)
            expected = self.model.route(exchange, [key, *copies], headers)
            assert route.found_exchange == (expected is not None)
            assert route.queues == route.targets == tuple(sorted(expected or ()))


TestRouterUnderChange = RouterUnderChange.TestCase
TestRouterUnderChange.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
