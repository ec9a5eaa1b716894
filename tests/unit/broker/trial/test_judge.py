"""The judge on a history without a fault, and on the same history with each kind of mistake put into it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterbroker.broker.trial import history as h
from clusterbroker.broker.trial.event_log import Line
from clusterbroker.broker.trial.history import Event, History, What
from clusterbroker.broker.trial.judge import judge, judge_maps, judge_owners
from tests.unit.broker.trial.lines import began

MESSAGES = 20


def clean() -> list[Event]:
    """Two publishers; consumer x loses its first session while it holds messages 5 to 9 of publisher 0, which come to
    consumer y with the flag; message 12 is published twice, and delivered twice."""
    record = History()
    at_s = 0.0

    def add(
        what: What, client: str, session: int, publisher: int = -1, number: int = -1, flagged: bool = False
    ) -> None:
        nonlocal at_s
        at_s += 0.01
        record.add(at_s, what, client, session, publisher, number, flagged)

    for publisher in (0, 1):
        add(What.BEGAN, f"p{publisher}", 1 + publisher)
    add(What.BEGAN, "x", 3)
    add(What.BEGAN, "y", 4)
    for number in range(MESSAGES):
        for publisher in (0, 1):
            add(What.PUBLISHED, f"p{publisher}", 1 + publisher, publisher, number)
    add(What.LOST, "p0", 1)
    add(What.BEGAN, "p0", 5)
    add(What.PUBLISHED, "p0", 5, 0, 12)
    for number in range(MESSAGES):
        for publisher in (0, 1):
            add(What.CONFIRMED, f"p{publisher}", 5 if publisher == 0 else 2, publisher, number)
    for number in range(10):
        add(What.DELIVERED, "x", 3, 0, number)
        if number < 5:
            add(What.ACKNOWLEDGED, "x", 3, 0, number)
    add(What.LOST, "x", 3)
    for number in range(MESSAGES):
        if number >= 5:
            add(What.DELIVERED, "y", 4, 0, number, flagged=number < 10)
            add(What.ACKNOWLEDGED, "y", 4, 0, number)
        add(What.DELIVERED, "y", 4, 1, number)
        add(What.ACKNOWLEDGED, "y", 4, 1, number)
    add(What.DELIVERED, "y", 4, 0, 12)
    return record.events


def test_a_history_without_a_fault() -> None:
    verdict = judge(clean())
    assert verdict.passed, verdict.findings
    assert (verdict.published, verdict.confirmed, verdict.redelivered) == (2 * MESSAGES, 2 * MESSAGES, 5)
    assert verdict.delivered == 2 * MESSAGES + 6


def test_a_numbered_message_comes_once_however_often_it_was_published() -> None:
    assert judge(clean(), numbered=(0, 1)).count("doubled") == 1
    assert judge([event for event in clean() if event.number != 12], numbered=(0, 1)).passed


def where(events: list[Event], what: What, publisher: int, number: int, nth: int = 0) -> int:
    """The place of the nth event of a kind about a message."""
    found = [
        i for i, e in enumerate(events) if (e.what, e.publisher, e.number) == (what, publisher, number)
    ]  # fmt: skip
    return found[nth]


def changed(event: Event, **fields: object) -> Event:
    values = {name: getattr(event, name) for name in Event.__struct_fields__}
    return Event(**(values | fields))  # type: ignore[arg-type]


def lose(events: list[Event]) -> None:
    del events[where(events, What.DELIVERED, 1, 7)]


def lose_the_last(events: list[Event]) -> None:
    del events[where(events, What.DELIVERED, 1, MESSAGES - 1)]


def invent(events: list[Event]) -> None:
    events.append(Event(9.0, What.DELIVERED, "y", 4, 1, 77))


def foreign_body(events: list[Event]) -> None:
    events.append(Event(9.0, What.DELIVERED, "y", 4, -1, -1))


def confirm_what_was_not_said(events: list[Event]) -> None:
    events.append(Event(9.0, What.CONFIRMED, "p1", 2, 1, 78))


def double(events: list[Event]) -> None:
    """The flag is missing on what the lost session held."""
    at = where(events, What.DELIVERED, 0, 6, nth=1)
    events[at] = changed(events[at], flagged=False)


def double_what_was_published_twice(events: list[Event]) -> None:
    events.append(Event(9.0, What.DELIVERED, "y", 4, 0, 12))


def take_away_what_is_held(events: list[Event]) -> None:
    at = where(events, What.DELIVERED, 1, 3)
    events.insert(at + 1, Event(events[at].at_s, What.DELIVERED, "z", 9, 1, 3, True))


def bring_back_what_was_acknowledged(events: list[Event]) -> None:
    events.append(Event(9.0, What.DELIVERED, "z", 9, 1, 3, True))


def disorder(events: list[Event]) -> None:
    one, other = where(events, What.DELIVERED, 1, 7), where(events, What.DELIVERED, 1, 8)
    events[one], events[other] = events[other], events[one]


def never_answer(events: list[Event]) -> None:
    del events[where(events, What.CONFIRMED, 1, 2)]


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        (lose, "lost"),
        (lose_the_last, "lost"),
        (invent, "unexpected"),
        (foreign_body, "unexpected"),
        (confirm_what_was_not_said, "unexpected"),
        (double, "doubled"),
        (double_what_was_published_twice, "doubled"),
        (take_away_what_is_held, "taken away"),
        (bring_back_what_was_acknowledged, "taken away"),
        (disorder, "disordered"),
        (never_answer, "unanswered"),
    ],
)
def test_each_mistake_is_found(mistake: Callable[[list[Event]], None], rule: str) -> None:
    events = clean()
    mistake(events)
    verdict = judge(events)
    assert list(verdict.findings) == [rule], verdict.findings
    assert verdict.count(rule) == 1
    assert f"1 {rule}" in verdict.figures()


def test_what_an_earlier_history_settled_must_not_come_back() -> None:
    events = [Event(1.0, What.DELIVERED, "y", 4, 0, 12, True)]
    assert judge(events, {0: 13}).count("unexpected") == 1


def test_an_undrained_history_is_not_asked_for_its_missing_messages() -> None:
    events = clean()
    lose(events)
    never_answer(events)
    assert judge(events, drained=False).passed


def test_other_brokers_may_take_from_living_consumers_with_the_flag() -> None:
    events = clean()
    take_away_what_is_held(events)
    assert judge(events, living=False).passed


def test_gaps_are_each_clients_longest_silence() -> None:
    events = clean()
    events += [Event(events[-1].at_s + 2.5, What.DELIVERED, "y", 4, 0, 12, True)]
    assert max(judge(events, living=False).consumer_gaps_s) == pytest.approx(2.5)


def test_a_consumer_that_polls_has_no_gap_for_others_may_empty_the_queue() -> None:
    events = clean()
    at_s = events[-1].at_s
    longest = max(judge(events, living=False).consumer_gaps_s)
    for after_s, client, what, polled in (
        (0.1, "polls", What.BEGAN, True),
        (0.2, "polls", What.DELIVERED, True),
        (5.0, "polls", What.DELIVERED, True),
        (5.1, "either", What.DELIVERED, False),
        (5.2, "either", What.BEGAN, True),  # and it finds nothing until its session ends
        (9.9, "either", What.BEGAN, False),
        (9.9, "either", What.DELIVERED, False),
    ):
        events.append(Event(at_s + after_s, what, client, 4, 0, 12, True, polled))
    assert max(judge(events, living=False).consumer_gaps_s) == pytest.approx(longest)


def test_verdicts_add_up() -> None:
    total = judge(clean())
    broken = clean()
    lose(broken)
    total.add(judge(broken))
    total.add(judge(broken))
    assert (total.count("lost"), total.published) == (2, 6 * MESSAGES)


def test_a_history_is_read_back() -> None:
    record = History(clean())
    assert h.load(record.dump()).events == record.events
    with pytest.raises(ValueError, match="not a history"):
        h.load(b"{}\n")


def test_one_owner_in_each_epoch() -> None:
    assert judge_owners([began("a", 1), began("b", 2), began("a", 3, 2), began("a", 1, queue=8)]).passed


@pytest.mark.parametrize(
    "lines",
    [
        [began("a", 1), began("b", 1)],
        [began("a", 1), began("a", 1, incarnation=2)],
        [began("a", 2), began("a", 1)],
    ],
)
def test_double_owners_are_found(lines: list[Line]) -> None:
    assert judge_owners(lines).count("double owner") == 1


def test_maps_are_the_same_at_the_same_index() -> None:
    assert judge_maps({"a": (7, "x"), "b": (8, "y"), "c": (7, "x")}).passed
    assert judge_maps({"a": (7, "x"), "b": (8, "y"), "c": (7, "z")}).count("diverged") == 1
