"""Two maps of what is unsettled, of any content: what every delivery in doubt comes to (specification 2.6.13)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.fronts.amqp10.positions import offset_of, place_of
from clusterbroker.broker.fronts.amqp10.resuming import (
    Told,
    fitting,
    is_terminal,
    resume_receiver,
    resume_sender,
    room_for_map,
    told,
)
from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Modified,
    Received,
    Rejected,
    Released,
    composed,
    decode,
)

TAGS = st.binary(max_size=3)
PLACES = st.builds(Received, section_number=st.integers(0, 5), section_offset=st.integers(0, 300))
STATES = st.none() | PLACES | st.sampled_from([Accepted(), Released(), Rejected(), Modified(delivery_failed=True)])
CLIENTS = st.builds(Told, st.dictionaries(TAGS, STATES, max_size=30), st.booleans())
ROOMS = st.integers(0, 400) | st.just(1 << 20)


@given(CLIENTS, st.sets(TAGS), st.dictionaries(TAGS, PLACES, max_size=3), ROOMS)
def test_each_delivery_of_a_sender_has_one_end(
    client: Told, stored: set[bytes], parts: dict[bytes, Received], room: int
) -> None:
    found = resume_sender(client, stored, parts, room)
    for tag, state in client.states.items():
        is_open = not is_terminal(state)
        assert (tag in found.again) is (is_open and tag not in stored)
        answer = found.map.states.get(tag)
        if answer is None:
            assert found.map.incomplete or (tag in found.again and tag not in parts)
        elif is_terminal(state):
            assert answer == state
        else:
            assert answer == (Accepted() if tag in stored else parts[tag])
    assert not found.again & stored, "what is stored never comes again"
    assert not any(is_terminal(found.map.states[tag]) for tag in found.again & found.map.states.keys())
    kept = stored - found.forgotten
    if client.incomplete:
        assert kept >= stored - client.states.keys(), "nothing is forgotten that the client may still name"
    else:
        assert kept <= client.states.keys()
    assert all(tag in kept for tag in stored if tag in client.states and not is_terminal(client.states[tag]))
    assert found.is_partial is (client.incomplete or found.map.incomplete)


@given(CLIENTS, st.lists(TAGS, unique=True), ROOMS)
def test_each_delivery_of_a_receiver_has_one_end(client: Told, held: list[bytes], room: int) -> None:
    found = resume_receiver(client, held, room)
    decided = [*found.first, *(tag for tag, _ in found.resumed), *(tag for tag, _ in found.outcomes)]
    assert len(decided) == len(set(decided)), "each once"
    assert set(decided) <= set(held), "and nothing but what the link holds"
    for part in (found.first, [tag for tag, _ in found.resumed], [tag for tag, _ in found.outcomes]):
        assert sorted(part, key=held.index) == list(part), "in the order in which they were handed out"
    assert not set(found.first) & client.states.keys()
    assert all(client.states[tag] == outcome and is_terminal(outcome) for tag, outcome in found.outcomes)
    assert all(not is_terminal(client.states[tag]) for tag, _ in found.resumed)
    if found.is_partial:
        assert found.first == (), "nothing new before all is known"
        assert set(decided) <= found.map.states.keys()
    else:
        assert set(decided) == set(held)
        assert found.map.states.keys() in (set(held), set(held) & client.states.keys()), "all, or what both have"
    if not client.incomplete:
        both = fitting(((tag, None) for tag in held if tag in client.states), room)
        assert found.is_partial is both.incomplete, "what the node alone has makes no map incomplete"


@given(st.lists(st.tuples(st.binary(max_size=32), STATES), unique_by=lambda item: item[0]), st.integers(512, 2000))
def test_an_answering_map_fits_its_frame_and_is_read_as_it_was(states: list[tuple[bytes, Any]], frame_max: int) -> None:
    bare = Attach(name="link", handle=7, role=True)
    part = fitting(states, room_for_map(bare, frame_max))
    answer = Attach(name="link", handle=7, role=True, unsettled=part.states, incomplete_unsettled=part.incomplete)
    encoded = answer.encoded()
    assert len(encoded) + 8 <= frame_max
    found, _ = decode(encoded)
    assert isinstance(found, Attach)
    assert {tag: composed(state) for tag, state in (found.unsettled or {}).items()} == part.states
    assert part.incomplete or len(part.states) == len(states)


HOSTILE = st.dictionaries(
    st.binary(max_size=40) | st.text(max_size=5) | st.integers(0, 9),
    STATES | st.text(max_size=5) | st.lists(st.booleans(), max_size=3),
    max_size=10,
)


@given(HOSTILE, st.booleans())
def test_a_hostile_map_is_refused_or_read(unsettled: dict[Any, Any], incomplete: bool) -> None:
    found, _ = decode(Attach("s", 0, False, unsettled=unsettled, incomplete_unsettled=incomplete).encoded())
    assert isinstance(found, Attach)
    try:
        client = told(found)
    except LinkError:
        return
    assert client is not None
    assert client.states == unsettled


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_go_on_where_they_were_cut(data: bytes, size: int) -> None:
    part = data[:size]
    assert offset_of(part, place_of(part)) == len(part)
    assert offset_of(data, place_of(part)) in {len(part), None}


@given(st.binary(max_size=60), PLACES)
def test_a_place_is_within_the_bytes_or_nowhere(data: bytes, place: Received) -> None:
    offset = offset_of(data, place)
    assert offset is None or 0 <= offset <= len(data)
