"""A pool's controller by its rows and answers, without a queue or a map."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.pools.controller import BATCH, Controller, key_of
from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.cluster.wiring.pool_entities import Pool, PoolSettings
from tests.budget import examples


def pool(*, paused: bool = False, deleting: bool = False, **settings_: Any) -> Pool:
    ids = [QueueId(number) for number in range(5)]
    return Pool("/", "p", LogIndex(1), "", PoolSettings(**settings_), *ids, paused=paused, deleting=deleting)


def left(controller: Controller) -> list[tuple[int, str]]:
    found = list(controller.leaving)
    controller.leaving.clear()
    return found


def test_a_key_is_required_once_and_all_that_wait_move() -> None:
    controller = Controller(pool(), (), ())
    for seq in (1, 2):
        controller.came(seq, b"k")
    assert left(controller) == []
    assert controller.order() == ("require", ("k",))
    assert controller.order() is None, "one is under way"
    controller.came(3, b"k")
    controller.done()
    assert controller.order() is None, "they have not left"
    controller.came(4, b"k")
    assert left(controller) == [(seq, "moved") for seq in (1, 2, 3, 4)]
    assert controller.order() is None
    for seq in (1, 2, 3):
        controller.left(seq)
    assert controller.order() is None, "one is on its way"
    controller.left(4)
    assert controller.order() == ("settle", ("k",))
    controller.done()
    assert not controller.busy


def test_what_comes_while_a_key_is_settled_requires_it_anew() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.order()
    controller.done()
    controller.left(1)
    assert controller.order() == ("settle", ("k",))
    controller.came(2, b"k")
    assert left(controller) == [(1, "moved")], "its group may end now"
    controller.done()
    assert controller.order() == ("require", ("k",))


def test_what_comes_before_a_key_is_settled_keeps_it_open() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.order()
    controller.done()
    controller.left(1)
    controller.came(2, b"k")
    assert left(controller) == [(1, "moved"), (2, "moved")]
    assert controller.order() is None


def test_words_for_what_is_not_served() -> None:
    controller = Controller(pool(keys="^k"), (), ())
    for seq, raw in enumerate((b"a\0", b"\xff", b"x" * 256, b"other", b"k1", b"k2"), 1):
        controller.came(seq, raw)
    assert left(controller) == [(1, "invalid_key"), (2, "invalid_key"), (3, "invalid_key"), (4, "key_refused")]
    assert controller.order() == ("require", ("k1", "k2"))
    controller.done(refused=("k2",))
    assert left(controller) == [(6, "no_capacity"), (5, "moved")]


def test_a_paused_pool_requires_nothing_and_settles_all_the_same() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.order()
    controller.done()
    controller.pool_changed(pool(paused=True))
    controller.came(2, b"other")
    controller.left(1)
    assert controller.order() == ("settle", ("k",))
    controller.done()
    assert controller.order() is None
    controller.pool_changed(pool())
    assert controller.order() == ("require", ("other",))


def test_a_pool_that_is_deleted_lets_all_die() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.pool_changed(pool(deleting=True))
    controller.came(2, b"other")
    assert left(controller) == [(1, "pool_deleted"), (2, "pool_deleted")]
    assert controller.order() is None


def test_what_expires_while_it_waits_is_forgotten() -> None:
    controller = Controller(pool(paused=True), (), ())
    controller.came(1, b"k")
    controller.left(1)
    assert not controller.busy
    controller.pool_changed(pool())
    assert controller.order() is None


def test_groups_of_an_owner_before_are_settled_when_all_of_its_has_left() -> None:
    controller = Controller(pool(), ("a", "b"), (7, 8))
    controller.came(9, b"a")
    assert controller.order() == ("require", ("a",))
    controller.done()
    controller.left(7)
    controller.left(9)
    assert controller.order() == ("settle", ("a",))
    controller.done()
    controller.left(8)
    assert controller.order() == ("settle", ("b",))


def test_a_command_that_failed_is_ordered_again() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.order()
    controller.failed()
    assert controller.order() == ("require", ("k",))
    controller.done()
    left(controller)
    controller.left(1)
    assert controller.order() == ("settle", ("k",))
    controller.failed()
    assert controller.order() == ("settle", ("k",))


def test_nothing_moves_by_a_group_whose_settle_may_come_true_yet() -> None:
    controller = Controller(pool(), (), ())
    controller.came(1, b"k")
    controller.order()
    controller.done()
    left(controller)
    controller.left(1)
    assert controller.order() == ("settle", ("k",))
    controller.failed()
    controller.came(2, b"k")
    assert left(controller) == []
    assert controller.order() == ("require", ("k",))
    controller.done()
    assert left(controller) == [(2, "moved")]


def test_very_many_keys_are_required_in_parts() -> None:
    controller = Controller(pool(), (), ())
    for seq in range(BATCH + 1):
        controller.came(seq, b"k%d" % seq)
    order = controller.order()
    assert order is not None
    assert len(order[1]) == BATCH


def test_keys() -> None:
    assert key_of(b"") == ""
    assert key_of("\U0001f600".encode()) == "\U0001f600"
    assert key_of(b"\xff") is None
    assert key_of(b"\0") is None
    assert key_of(b"x" * 256) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("came"), st.sampled_from([b"a", b"b", b"\0"])),
        st.tuples(st.sampled_from(["order", "done", "refused", "failed", "take", "left", "pause", "resume"])),
    ),
    max_size=60,
)


@settings(max_examples=examples(300))
@given(STEPS)
def test_no_request_moves_to_a_group_that_may_end(steps: list[tuple[Any, ...]]) -> None:
    """The map's groups in a set: kept from `require` to `settle`. What moves finds its group kept, and each request
    leaves once."""
    controller = Controller(pool(), (), ())
    kept: set[str] = set()
    keys: dict[int, str] = {}
    moving: list[int] = []
    gone: list[int] = []
    under_way: Any = None
    for seq, step in enumerate(steps):
        match step:
            case ("came", raw):
                controller.came(seq, raw)
                keys[seq] = raw.decode()
            case ("order",):
                order = controller.order()
                assert order is None or under_way is None
                under_way = order or under_way
                if order is not None and order[0] == "settle":  # it may be in the map from now on
                    kept -= set(order[1])
            case ("done",) | ("refused",) if under_way is not None:
                refused = under_way[1][:1] if step[0] == "refused" and under_way[0] == "require" else ()
                if under_way[0] == "require":
                    kept |= set(under_way[1]) - set(refused)
                controller.done(refused)
                under_way = None
            case ("failed",) if under_way is not None:
                controller.failed()  # of a settle: it may come true all the same
                under_way = None
            case ("take",) if controller.leaving:
                number, reason = controller.leaving.popleft()
                gone.append(number)
                if reason == "moved":
                    assert keys[number] in kept, "a request moves to a group that the map keeps"
                    moving.append(number)
            case ("left",) if moving:
                controller.left(moving.pop(0))
            case ("pause",) | ("resume",):
                controller.pool_changed(pool(paused=step[0] == "pause"))
    assert len(gone) == len(set(gone))
