"""The core of relayed links: three of them with links of ours between, what is sent taken to the letter."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.node.messages import (
    Reach,
    RelayAccept,
    RelayClose,
    Relayed,
    RelayMessage,
    RelayOpen,
    RelayTook,
)
from clusterbroker.broker.node.relay import (
    ANSWER_MS,
    APART_MS,
    PIECE_BYTES,
    REACH_MS,
    RETRY_MS,
    SILENT_MS,
    WINDOW_BYTES,
    Relay,
)
from clusterbroker.cluster.link.frames import HEADER, encode
from clusterbroker.replication.errors import BadMessage

NOTHING = memoryview(b"")


class Place:
    """A node: its relay core, and what it tells."""

    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name
        self.leader: str | None = None
        self.links: dict[str, tuple[int, str]] = {}
        self.frames: list[tuple[str, bytes]] = []
        self.waiting: dict[str, list[bytes]] = {}
        self.held: dict[str, int] = {}
        self.silences: list[str] = []
        self.drops: list[str] = []
        self.relay = Relay(name, 1, self)

    @property
    def now_ms(self) -> int:
        return self.net.now_ms

    def send_direct(self, peer: str, head: RelayMessage, payload: Iterable[Any] = ()) -> None:
        assert (self.name, peer) in self.net.wires, f"{self.name} has no link with {peer}"
        self.net.wires[self.name, peer].append((head, b"".join(payload)))

    def gathered(self, peer: str) -> list[bytes]:
        return self.waiting.pop(peer, [])

    def held_bytes(self, peer: str) -> int:
        return self.held.get(peer, 0)

    def relayed(self, peer: str, number: int, via: str) -> None:
        assert peer not in self.links, "links are told to begin and to end in turn"
        assert (self.name, peer) not in self.net.wires, "a direct link wins"
        self.links[peer] = number, via

    def frame(self, peer: str, index: int, head: memoryview, payload: memoryview) -> None:
        assert peer in self.links, "frames come on a link"
        self.frames.append((peer, bytes(payload)))

    def lost(self, peer: str, why: str) -> None:
        del self.links[peer]
        self.waiting.pop(peer, None)

    def silent(self, peer: str, silent_ms: int) -> None:
        assert silent_ms >= SILENT_MS
        self.silences.append(peer)

    def say(self, peer: str, *payloads: bytes) -> None:
        for payload in payloads:
            self.waiting.setdefault(peer, []).append(encode(RelayAccept("", "", 0), 7, (payload,)))


class Net:
    """Direct links that carry in order; `cut` resets one."""

    def __init__(self, names: str, *cuts: str) -> None:
        self.now_ms = 1_000_000
        self.wires: dict[tuple[str, str], deque[tuple[RelayMessage, bytes]]] = {}
        self.log: list[tuple[str, str, RelayMessage]] = []
        self.places = {name: Place(self, name) for name in names}
        for name in names:
            self[name].relay.members(dict.fromkeys(names, 1))
        for one in names:
            for other in names:
                if one < other and one + other not in cuts:
                    self.link(one, other)
        self.run()

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    def link(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self[here].relay.linked(there)
            self.wires[here, there] = deque()

    def cut(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            del self.wires[here, there]
        for here, there in ((one, other), (other, one)):
            self[here].relay.unlinked(there)

    def run(self, step: Any = None) -> None:
        while True:
            for place in self.places.values():
                place.relay.carry()
            ready = [pair for pair, wire in self.wires.items() if wire]
            if not ready:
                return
            pair = ready[step(len(ready)) if step else 0]
            head, payload = self.wires[pair].popleft()
            self.log.append((*pair, head))
            try:
                self[pair[1]].relay.received(pair[0], head, memoryview(payload))
            except BadMessage:
                self[pair[1]].drops.append(pair[0])

    def wait(self, time_ms: int) -> None:
        for _ in range(time_ms // 50):
            self.now_ms += 50
            for place in self.places.values():
                place.relay.tick(self.now_ms)
            self.run()

    def said(self, kind: type) -> list[tuple[str, str, Any]]:
        return [entry for entry in self.log if type(entry[2]) is kind]


def via(net: Net, one: str, other: str) -> str | None:
    here, there = net[one].links.get(other), net[other].links.get(one)
    assert here == there, f"{one} and {other} see the same link"
    assert net[one].relay.via.get(other) == (here[1] if here else None)
    return here[1] if here else None


def test_a_pair_that_is_apart_is_linked_through_the_lowest_of_those_that_reach_both() -> None:
    net = Net("abcd", "bd")
    net.wait(APART_MS - 50)
    assert via(net, "b", "d") is None
    net.wait(100)
    assert via(net, "b", "d") == "a"
    opens = [(source, target, head.source) for source, target, head in net.said(RelayOpen)]
    assert opens == [("b", "a", "b"), ("a", "d", "b")], "the lower name opens, once"


def test_the_leader_is_preferred() -> None:
    net = Net("abcd")
    net["b"].leader = "c"
    net.cut("b", "d")
    net.wait(1000)
    assert via(net, "b", "d") == "c"


def test_nothing_is_relayed_over_two_hops() -> None:
    net = Net("abcd", "ac", "ad", "bd")
    net.wait(3000)
    assert via(net, "a", "c") == "b"
    assert via(net, "b", "d") == "c"
    assert via(net, "a", "d") is None


def test_frames_go_both_ways_in_order_and_the_relay_does_not_look_inside() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    net["a"].say("b", b"1", b"2", b"")
    net["b"].say("a", b"x")
    net["a"].say("b", b"3")
    net.run()
    assert net["b"].frames == [("a", b"1"), ("a", b"2"), ("a", b""), ("a", b"3")]
    assert net["a"].frames == [("b", b"x")]
    assert net["c"].frames == []


def test_a_direct_link_ends_the_relayed_one_first() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    net["a"].say("b", b"lost with its link")
    net.link("a", "b")  # `Place.relayed` and `Net` look at the order
    assert net["a"].links == net["b"].links == {}
    net.run()
    assert net["b"].frames == []
    net.wait(3000)
    assert via(net, "a", "b") is None


@pytest.mark.parametrize("half", ["ac", "bc"])
def test_a_relay_that_loses_either_link_ends_it_and_another_takes_over(half: str) -> None:
    net = Net("abcd", "ab")
    net["a"].leader = "c"
    net.wait(1000)
    assert via(net, "a", "b") == "c"
    net.cut(*half)
    net.run()
    assert via(net, "a", "b") is None
    net.wait(RETRY_MS + 100)
    assert via(net, "a", "b") == "d"


def test_a_relay_that_does_not_answer_is_passed_over() -> None:
    net = Net("abcd", "ab")
    net["c"].relay.received = lambda *_: None  # type: ignore[method-assign]
    net.wait(APART_MS + 100)
    assert via(net, "a", "b") is None
    net.wait(ANSWER_MS + RETRY_MS + 200)
    assert via(net, "a", "b") == "d"


def test_a_member_that_dies_or_starts_again_loses_its_relayed_links() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    net["a"].relay.members({"a": 1, "c": 1})
    net.run()
    assert via(net, "a", "b") is None
    net.wait(2000)
    assert via(net, "a", "b") is None
    for place in net.places.values():
        place.relay.members({"a": 1, "b": 2, "c": 1})
    net.wait(1000)
    assert via(net, "a", "b") == "c"
    net["b"].relay.members({"a": 2, "b": 2, "c": 1})
    assert net["b"].links == {}


def test_who_is_no_living_member_is_refused() -> None:
    net = Net("abc", "ab")
    net["b"].relay.members({"b": 1, "c": 1})
    net.wait(1500)
    assert via(net, "a", "b") is None
    net["b"].relay.members({"a": 1, "b": 1, "c": 1})
    net.wait(1000)
    assert via(net, "a", "b") == "c"


def test_one_side_that_believes_in_a_dead_direct_link_refuses_until_it_knows() -> None:
    net = Net("abc")
    del net.wires["a", "b"]
    net["a"].relay.unlinked("b")  # b has not noticed; what it says is lost
    net.wait(1500)
    assert net["a"].links == {}
    assert net["b"].silences == []
    net.wait(SILENT_MS)
    assert net["b"].silences[0] == "a"
    del net.wires["b", "a"]
    net["b"].relay.unlinked("a")
    net.wait(1000)
    assert via(net, "a", "b") == "c"


def test_neighbours_are_told_on_change_and_each_second() -> None:
    net = Net("abc")
    net.wait(100)
    net.log.clear()
    net.wait(REACH_MS)
    assert len(net.said(Reach)) == 6
    net.log.clear()
    net.cut("a", "b")
    net.run()
    assert [(source, target, head.names) for source, target, head in net.said(Reach)] == [
        ("a", "c", ("c",)),
        ("b", "c", ("c",)),
    ]


def test_what_is_under_way_is_bounded_by_the_window_and_the_rest_waits_at_the_sender() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    net["b"].held["a"] = WINDOW_BYTES  # what came waits for the wiring: nothing more is taken
    big = bytes(3 * WINDOW_BYTES)
    net["a"].say("b", big)
    net.run()
    sent = [head for source, _, head in net.said(Relayed) if source == "a"]
    assert len(sent) * PIECE_BYTES <= WINDOW_BYTES + PIECE_BYTES
    assert net["a"].relay.backlog("b") == HEADER.size + len(big) + 4 or net["a"].relay.backlog("b") > len(big)
    assert net["b"].frames == []
    net["b"].held["a"] = 0
    net.run()
    assert net["b"].frames == [("a", big)]
    assert net["a"].relay.backlog("b") < WINDOW_BYTES / 4


def test_who_sends_more_than_its_window_loses_the_link() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    number = net["a"].links["b"][0]
    net["b"].held["a"] = WINDOW_BYTES
    net["a"].send_direct("c", Relayed("a", "b", number), (HEADER.pack(60 << 20, 0, 0),))  # the first of a long frame
    for _ in range(WINDOW_BYTES // PIECE_BYTES + 2):
        net["a"].send_direct("c", Relayed("a", "b", number), (bytes(PIECE_BYTES),))
    net.run()
    assert net["a"].links == net["b"].links == {}


def test_a_frame_that_is_none_ends_the_relayed_link_and_no_other() -> None:
    net = Net("abc", "ab")
    net.wait(1000)
    net["a"].waiting["b"] = [b"\xff" * 64]
    net.run()
    assert via(net, "a", "b") is None
    assert not any(place.drops for place in net.places.values())


@pytest.mark.parametrize(
    "lie",
    [RelayOpen("b", "d", 1), Relayed("b", "d", 1), RelayClose("c", "c", 1, ""), RelayTook("a", "c", 1, 5),
     RelayAccept("d", "b", 1)],
)  # fmt: skip
def test_nobody_speaks_for_another(lie: RelayMessage) -> None:
    net = Net("abcd")
    with pytest.raises(BadMessage):
        net["c"].relay.received("a", lie, NOTHING)


def test_what_belongs_to_another_link_changes_nothing() -> None:
    net = Net("abcd", "ab")
    net.wait(1000)
    number, relay = net["a"].links["b"]
    other = "d" if relay == "c" else "c"
    for head in (RelayClose("b", "a", number, ""), RelayClose("b", "a", number + 1, "")):
        net["a"].relay.received(other if head.number == number else relay, head, NOTHING)
    net["a"].relay.received(relay, Relayed("b", "a", number + 1), memoryview(b"junk"))
    net.run()
    assert via(net, "a", "b") == relay
    net["a"].relay.received(relay, RelayTook("b", "a", number, 99), NOTHING)
    net.run()
    assert via(net, "a", "b") is None, "nobody takes what was not sent"


@given(st.data())
def test_any_order_of_cuts_and_heals_ends_with_every_pair_linked_as_it_can_be(data: st.DataObject) -> None:
    """The world: four nodes, links that come and go, wires emptied in any order; frames are a prefix of what was said
    on each link, and when the network stands still every pair with a common neighbour is linked."""
    net = Net("abcd")
    pairs = [one + other for one in "abcd" for other in "abcd" if one < other]
    up = set(pairs)
    step = data.draw(st.randoms(use_true_random=False)).randrange
    for move in data.draw(st.lists(st.sampled_from([*pairs, "wait", "say", "part"]), max_size=25)):
        if move == "wait":
            net.wait(600)
        elif move == "part":
            for place in net.places.values():
                place.relay.tick(net.now_ms)
            for _ in range(3):
                ready = [pair for pair, wire in net.wires.items() if wire]
                if ready:
                    wire = ready[step(len(ready))]
                    head, payload = net.wires[wire].popleft()
                    net[wire[1]].relay.received(wire[0], head, memoryview(payload))
        elif move == "say":
            for place in net.places.values():
                for peer in place.links:
                    place.say(peer, b"word")
            net.run(step)
        elif move in up:
            up.discard(move)
            net.cut(*move)
        else:
            up.add(move)
            net.link(*move)
    net.wait(8000)
    for pair in pairs:
        one, other = pair[0], pair[1]
        between = [name for name in "abcd" if {"".join(sorted(name + end)) for end in pair} <= up and name not in pair]
        relayed_via = via(net, one, other)
        assert (relayed_via in between) if pair not in up and between else relayed_via is None
    assert not any(place.drops for place in net.places.values())
