"""Divergence of epochs and the choice of the in-sync set, against sets of seqs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal import ranges
from clusterbroker.replication import sync
from clusterbroker.replication.in_sync import desired

SEQS = st.sets(st.integers(1, 40))
NODES = st.lists(st.sampled_from("abcde"), unique=True, min_size=1)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """What gave each seq (index 0 is seq 1) its epoch: at the owner, and at a replica that shares a prefix with it."""
    shared = sorted(draw(st.lists(st.integers(1, 4), max_size=15)))
    least = shared[-1] if shared else 1
    tails = st.lists(st.integers(least, least + 4), max_size=10).map(sorted)
    return shared + draw(tails), shared + draw(tails)


def table(history: list[int], known: set[int]) -> list[tuple[int, int]]:
    """As it is read back when only these seqs have left a record."""
    first: dict[int, int] = {}
    for seq, epoch in enumerate(history, 1):
        if seq in known:
            first.setdefault(epoch, seq)
    return sorted(first.items())


@given(histories(), st.booleans(), st.booleans(), st.data())
def test_foreign_seqs_are_those_of_another_epoch(
    both: tuple[list[int], list[int]], owner_short: bool, own_short: bool, data: st.DataObject
) -> None:
    """With exact tables, and of the seqs that left a record also with vague ones, shortened by either or not."""
    owner, own = both
    alive = {
        where: data.draw(st.sets(st.integers(1, len(history)))) if history else set()
        for where, history in (("owner", owner), ("own", own))
    }
    own_table, owner_table = table(own, alive["own"]), table(owner, alive["owner"])
    if own_short:
        sync.shorten(own_table, min(alive["own"], default=len(own) + 1))
    if owner_short:
        sync.shorten(owner_table, min(alive["owner"], default=len(owner) + 1))
    alien = sync.foreign(own_table, len(own) + 1, owner_table, len(owner) + 1)
    for seq in alive["own"]:
        same = seq <= len(owner) and owner[seq - 1] == own[seq - 1]
        if not same and (seq in alive["owner"] or seq > len(owner)):
            assert ranges.contains(alien, seq), "a message that is not the owner's goes"
        if same and seq in alive["owner"]:
            assert not ranges.contains(alien, seq), "a message that both have stays"
    cut = sync.cut_point(alien, len(own) + 1)
    if cut is not None:
        assert all(ranges.contains(alien, seq) for seq in range(cut, len(own) + 1)), "a cut takes only what is foreign"


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 3)), st.dictionaries(st.integers(0, 5), st.integers(0, 3)), SEQS
)
def test_compare_asks_for_what_differs(own: dict[int, int], offered: dict[int, int], touched: set[int]) -> None:
    wanted, ended = sync.compare(own, offered.items(), ranges.ranges_of(touched))
    assert {b for b in offered if own.get(b) != offered[b]} <= set(wanted) <= set(offered)
    assert all(seq // sync.BUCKET_SEQS in wanted for seq in touched if seq // sync.BUCKET_SEQS in offered)
    assert set(ended) == own.keys() - offered.keys()


@given(NODES, st.data(), st.integers(1, 5))
def test_the_in_sync_set_never_falls_below_the_minimum_by_choice(
    replicas: list[str], data: st.DataObject, minimum: int
) -> None:
    owner = replicas[0]
    in_sync = [
        owner,
        *data.draw(st.lists(st.sampled_from(replicas), unique=True).map(lambda n: [x for x in n if x != owner])),
    ]
    bad = data.draw(st.sets(st.sampled_from(replicas)))
    ready = data.draw(st.sets(st.sampled_from(replicas))) - bad
    wish = desired(owner, replicas, in_sync, minimum, bad, ready)
    assert owner in wish
    assert len(set(wish)) == len(wish)
    assert set(in_sync) | ready >= set(wish)
    assert len(wish) >= min(minimum, len(in_sync)), "too few would commit nothing"
    if len(wish) > minimum and len((set(in_sync) | ready) - (bad - {owner})) >= minimum:
        assert not (set(wish) & bad) - {owner}
