import subprocess
import sys
from collections import Counter

import pytest

from clusterbroker.broker.routing.hashing import POINTS_MAX, POINTS_PER_WEIGHT, HashRing, key_point, label_points

KEYS = [f"key-{number}".encode() for number in range(20_000)]


def ring(weights: dict[str, int]) -> HashRing[str]:
    made: HashRing[str] = HashRing(lambda name: f"queue:{name}")
    for name, weight in weights.items():
        made.add(name, weight)
    return made


def places(made: HashRing[str]) -> dict[bytes, str | None]:
    return {key: made.pick(key) for key in KEYS}


def test_an_empty_ring_picks_nothing() -> None:
    made = ring({"a": 1})
    made.remove("a", 1)
    assert made.pick(b"x") is None
    assert len(made) == 0


def test_one_destination_gets_all() -> None:
    assert set(places(ring({"a": 3})).values()) == {"a"}


@pytest.mark.parametrize(
    "weights",
    [
        {f"q{number}": 1 for number in range(10)},
        {f"q{number}": 10 for number in range(4)},
        {"light": 1, "middle": 5, "heavy": 20},
    ],
)
def test_shares_follow_the_weights(weights: dict[str, int]) -> None:
    counts = Counter(places(ring(weights)).values())
    for name, weight in weights.items():
        expected = len(KEYS) * weight / sum(weights.values())
        assert counts[name] == pytest.approx(expected, rel=0.25)


def test_a_key_belongs_to_the_next_point_and_after_the_last_to_the_first() -> None:
    names = ["a", "c"]
    made = ring(dict.fromkeys(names, 1))
    points = sorted((point, name) for name in names for point in label_points(f"queue:{name}", POINTS_PER_WEIGHT))
    assert points[0][1] != points[-1][1], "the ends must differ, or this test could not fail"
    beyond = 0
    for key in KEYS[:2_000]:
        place = key_point(key)
        following = next((name for point, name in points if point >= place), None)
        beyond += following is None
        assert made.pick(key) == (following or points[0][1])
    assert beyond > 0, "the keys must reach over the end of the circle"


def test_order_of_adding_does_not_matter() -> None:
    names = [f"q{number}" for number in range(20)]
    assert places(ring(dict.fromkeys(names, 2))) == places(ring(dict.fromkeys(reversed(names), 2)))


def test_adding_moves_keys_only_to_the_new_destination() -> None:
    made = ring(dict.fromkeys("abcd", 2))
    before = places(made)
    made.add("new", 2)
    moved = {key: now for key, now in places(made).items() if before[key] != now}
    assert set(moved.values()) == {"new"}
    assert len(moved) == pytest.approx(len(KEYS) / 5, rel=0.25)


def test_removing_moves_only_the_keys_of_the_removed_destination() -> None:
    made = ring(dict.fromkeys("abcde", 2))
    before = places(made)
    made.remove("c", 2)
    after = places(made)
    assert all(before[key] == "c" for key in KEYS if before[key] != after[key])
    assert "c" not in after.values()


def test_more_weight_moves_keys_only_to_the_heavier_destination() -> None:
    made = ring(dict.fromkeys("abc", 2))
    before = places(made)
    made.add("b", 3)
    assert {now for key, now in places(made).items() if before[key] != now} == {"b"}
    made.remove("b", 3)
    assert places(made) == before


def test_points_are_a_prefix_of_more_points() -> None:
    assert label_points("queue:a", 300)[:17] == label_points("queue:a", 17)


def test_the_size_is_bounded_whatever_the_weights() -> None:
    made = ring({"giant": 10**18, "dwarf": 1, "other giant": 10**18})
    counts = made.point_counts()
    assert sum(counts.values()) <= POINTS_MAX + len(counts)
    assert counts["dwarf"] == 1
    assert counts["giant"] == counts["other giant"] > POINTS_MAX // 8
    full = ring({f"q{number}": 1 for number in range(512)})
    assert set(full.point_counts().values()) == {POINTS_PER_WEIGHT}
    full.add("one more", 1)
    assert set(full.point_counts().values()) == {POINTS_PER_WEIGHT // 2}


def test_another_process_agrees() -> None:
    """Python's own hash is seeded per process; the ring's must not be."""
    program = (
        "from clusterbroker.broker.routing.hashing import HashRing\n"
        "r = HashRing(lambda n: 'queue:' + n)\n"
        "[r.add(f'q{i}', 1 + i % 3) for i in range(9)]\n"
        "print(','.join(r.pick(f'key-{i}'.encode()) for i in range(200)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = ring({f"q{number}": 1 + number % 3 for number in range(9)})
    answers.add(",".join(str(here.pick(key)) for key in KEYS[:200]))
    assert len(answers) == 1


def test_the_layout_is_pinned() -> None:
    """Nodes of different versions run in one cluster and must agree; changing this is a breaking change."""
    made = ring({"a": 1, "b": 1, "c": 2})
    assert [made.pick(key) for key in KEYS[:12]] == list("cccccccabaca")
