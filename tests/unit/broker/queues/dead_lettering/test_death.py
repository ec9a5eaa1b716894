from typing import Any

import pytest
from msgspec.structs import replace

from clusterbroker.broker.queues.dead_lettering.death import (
    COUNT_MAX,
    DEATHS_MAX,
    DIGEST_BYTES,
    HISTORY_BYTES_MAX,
    KEYS_MAX,
    OLDER_MAX,
    Reason,
    dead_letter_keys,
    death,
    is_cycle,
)
from clusterbroker.broker.wire.amqp091.properties import Properties, decode, encode
from clusterbroker.broker.wire.numbers import Int16
from clusterbroker.journal.values import Timestamp


def die(properties: Properties, queue: str, reason: Reason = "expired", now_s: int = 1_700_000_000) -> Properties:
    return death(properties, queue, reason, "orders", ["new"], now_s)


def x_death(properties: Properties) -> list[Any]:
    assert properties.headers is not None
    deaths = properties.headers["x-death"]
    assert isinstance(deaths, list)
    return deaths


def test_the_first_death() -> None:
    before = Properties(content_type="text/plain", delivery_mode=2, expiration="5000", headers={"mine": 1})
    after = death(before, "q", "expired", "orders", ["new", "copy"], 1_700_000_000)
    assert after == Properties(
        content_type="text/plain",
        delivery_mode=2,
        headers={
            "mine": 1,
            "x-first-death-queue": "q",
            "x-first-death-reason": "expired",
            "x-first-death-exchange": "orders",
            "x-last-death-queue": "q",
            "x-last-death-reason": "expired",
            "x-last-death-exchange": "orders",
            "x-death": [
                {
                    "count": 1,
                    "reason": "expired",
                    "queue": "q",
                    "time": 1_700_000_000,
                    "exchange": "orders",
                    "routing-keys": ["new", "copy"],
                    "original-expiration": "5000",
                }
            ],
        },
    )
    # the message itself may still be in another queue
    assert before.expiration == "5000"
    assert before.headers == {"mine": 1}


def test_the_types_on_the_wire() -> None:
    raw = encode(death(Properties(expiration="7"), "q", "maxlen", "x", ["k"], 1_700_000_000))
    assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in raw
    assert b"\x06reasonS\x00\x00\x00\x06maxlen" in raw
    assert b"\x05queueS\x00\x00\x00\x01q" in raw
    assert b"\x04timeT\x00\x00\x00\x00" + (1_700_000_000).to_bytes(4, "big") in raw
    assert b"\x08exchangeS\x00\x00\x00\x01x" in raw
    assert b"\x0crouting-keysA\x00\x00\x00\x06S\x00\x00\x00\x01k" in raw
    assert b"\x13original-expirationS\x00\x00\x00\x017" in raw
    assert b"\x07x-deathA" in raw


def test_without_expiration_or_headers() -> None:
    entry = x_death(die(Properties(), "q", "rejected"))[0]
    assert "original-expiration" not in entry
    assert entry["reason"] == "rejected"


def test_the_same_death_again_is_counted_and_moves_to_the_front() -> None:
    once = die(Properties(expiration="10"), "q", now_s=100)
    other = die(once, "p", "rejected", now_s=200)
    again = death(replace(other, expiration="99"), "q", "expired", "elsewhere", ["other"], 300)
    deaths = x_death(again)
    assert [(entry["queue"], entry["reason"], entry["count"]) for entry in deaths] == [
        ("q", "expired", 2),
        ("p", "rejected", 1),
    ]
    # the table keeps what the first death said
    assert deaths[0]["time"] == 100
    assert deaths[0]["exchange"] == "orders"
    assert deaths[0]["routing-keys"] == ["new"]
    assert deaths[0]["original-expiration"] == "10"
    assert again.expiration is None
    assert x_death(once)[0]["count"] == 1, "the older properties stay as they were"


def test_another_reason_is_another_table() -> None:
    after = die(die(Properties(), "q", "expired"), "q", "rejected")
    assert [(entry["queue"], entry["reason"]) for entry in x_death(after)] == [("q", "rejected"), ("q", "expired")]


