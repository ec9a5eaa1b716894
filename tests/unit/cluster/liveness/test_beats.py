"""Beats as datagrams: what was written is read, by the one it was for, once, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterbroker.cluster.liveness.beats import DATAGRAM_BYTES_MAX, Beat, BeatCodec, ReplayGuard

KEY = bytes(range(32))
U64 = st.integers(0, 2**64 - 1)
BEATS = st.builds(
    Beat,
    *(st.text("abcz09.-_", min_size=1, max_size=64), U64, U64, U64, U64),
    *(st.integers(0, 2**32 - 1), st.booleans(), U64),
)


@given(BEATS)
def test_what_was_written_is_read(beat: Beat) -> None:
    data = BeatCodec(KEY, "c", beat.name).encode(beat, "b")
    assert len(data) <= DATAGRAM_BYTES_MAX
    assert BeatCodec(KEY, "c", "b").decode(data) == beat


@given(BEATS)
def test_another_receiver_cluster_or_key_reads_nothing(beat: Beat) -> None:
    data = BeatCodec(KEY, "c", beat.name).encode(beat, "b")
    assert BeatCodec(KEY, "c", "x").decode(data) is None
    assert BeatCodec(KEY, "d", "b").decode(data) is None
    assert BeatCodec(bytes(32), "c", "b").decode(data) is None


@given(BEATS, st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_may_change(beat: Beat, place: int, flip: int) -> None:
    data = bytearray(BeatCodec(KEY, "c", "a").encode(beat, "b"))
    data[place % len(data)] ^= flip
    assert BeatCodec(KEY, "c", "b").decode(bytes(data)) is None


@given(st.binary(max_size=300))
def test_anything_else_is_dropped(data: bytes) -> None:
    assert BeatCodec(KEY, "c", "b").decode(data) is None


@given(BEATS, st.integers(0, 128))
def test_a_datagram_that_is_cut_is_dropped(beat: Beat, length: int) -> None:
    data = BeatCodec(KEY, "c", "a").encode(beat, "b")
    assert length >= len(data) or BeatCodec(KEY, "c", "b").decode(data[:length]) is None


def test_a_beat_passes_once_and_never_after_a_newer_one() -> None:
    guard = ReplayGuard()
    beat = Beat("a", 2, 1, 10, 0)
    assert guard.is_new(beat)
    assert not guard.is_new(beat)
    assert not guard.is_new(replace(beat, seq=9))
    assert guard.is_new(replace(beat, seq=11))
    assert not guard.is_new(replace(beat, incarnation=1, seq=99))
    assert guard.is_new(replace(beat, incarnation=3, seq=1))
    assert guard.is_new(replace(beat, name="b"))
    guard.keep({"b"})
    assert guard.is_new(beat)
