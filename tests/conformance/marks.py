"""The two marks of the suite: which rule a test asserts, and where the oracle is older than the page."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def rule(*ids: str) -> pytest.MarkDecorator:
    """The test asserts these rules of `rules.txt`."""
    return pytest.mark.rule(*ids)


def differs_from_rabbitmq_3_10(why: str, *, hangs: bool = False) -> pytest.MarkDecorator:
    """RabbitMQ 3.10 does not do this (a version matter or our own choice): a strict xfail on the oracle.

    With `hangs` the test is skipped there, because waiting for what never comes would only cost time.
    """
    return pytest.mark.differs_from_rabbitmq_3_10(why, hangs=hangs)


def not_on_a_cluster(why: str) -> Callable[..., object]:
    """The rule asks for what cannot be brought about with real nodes; the claim says where it is shown."""
    return pytest.mark.skip(reason=f"not reachable with real nodes: {why}")
