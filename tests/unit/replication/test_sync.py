"""Producers at the end of a sync: the owner's numbers, in the owner's order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal.queue_state import QueueState
from clusterbroker.replication.sync import attribute_updates

FORGOTTEN = 0
NAMES = st.sampled_from([b"v", b"w", b"x", b"y", b"z"])
HEARD = st.lists(st.tuples(NAMES, st.integers(1, 3)), max_size=8)
SINCE = st.lists(st.tuples(NAMES, st.sampled_from([1, 2, FORGOTTEN])), max_size=8)


def hear(state: QueueState, heard: list[tuple[bytes, int]]) -> None:
    for name, more in heard:
        state.set_attribute(name, state.attributes.get(name, 0) + more if more else FORGOTTEN)


@given(HEARD, HEARD, SINCE)
def test_the_copy_has_the_owners_order(
    old: list[tuple[bytes, int]], new: list[tuple[bytes, int]], live: list[tuple[bytes, int]]
) -> None:
    """It has heard the same long ago and in another order; what is published during the sync reaches both."""
    owner, copy = QueueState(), QueueState()
    hear(owner, old)
    for name in sorted(owner.attributes):
        copy.set_attribute(name, owner.attributes[name])
    hear(owner, new)
    offered = dict(owner.attributes)
    for name, more in live:
        hear(owner, [(name, more)])
        copy.set_attribute(name, owner.attributes.get(name, FORGOTTEN))
    for name, upto in attribute_updates(copy.attributes, offered, {name for name, _ in live}):
        copy.set_attribute(name, upto)
    assert list(copy.attributes.items()) == list(owner.attributes.items())
    assert attribute_updates(owner.attributes, owner.attributes) == [], "who has all hears nothing"