def test_first_death_stays_and_last_death_follows() -> None:
    after = death(die(Properties(), "q"), "p", "maxlen", "dlx", ["k"], 2)
    assert after.headers is not None
    picked = {name: value for name, value in after.headers.items() if name != "x-death"}
    assert picked == {
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
        "x-first-death-exchange": "orders",
        "x-last-death-queue": "p",
        "x-last-death-reason": "maxlen",
        "x-last-death-exchange": "dlx",
    }


def test_survives_the_wire_between_deaths() -> None:
    first = decode(encode(die(Properties(expiration="10"), "q")))
    second = decode(encode(die(first, "q")))
    assert x_death(second)[0]["count"] == 2
    assert isinstance(x_death(second)[0]["time"], Timestamp)


def test_copies() -> None:
    headers: dict[str, Any] = {"CC": ["copy"], "BCC": ["secret"]}
    kept = die(Properties(headers=dict(headers)), "q")
    assert kept.headers is not None
    assert kept.headers["CC"] == ["copy"]
    assert "BCC" not in kept.headers
    replaced = death(Properties(headers=dict(headers)), "q", "expired", "x", ["k", "copy"], 1, key_replaced=True)
    assert replaced.headers is not None
    assert "CC" not in replaced.headers
    assert "BCC" not in replaced.headers
    assert x_death(replaced)[0]["routing-keys"] == ["k", "copy"]


MALFORMED: list[Any] = [
    "text",
    7,
    None,
    True,
    {"queue": "q", "reason": "expired"},
    b"\xff",
    [],
    ["text", 7, None, []],
    [{}],
    [{"queue": "q"}],
    [{"queue": 1, "reason": "expired"}],
    [{"queue": "q", "reason": None}],
    [[{"queue": "q", "reason": "expired"}]],
]


@pytest.mark.parametrize("malformed", MALFORMED, ids=repr)
def test_a_malformed_history_starts_anew(malformed: Any) -> None:
    broken = Properties(headers={"x-death": malformed})
    assert not is_cycle(broken.headers, "q")
    after = die(broken, "q")
    assert [(entry["queue"], entry["count"]) for entry in x_death(after)] == [("q", 1)]
    assert after.headers is not None
    assert after.headers["x-first-death-queue"] == "q"
    encode(after)


@pytest.mark.parametrize(
    "count, expected",
    [
        (3, 4),
        (Int16(3), 4),
        ("3", 2),
        (None, 2),
        (True, 2),
        (-5, 2),
        (0, 2),
        (2.5, 2),
        (COUNT_MAX, COUNT_MAX),
        (Timestamp(2**64 - 1), COUNT_MAX),
    ],
)
def test_a_count_that_a_client_wrote(count: Any, expected: int) -> None:
    broken = Properties(headers={"x-death": [{"queue": "q", "reason": "expired", "count": count}, "rubbish"]})
    after = die(broken, "q")
    assert [entry["count"] for entry in x_death(after)] == [expected]
    assert type(x_death(after)[0]["count"]) is int
    encode(after)


def test_doubled_tables_are_merged() -> None:
    table = {"queue": "q", "reason": "expired"}
    other = {"queue": "p", "reason": "expired"}
    after = die(Properties(headers={"x-death": [dict(table), dict(other), dict(table)]}), "q")
    assert [(entry["queue"], entry.get("count")) for entry in x_death(after)] == [("q", 3), ("p", None)]


def history(*deaths: tuple[str, Reason]) -> dict[str, Any] | None:
    """The headers after these deaths, the oldest first."""
    properties = Properties()
    for queue, reason in deaths:
        properties = die(properties, queue, reason)
    return properties.headers


