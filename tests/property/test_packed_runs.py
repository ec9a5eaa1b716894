"""Any run comes back as it was packed; any bytes are a run or refused, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal.layout import RUN_ENTRY, RUN_LENGTH
from clusterbroker.journal.packed_run import HEAD, pack_run, unpack_run

numbers = st.one_of(st.sampled_from((0, 1, 255, 256, 2**31, 2**32 - 1)), st.integers(0, 2**32 - 1))
entries = st.tuples(*[st.integers(0, 255)] * 3, *[numbers] * 4)
runs = st.dictionaries(st.integers(0, 255), entries, min_size=1, max_size=RUN_LENGTH)


@given(runs)
def test_a_run_comes_back(run: dict[int, tuple[int, ...]]) -> None:
    whole = b"".join(RUN_ENTRY.pack(low, *run[low]) for low in sorted(run))
    assert unpack_run(pack_run(whole)) == whole


@given(runs, st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_a_run_or_refused(run: dict[int, tuple[int, ...]], place: int, change: int) -> None:
    packed = bytearray(pack_run(b"".join(RUN_ENTRY.pack(low, *run[low]) for low in sorted(run))))
    packed[place % len(packed)] ^= change
    refused_or_run(bytes(packed))


@given(st.binary(max_size=200), st.integers(0, 2**21))
def test_any_bytes_are_a_run_or_refused(tail: bytes, varying: int) -> None:
    refused_or_run(tail)
    refused_or_run(HEAD.pack(varying, bytes(20)) + tail)


def refused_or_run(packed: bytes) -> None:
    try:
        entries = unpack_run(packed)
    except ValueError:
        return
    assert 0 < len(entries) <= RUN_LENGTH * RUN_ENTRY.size
    assert len(entries) % RUN_ENTRY.size == 0
