"""Answers to callers whose requests died."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.message import new_message, with_flags
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.loss_headers import LAST
from clusterbroker.broker.pools.losses import poison_of
from clusterbroker.broker.pools.responder import answer_to
from clusterbroker.broker.queues.dead_lettering.death import death
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.cluster.wiring.pool_entities import Pool, PoolSettings
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

DEAD = {"x-last-death-reason": "expired"}


def pool(**settings: Any) -> Pool:
    ids = [QueueId(number) for number in range(5)]
    return Pool("/", "core", LogIndex(1), "", PoolSettings(**settings), *ids)


def request(headers: dict[str, Any] | None = None, **about: Any) -> Message:
    properties = Properties(headers={**DEAD, **(headers or {})}, **about)
    made = new_message("core-dl-xchg", "42", properties, b"body", 5)
    return with_flags(made, made.flags | ANSWERABLE)


def test_who_may_not_hear_it_is_not_answered() -> None:
    asked = request(reply_to="q")
    answer = answer_to(pool(), with_flags(asked, asked.flags & ~ANSWERABLE), 7)
    assert answer == ("expired", "", None, "42")


def test_an_answer() -> None:
    answer = answer_to(pool(), request(reply_to="q", correlation_id="c", headers={"own": 1}), 7)
    assert answer is not None
    assert answer.message is not None
    assert (answer.reason, answer.reply_to, answer.message.body) == ("expired", "q", b"")
    assert (answer.message.exchange, answer.message.routing_key) == (b"", b"q")
    properties = properties_of(answer.message)
    assert (properties.correlation_id, properties.type) == ("c", "error")
    assert properties.headers == {
        "x-status": b"expired", "x-pool": "core", "x-key": "42",
        "x-detail": "nobody took the request within its time", "x-delivery-count": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("queue", "count", "said"),
    [
        ("core-req-42", 3, 3), ("core-req-42", "3", 0), ("core-req-42", True, 0), ("core-req-42", -1, 0),
        ("core-orphan", 3, 0), ("other-req-42", 3, 0), (7, 3, 0),
    ],
)  # fmt: skip
def test_how_often_it_came_back_the_queue_of_its_key_says(queue: object, count: object, said: int) -> None:
    asked = request({"x-last-death-queue": queue, "x-delivery-count": count}, reply_to="q")
    answer = answer_to(pool(), asked, 7)
    assert answer is not None
    assert answer.message is not None
    assert (properties_of(answer.message).headers or {})["x-delivery-count"] == said


def test_a_status_as_text() -> None:
    answer = answer_to(pool(status_type="text"), request(reply_to="q"), 7)
    assert answer is not None
    assert answer.message is not None
    assert (properties_of(answer.message).headers or {})["x-status"] == "expired"


def test_nobody_wants_an_answer() -> None:
    answer = answer_to(pool(), request(), 7)
    assert answer is not None
    assert answer.message is None


def test_what_did_not_die_is_not_answered() -> None:
    for reason in (7, None):
        assert answer_to(pool(), request({"x-last-death-reason": reason}, reply_to="q"), 7) is None


def test_a_reason_that_is_not_known_here_is_answered() -> None:
    answer = answer_to(pool(), request({"x-last-death-reason": "of-a-newer-member"}, reply_to="q"), 7)
    assert answer is not None
    assert answer.message is not None
    said = properties_of(answer.message).headers or {}
    assert (said["x-status"], said["x-detail"]) == (b"of-a-newer-member", "of-a-newer-member")


@pytest.mark.parametrize("first", ["expired", "a-word-of-its-client", 7])
def test_headers_of_an_earlier_death_change_no_answer(first: object) -> None:
    """A client keeps them when it publishes a request again."""
    earlier = {"queue": "work", "reason": "expired", "count": 1, "exchange": "", "routing-keys": ["work"]}
    kept = {"x-death": [earlier], "x-first-death-reason": first, "x-last-death-reason": first, LAST: "lost"}
    properties = Properties(reply_to="q", correlation_id="c", headers=kept)  # type: ignore[arg-type]
    dead = death(properties, "core-req-42", "delivery_limit", "core", ["42"], 1)
    made = new_message("core-dl-xchg", "42", dead, b"", 5)
    made = with_flags(made, made.flags | ANSWERABLE)
    answer = answer_to(pool(), made, 7)
    assert answer is not None
    assert answer.message is not None
    assert answer.reason == "delivery_limit"
    assert poison_of(made, "core", 7) is not None


def test_an_answer_that_died_is_not_answered() -> None:
    assert answer_to(pool(), request({"x-status": b"expired"}, reply_to="q", type="error"), 7) is None
    assert answer_to(pool(), request({"x-status": b"expired"}, reply_to="q"), 7) is not None, "a caller's own header"
