"""Attempts to sign in: so many sources are remembered, whoever makes names up."""

from __future__ import annotations

from clusterbroker.broker.stats.attempts import SOURCES_MAX, Attempts


def test_they_are_counted_by_address_and_user() -> None:
    attempts = Attempts("amqp")
    for address, user, ok in (("192.0.2.1", "ann", True), ("192.0.2.2", "", False), ("192.0.2.1", "ann", False)):
        attempts.count(address, user, ok)
    assert list(attempts.sources()) == [("192.0.2.2", "", 0, 1), ("192.0.2.1", "ann", 1, 1)]
    assert (attempts.succeeded, attempts.failed) == (1, 2)
    attempts.reset()
    assert (list(attempts.sources()), attempts.succeeded, attempts.failed) == ([], 0, 0)


def test_so_many_sources_are_remembered() -> None:
    attempts = Attempts("http")
    for number in range(SOURCES_MAX + 10):
        attempts.count(str(number), "", False)
        attempts.count("busy", "u", True)
    sources = list(attempts.sources())
    assert len(sources) == SOURCES_MAX
    assert sources[-1] == ("busy", "u", SOURCES_MAX + 10, 0)
    assert (attempts.succeeded, attempts.failed) == (SOURCES_MAX + 10, SOURCES_MAX + 10)


def test_they_may_be_read_while_attempts_are_counted() -> None:
    attempts = Attempts("http")
    for number in range(10):
        attempts.count(str(number), "", False)
    sources = attempts.sources()
    next(sources)
    attempts.count("5", "", True)
    attempts.reset()
    assert list(sources) == []
