"""Each promise of recoverable links, broken once in what programs wrote down: the judge says which."""

from __future__ import annotations

import pytest

from clusterbroker.broker.trial.recoverable_judge import RecoverableJudge

GOOD = (
    "a began",
    "b began",
    "a sent s 0 07",
    "a sent s 1 08",
    "a outcome s 0 accepted",
    "a outcome s 1 accepted",
    "b took r s 0 01",
    "b took q s 0 01",
    "b took r s 1 02",
    "b began",
    "b took r s 1 02",
    "b took q s 1 02",
    "b settled r s 0",
    "a paused 1",
    "b paused 1",
    "a rest 1",
    "b rest 1",
)


def judged(*lines: str) -> RecoverableJudge:
    judge = RecoverableJudge({"s": ("one", "two")}, {"r": "one", "q": "two", "other": "one"})
    for line in lines:
        client, _, rest = line.partition(" ")
        judge.take(client, rest)
    return judge


def test_each_message_once_in_each_queue_of_its_route() -> None:
    judge = judged(*GOOD)
    assert judge.missing(1, ("a", "b")) == ""
    verdict = judge.verdict()
    assert verdict.passed, verdict.findings
    assert (verdict.published, verdict.confirmed, verdict.delivered, verdict.redelivered) == (2, 2, 5, 1)
    assert judge.verdict().published == 0, "a round is judged once"


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (GOOD[:8], "lost"),
        (GOOD[:5], "unanswered"),
        ((*GOOD, "b took r s 1 03"), "doubled"),
        ((*GOOD, "b began", "b took r s 1 03"), "doubled"),
        ((*GOOD, "b took r s 1 02"), "doubled"),
        ((*GOOD, "b took other s 1 02"), "taken away"),
        ((*GOOD, "b began", "b took r s 0 01"), "unexpected"),
        ((*GOOD, "b took r s 2 03"), "unexpected"),
        ((*GOOD, "a outcome s 1 released"), "unexpected"),
        ((*GOOD, "a error it is gone"), "unexpected"),
        ((*GOOD[:6], "b took r s 1 02", "b took r s 0 01", *GOOD[11:]), "disordered"),
    ],
)
def test_a_broken_promise(lines: tuple[str, ...], rule: str) -> None:
    assert judged(*lines).verdict().count(rule) >= 1


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("b paused 1", "b did not pause"),
        ("b rest 1", "not settled"),
        ("a outcome s 1 accepted", "1 messages over links not answered"),
        ("b took q s 1 02", "1 not delivered"),
    ],
)
def test_what_has_to_come_yet(without: str, said: str) -> None:
    assert said in judged(*(line for line in GOOD if line != without)).missing(1, ("a", "b"))
