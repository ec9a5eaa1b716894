"""Frames out of a stream of bytes, however it is cut; and what no frame can be."""

from __future__ import annotations

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.cluster.link.frames import FRAME_BYTES_MAX, HEADER, BadFrame, FrameReader, decoder, encode


class Say(msgspec.Struct, array_like=True, tag=1):
    text: str


class Count(msgspec.Struct, array_like=True, tag=2):
    number: int


FRAMES = st.lists(st.tuples(st.text(max_size=20), st.integers(0, 2**64 - 1), st.binary(max_size=200)), max_size=8)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[first:last] for first, last in pairwise(ends)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cutting_of_the_stream_gives_the_same_frames(
    frames: list[tuple[str, int, bytes]], places: list[int]
) -> None:
    stream = b"".join(encode(Say(text), index, [payload]) for text, index, payload in frames)
    reader = FrameReader()
    got = [frame for piece in cut(stream, places) for frame in reader.feed(piece)]
    heads = decoder(Say, Count)
    assert [(heads.decode(head).text, index, bytes(payload)) for index, head, payload in got] == frames
    assert len(reader) == 0


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 15))
def test_a_torn_frame_is_kept_and_nothing_of_it_is_told(
    frames: list[tuple[str, int, bytes]], places: list[int], missing: int
) -> None:
    stream = b"".join(encode(Say(text), index, [payload]) for text, index, payload in [*frames, ("", 0, b"")])
    reader = FrameReader()
    got = [frame for piece in cut(stream[:-missing], places) for frame in reader.feed(piece)]
    assert len(got) == len(frames)
    assert len(reader) == len(encode(Say(""))) - missing


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from(["long", "head", "short"]))
def test_what_no_frame_can_be_is_refused_after_the_good_ones(
    frames: list[tuple[str, int, bytes]], places: list[int], how: str
) -> None:
    bad = {"long": (FRAME_BYTES_MAX + 1, 2), "head": (40, 25), "short": (15, 0)}[how]
    stream = b"".join(encode(Say(text), index, [payload]) for text, index, payload in frames) + HEADER.pack(*bad, 0)
    reader = FrameReader()
    got = []
    with pytest.raises(BadFrame, match=f"a frame of {bad[0]} bytes with a head of {bad[1]}"):
        for piece in cut(stream, places):
            for frame in reader.feed(piece):
                got.append(frame)  # noqa: PERF402 - those before the bad one count
    assert len(got) == len(frames)
    assert len(reader) == 0


def test_a_repeated_frame_is_a_frame_again() -> None:
    raw = encode(Count(5), 7, [b"x"])
    assert [index for index, _, _ in FrameReader().feed(raw + raw)] == [7, 7]


def test_the_longest_frame_is_taken_and_one_byte_more_is_not() -> None:
    reader = FrameReader(100)
    empty = len(encode(Count(1)))
    assert len(list(reader.feed(encode(Count(1), 0, [bytes(100 - empty)])))) == 1
    with pytest.raises(BadFrame, match="at most 100 taken"):
        list(reader.feed(encode(Count(1), 0, [bytes(101 - empty)])))


def test_views_stay_valid_when_more_comes_and_the_source_is_written_again() -> None:
    raw = bytearray(encode(Say("a"), 1, [b"first"]))
    reader = FrameReader()
    ((_, head, payload),) = reader.feed(memoryview(raw))
    raw[:] = bytes(len(raw))
    list(reader.feed(encode(Say("b"), 2, [b"second"])))
    assert (bytes(payload), bytes(head)) == (b"first", msgspec.msgpack.encode(Say("a")))


def test_what_comes_after_a_caller_stopped_is_not_lost() -> None:
    reader = FrameReader()
    stream = b"".join(encode(Count(number), number) for number in range(3))
    for index, _, _ in reader.feed(stream):
        assert index == 0
        break
    assert [index for index, _, _ in reader.feed(b"")] == [1, 2]


def cost(total: int, piece: int) -> float:
    """CPU seconds for one frame of `total` bytes in pieces, the best of three."""
    raw = encode(Count(1), 1, [bytes(total)])
    pieces = [raw[at : at + piece] for at in range(0, len(raw), piece)]
    best = float("inf")
    for _ in range(3):
        reader = FrameReader()
        begin = time.process_time()
        got = [frame for data in pieces for frame in reader.feed(data)]
        best = min(best, time.process_time() - begin)
        assert len(got) == 1
    return best


def test_a_long_frame_in_pieces_costs_linear_time() -> None:
    """63 MiB in pieces of 64 KiB take some 0.07 s of CPU; copied again with each piece they would take 30 s."""
    assert cost(63 << 20, 1 << 16) < 2