@pytest.mark.parametrize(
    "deaths, target, expected",
    [
        ([("q", "expired")], "q", True),
        ([("q", "maxlen")], "q", True),
        ([("q", "delivery_limit")], "q", True),
        ([("q", "expired")], "p", False),
        ([("q", "expired"), ("p", "expired")], "q", True),
        ([("q", "rejected")], "q", False),
        # rejected on the way round: the usual retry loop
        ([("work", "rejected"), ("wait", "expired")], "work", False),
        ([("work", "rejected"), ("wait", "expired"), ("work", "rejected")], "wait", False),
        # an old rejection does not excuse a circle that now turns by itself
        ([("work", "rejected"), ("wait", "expired"), ("work", "expired")], "wait", True),
        ([("q", "rejected"), ("a", "expired"), ("b", "expired")], "a", True),
        ([("q", "expired"), ("p", "rejected")], "q", False),
    ],
)
def test_cycles(deaths: list[tuple[str, Reason]], target: str, expected: bool) -> None:
    assert is_cycle(history(*deaths), target) is expected


def test_no_history_is_no_cycle() -> None:
    assert not is_cycle(None, "q")
    assert not is_cycle({}, "q")


def test_a_forged_rejection_cannot_keep_a_circle_turning() -> None:
    forged = Properties(headers={"x-death": [{"queue": "q", "reason": "rejected", "count": 1}]})
    once = die(forged, "q", "expired")
    assert is_cycle(once.headers, "q")


@pytest.mark.parametrize(
    "replacement, expected",
    [(None, ("k", "cc", "bcc")), ("dead", ("dead",)), ("", ("",))],
)
def test_dead_letter_keys(replacement: str | None, expected: tuple[str, ...]) -> None:
    assert dead_letter_keys(replacement, ["k"], ["cc", "k"], ["bcc"]) == expected


def test_a_history_is_bounded_and_its_newest_tables_are_whole() -> None:
    dead = Properties()
    for number in range(300):
        dead = die(dead, f"q{number}", now_s=number)
    deaths = x_death(dead)
    assert [entry["queue"] for entry in deaths] == [f"q{number}" for number in range(299, 299 - DEATHS_MAX, -1)]
    assert dead.headers["x-first-death-queue"] == "q0", "what consumers ask for first is not in a table"
    assert len(deaths[0]) == len(deaths[50]) == 6
    assert len(encode(dead)) < HISTORY_BYTES_MAX + 1000


def test_long_tables_lose_what_no_circle_is_known_by() -> None:
    dead = Properties()
    for number in range(300):
        dead = death(dead, f"{number:0255}", "expired", "x" * 255, ["k" * 255] * 200, number)
    deaths = x_death(dead)
    assert len(deaths) == DEATHS_MAX
    assert deaths[0]["routing-keys"] == ["k" * 255] * KEYS_MAX
    assert set(deaths[-1]) == {"count", "reason", "queue"}
    assert len(encode(dead)) < 80_000, "names and keys are as long as they can be"
    assert is_cycle(dead.headers, f"{299 - DEATHS_MAX + 1:0255}")


def test_a_circle_is_seen_however_many_queues_it_has() -> None:
    dead = Properties()
    for number in range(DEATHS_MAX + 200):
        dead = die(dead, f"q{number}")
    assert is_cycle(dead.headers, "q0")
    assert is_cycle(dead.headers, "q199")
    assert is_cycle(dead.headers, "q200")
    assert not is_cycle(dead.headers, "new")
    again = decode(encode(dead))
    assert is_cycle(again.headers, "q3")
    assert not is_cycle(die(dead, "last", "rejected").headers, "q3"), "a client was asked"


def test_an_old_rejection_excuses_what_lies_before_it_and_nothing_else() -> None:
    dead = die(die(Properties(), "before"), "asked", "rejected")
    for number in range(DEATHS_MAX + 5):
        dead = die(dead, f"q{number}")
    assert not is_cycle(dead.headers, "before")
    assert is_cycle(dead.headers, "q0")


def test_what_a_history_cannot_hold_is_taken_for_a_circle() -> None:
    full = Properties(headers={"x-death": [], "x-death-older": bytes(DIGEST_BYTES * OLDER_MAX)})
    assert is_cycle(die(full, "q").headers, "new")
    for forged in (bytes(DIGEST_BYTES + 1), "text", None, 7, []):
        assert not is_cycle(die(Properties(headers={"x-death-older": forged}), "q").headers, "new")
