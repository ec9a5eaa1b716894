"""The tables of link recovery (specification 2.6.13), row by row, and where a delivery goes on that was cut."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp10.expiry import NOTHING_KEPT, TIMEOUT_S_MAX, Event, Terms, in_force
from clusterbroker.broker.fronts.amqp10.positions import BEGINNING, offset_of, place_of, resumed_at
from clusterbroker.broker.fronts.amqp10.resuming import (
    TAGS_MAX,
    Told,
    check_known,
    fitting,
    resume_receiver,
    resume_sender,
    room_for_map,
    told,
)
from clusterbroker.broker.fronts.amqp10.sender_memory import ECHO_MS, Memory, Proof
from clusterbroker.broker.wire.amqp10.errors import LinkError
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Attach,
    Error,
    Header,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    decode,
)
from clusterbroker.broker.wire.amqp10.serials import SERIALS
from clusterbroker.broker.wire.amqp10.types import Described
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message

ROOM = 1 << 20
FRAME_HEAD = 8
PLACE = Received(section_number=2, section_offset=7)
OUTCOMES = [Accepted(), Released(), Rejected(error=Error(condition="example:no")), Modified(delivery_failed=True)]


def attach(unsettled: dict[Any, Any] | None, **fields: Any) -> Attach:
    """As it comes from the wire."""
    asked = Attach(name="s", handle=0, role=False, unsettled=unsettled, **fields)
    found, _ = decode(asked.encoded())
    assert isinstance(found, Attach)
    return found


# -- the client's map


def test_a_map_as_it_comes() -> None:
    states = {b"": None, b"a": PLACE, b"b": Accepted(), b"c": TransactionalState(txn_id=b"1")}
    assert told(attach(states)) == Told(states, incomplete=False)
    assert told(attach({}, incomplete_unsettled=True)) == Told({}, incomplete=True)
    assert told(attach(None)) is None


@pytest.mark.parametrize(
    "unsettled",
    [
        {"text": None},
        {7: None},
        {b"t" * 33: None},
        {b"t": "text"},
        {b"t": Header()},
        {b"t": Described(UInt64(0x23), [1])},
        {b"t": Described(UInt64(0x24), [1, 2])},
    ],
)
def test_what_is_no_map(unsettled: dict[Any, Any]) -> None:
    with pytest.raises(LinkError) as caught:
        told(attach(unsettled))
    assert caught.value.condition == "amqp:invalid-field"


def test_an_incomplete_map_is_a_map() -> None:
    with pytest.raises(LinkError, match="null"):
        told(attach(None, incomplete_unsettled=True))


def test_a_map_is_bounded() -> None:
    tags = {number.to_bytes(4, "big"): None for number in range(TAGS_MAX + 1)}
    with pytest.raises(LinkError) as caught:
        told(Attach(name="s", handle=0, role=False, unsettled=tags))
    assert caught.value.condition == "amqp:resource-limit-exceeded"
    del tags[bytes(4)]
    assert told(Attach(name="s", handle=0, role=False, unsettled=tags)) == Told(tags, incomplete=False)


def test_a_map_for_a_link_that_is_not_known() -> None:
    check_known(None, known=False)
    check_known(Told({}, incomplete=False), known=False)
    check_known(Told({b"t": None}, incomplete=False), known=True)
    with pytest.raises(LinkError) as caught:
        check_known(Told({b"t": None}, incomplete=False), known=False)
    assert caught.value.condition == "amqp:resource-deleted"


# -- the answering map


def test_a_map_takes_what_the_frame_has_room_for() -> None:
    states = [(b"%03d" % number, None if number % 2 else Accepted()) for number in range(300)]
    whole = fitting(states, ROOM)
    assert (list(whole.states.items()), whole.incomplete) == (states, False)
    bare = attach(None)
    for frame_max in (512, 600, 777):
        part = fitting(states, room_for_map(bare, frame_max))
        assert part.incomplete
        assert list(part.states.items()) == states[: len(part.states)]
        size = FRAME_HEAD + len(attach(part.states, incomplete_unsettled=True).encoded())
        assert frame_max - 60 < size <= frame_max


# -- a sender


@pytest.mark.parametrize("state", [None, PLACE])
@pytest.mark.parametrize("has_part", [True, False])
def test_what_is_stored_is_accepted(state: Any, has_part: bool) -> None:
    parts = {b"t": PLACE} if has_part else {}
    found = resume_sender(Told({b"t": state}, incomplete=False), {b"t"}, parts, ROOM)
    assert found.map.states == {b"t": Accepted()}
    assert (found.again, found.forgotten, found.is_partial) == (set(), set(), False)


@pytest.mark.parametrize("state", [None, PLACE])
def test_what_is_not_stored_comes_again(state: Any) -> None:
    found = resume_sender(Told({b"t": state}, incomplete=False), (), {}, ROOM)
    assert (found.map.states, found.again) == ({}, {b"t"})


def test_what_came_in_part_goes_on() -> None:
    found = resume_sender(Told({b"t": None}, incomplete=False), (), {b"t": PLACE, b"other": PLACE}, ROOM)
    assert (found.map.states, found.again) == ({b"t": PLACE}, {b"t"})


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("stored", [set(), {b"t"}])
def test_a_senders_outcome_is_repeated(outcome: Any, stored: set[bytes]) -> None:
    found = resume_sender(Told({b"t": outcome}, incomplete=False), stored, {}, ROOM)
    assert (found.map.states, found.again, found.forgotten) == ({b"t": outcome}, set(), {b"t"})


def test_what_a_sender_has_not_named_is_over() -> None:
    found = resume_sender(Told({b"t": None}, incomplete=False), {b"t", b"old"}, {}, ROOM)
    assert (found.map.states, found.forgotten) == ({b"t": Accepted()}, {b"old"})


def test_an_incomplete_map_of_which_nobody_was_asked_is_in_doubt_here_too() -> None:
    client = Told({b"t": None, b"place": PLACE, b"over": Accepted()}, incomplete=True)
    found = resume_sender(client, (), {}, ROOM, asked=False)
    assert found.map == ({b"t": None, b"place": None, b"over": Accepted()}, False)
    assert found.again == {b"t", b"place"}
    assert found.is_partial
    whole = resume_sender(client._replace(incomplete=False), (), {}, ROOM, asked=False)
    assert whole.map == ({b"over": Accepted()}, False)
    assert whole.again == {b"t", b"place"}


def test_an_incomplete_map_of_a_sender() -> None:
    found = resume_sender(Told({b"lost": None, b"t": None}, incomplete=True), {b"t", b"more"}, {}, ROOM)
    assert list(found.map.states) == [b"t", b"more"], "first what the client has asked for"
    assert (found.again, found.forgotten, found.is_partial) == ({b"lost"}, set(), True)


def test_a_map_for_a_sender_that_does_not_fit() -> None:
    tags = [b"%03d" % number for number in range(100)]
    found = resume_sender(Told(dict.fromkeys(tags), incomplete=False), tags, {}, 200)
    assert found.is_partial
    assert found.map.incomplete
    assert 0 < len(found.map.states) < 100


# -- a receiver


def test_both_have_it_and_the_client_none_of_it() -> None:
    found = resume_receiver(Told({b"1": None}, incomplete=False), [b"1"], ROOM)
    assert found.map.states == {b"1": None}
    assert (found.first, found.resumed, found.outcomes) == ((), ((b"1", None),), ())


def test_both_have_it_and_the_client_a_part() -> None:
    found = resume_receiver(Told({b"1": PLACE}, incomplete=False), [b"1"], ROOM)
    assert found.resumed == ((b"1", PLACE),)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_client_has_an_outcome(outcome: Any) -> None:
    found = resume_receiver(Told({b"1": outcome}, incomplete=False), [b"1"], ROOM)
    assert (found.first, found.resumed, found.outcomes) == ((), (), ((b"1", outcome),))


def test_what_the_node_alone_has_is_sent_first() -> None:
    found = resume_receiver(Told({b"2": None}, incomplete=False), [b"3", b"2", b"1"], ROOM)
    assert (found.first, found.resumed) == ((b"3", b"1"), ((b"2", None),))
    assert set(found.map.states) == {b"1", b"2", b"3"}


def test_what_the_client_alone_has_was_settled() -> None:
    found = resume_receiver(Told({b"2": Accepted(), b"1": None}, incomplete=False), [], ROOM)
    assert (found.map.states, found.first, found.resumed, found.outcomes) == ({}, (), (), ())


def test_what_the_node_alone_has_needs_no_room() -> None:
    tags = [b"%05d" % number for number in range(5000)]
    found = resume_receiver(Told({}, incomplete=False), tags, 200)
    assert (found.map, found.first, found.is_partial) == (({}, False), tuple(tags), False)
    found = resume_receiver(Told({}, incomplete=True), tags, 200)
    assert found.map.incomplete, "the client may have them"
    assert found.first == ()


def test_an_incomplete_map_of_a_receiver() -> None:
    found = resume_receiver(Told({b"2": None}, incomplete=True), [b"1", b"2", b"3"], ROOM)
    assert (found.first, found.resumed, found.is_partial) == ((), ((b"2", None),), True)


def test_a_map_for_a_receiver_that_does_not_fit() -> None:
    tags = [b"%03d" % number for number in range(100)]
    states: dict[bytes, Any] = {tag: Accepted() if tag > b"050" else None for tag in tags[40:]}
    found = resume_receiver(Told(states, incomplete=False), tags, 200)
    assert found.map.incomplete
    assert found.first == ()
    decided = [tag for tag, _ in (*found.resumed, *found.outcomes)]
    assert decided == [tag for tag in tags[40:] if tag in found.map.states], "what is not in the map is not decided"


# -- places


def test_each_byte_of_a_message_has_a_place() -> None:
    whole = message(bytes(300), header=Header(), annotations={"x-a": 1}, application={"k": "v" * 300})
    places = [place_of(whole[:size]) for size in range(len(whole) + 1)]
    assert [offset_of(whole, place) for place in places] == list(range(len(whole) + 1))
    assert [place.section_number for place in places] == sorted(place.section_number for place in places)
    assert places[-1] == Received(section_number=4, section_offset=0)


def test_a_place_that_is_not_in_a_message() -> None:
    whole = message(b"body")
    assert offset_of(whole, Received(section_number=0, section_offset=len(whole) + 1)) is None
    assert offset_of(whole, Received(section_number=2, section_offset=0)) is None
    assert offset_of(b"", Received(section_number=0, section_offset=1)) is None
    assert offset_of(whole * 2, Received(section_number=0, section_offset=len(whole) + 1)) is None


def test_what_is_no_message_has_places_too() -> None:
    for junk in (b"\xff" * 20, b"\0" * 200, b"\0\x53", b"\0\x53\x75\xb0\xff"):
        place = place_of(junk)
        assert offset_of(junk, place) == len(junk)


def test_sections_that_are_written_anew_are_sent_anew() -> None:
    content = message(b"body", header=Header(), annotations={"x": 1})
    start = content.index(b"\0\x53\x75")
    assert resumed_at(content, Received(section_number=1, section_offset=2)) == (BEGINNING, 0)
    assert resumed_at(content, Received(section_number=9, section_offset=2)) == (BEGINNING, 0)
    place = Received(section_number=2, section_offset=3)
    assert resumed_at(content, place) == (place, start + 3)


# -- terms


@pytest.mark.parametrize(
    ("policy", "timeout", "outlives"),
    [
        ("link-detach", 0, (False, False, False)),
        ("session-end", 0, (True, False, False)),
        ("connection-close", 0, (True, True, False)),
        ("never", 0, (True, True, True)),
        ("link-detach", 1, (True, True, True)),
        ("session-end", 1, (True, True, True)),
    ],
)
def test_what_a_link_outlives(policy: str, timeout: int, outlives: tuple[bool, ...]) -> None:
    terms = Terms(policy, timeout)
    assert tuple(terms.outlives(event) for event in Event) == outlives
    assert terms.outlives_connection is outlives[-1]


def test_when_the_time_runs() -> None:
    runs = {policy: [Terms(policy, 9).runs_from(event) for event in Event] for policy in ("link-detach", "never")}
    assert runs == {"link-detach": [True] * 3, "never": [False] * 3}
    assert [Terms("session-end", 9).runs_from(event) for event in Event] == [False, True, True]


def test_terms_in_force() -> None:
    month = TIMEOUT_S_MAX
    asked = Source(expiry_policy="session-end", timeout=2 * month)
    assert in_force(asked, kept=True, administers=False) == ("session-end", month)
    assert in_force(asked, kept=True, administers=True) == ("session-end", 2 * month)
    never = Target(expiry_policy="never")
    assert in_force(never, kept=True, administers=False) == ("connection-close", month)
    assert in_force(never, kept=True, administers=True) == ("never", 0)
    assert in_force(never, kept=False, administers=True) is NOTHING_KEPT
    with pytest.raises(LinkError, match="expiry-policy"):
        in_force(Source(expiry_policy="later"), kept=False, administers=False)


# -- what a client has read


def test_an_echo_proves_what_was_told_before_it() -> None:
    proof = Proof()
    proof.said(1000)
    proof.told([b"a", b"b"])
    assert proof.is_due(ECHO_MS)
    total = proof.next_sum(1002)
    proof.ask(total, ECHO_MS)
    proof.told([b"c"])
    assert not proof.is_due(10 * ECHO_MS), "one is open"
    proof.heard(1000)
    assert (proof.count, sorted(proof.tags())) == (3, [b"a", b"b", b"c"])
    proof.heard(total)
    assert (proof.count, list(proof.tags())) == (1, [b"c"])
    assert not proof.is_due(ECHO_MS + 1), "each 100 ms"
    assert proof.is_due(2 * ECHO_MS)


def test_no_two_flows_that_ask_have_one_sum() -> None:
    proof = Proof()
    proof.said(SERIALS - 1)
    assert proof.next_sum(SERIALS - 1) == 0
    proof.said(0)
    assert proof.next_sum(SERIALS - 5) == 1
    assert proof.next_sum(7) == 7


def test_a_client_without_a_credit_is_believed() -> None:
    proof = Proof()
    proof.told([b"a"])
    proof.heard(None)
    assert proof.count == 1, "nothing was asked"
    proof.ask(5, 0)
    proof.heard(None)
    assert proof.count == 0


def test_a_memory_answers_when_all_is_decided() -> None:
    memory, heard = Memory([b"a"], [b"told"], 3), []
    memory.known([b"a", b"b", b"c", b"x"], False, heard.append)
    memory.decided([b"b", b"told"], True)
    assert heard == []
    memory.decided([b"c"], False)
    assert heard == [{b"a", b"b"}]
    memory.read()
    memory.known([], True, heard.append)
    assert heard[1] == {b"a", b"b", b"told"}, "that tag was used again, and is a delivery that nobody was told of"


def test_what_was_told_on_a_connection_has_been_read_there() -> None:
    memory, heard = Memory([b"kept"], [b"told"], 0), []
    memory.read()
    memory.known([b"kept", b"told"], False, heard.append)
    assert heard == [{b"kept"}]
