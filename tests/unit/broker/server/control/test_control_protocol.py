"""Frames of control.sock: whole whatever the pieces, and nothing else gets through."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.server.control import protocol as m

TEXT = st.text(max_size=20)
NUMBER = st.integers(0, 2**62)
ASKED = st.one_of(
    st.builds(m.Hello, NUMBER, TEXT, st.booleans()),
    st.builds(m.Tail, NUMBER, NUMBER),
    st.builds(m.AskRows, NUMBER, st.dictionaries(TEXT, st.tuples(NUMBER, NUMBER), max_size=3), NUMBER),
    st.builds(m.Order, NUMBER, st.binary(max_size=300)),
    st.builds(m.Call, NUMBER, TEXT, st.dictionaries(TEXT, TEXT, max_size=3), TEXT),
)
TOLD = st.one_of(
    st.builds(m.Hello, NUMBER, TEXT, st.booleans()),
    st.builds(m.Snapshot, NUMBER, NUMBER, st.binary(max_size=300)),
    st.builds(m.Following, NUMBER),
    st.builds(m.Followed, NUMBER, st.lists(st.tuples(NUMBER, st.binary(max_size=50)), max_size=4).map(tuple)),
    st.builds(m.Rows, NUMBER, st.binary(max_size=300), st.booleans()),
    st.builds(m.RowsEnd, NUMBER, st.booleans()),
    st.builds(m.Ordered, NUMBER, TEXT, TEXT, NUMBER),
    st.builds(m.Done, NUMBER, st.dictionaries(TEXT, NUMBER, max_size=3), TEXT),
    st.builds(m.Leased, st.booleans()),
)


@given(st.lists(ASKED, max_size=6), st.lists(TOLD, max_size=6), st.integers(1, 50))
def test_messages_are_whole_whatever_the_pieces(
    asked: list[m.ControlMessage], told: list[m.ControlMessage], piece: int
) -> None:
    for messages, kinds in ((asked, m.AnyAsked), (told, m.AnyTold)):
        octets = b"".join(map(m.encode, messages))
        frames = m.Frames(kinds)
        heard = [message for at in range(0, len(octets), piece) for message in frames.feed(octets[at : at + piece])]
        assert heard == messages


@given(st.binary(max_size=200))
def test_octets_that_are_no_messages_are_a_value_error_at_worst(octets: bytes) -> None:
    frames = m.Frames(m.AnyAsked)
    try:
        for message in frames.feed(len(octets).to_bytes(4, "big") + octets):
            assert isinstance(message, m.ControlMessage)
    except ValueError:
        pass


def test_a_frame_that_is_too_long_is_refused_before_it_is_there() -> None:
    frames = m.Frames(m.AnyAsked)
    with pytest.raises(ValueError, match="at most"):
        list(frames.feed((m.FRAME_BYTES_MAX + 1).to_bytes(4, "big")))
    with pytest.raises(ValueError, match="at most"):
        m.encode(m.Order(1, bytes(m.FRAME_BYTES_MAX)))


def test_each_side_may_say_its_own_only() -> None:
    with pytest.raises(ValueError, match=r"not a message of control\.sock"):
        list(m.Frames(m.AnyAsked).feed(m.encode(m.Leased(True))))
    with pytest.raises(ValueError, match=r"not a message of control\.sock"):
        list(m.Frames(m.AnyTold).feed(m.encode(m.Tail(1, 1))))


def test_what_came_before_a_bad_frame_is_heard() -> None:
    frames = m.Frames(m.AnyAsked)
    bad = msgspec.msgpack.encode(["nonsense"])
    heard = []
    with pytest.raises(ValueError, match="nonsense"):
        for message in frames.feed(m.encode(m.Tail(1, 2)) + len(bad).to_bytes(4, "big") + bad):
            heard.append(message)  # noqa: PERF402
    assert heard == [m.Tail(1, 2)]
