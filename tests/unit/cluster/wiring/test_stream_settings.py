"""How old a stream's messages may grow, and which settings reach a stream at all."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.wiring.queue_settings import resolve
from clusterbroker.cluster.wiring.stream_settings import age_ms


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("1s", 1000), ("2m", 120_000), ("3h", 10_800_000), ("7D", 604_800_000), ("1M", 2_592_000_000),
        ("1Y", 31_536_000_000), ("0s", 0), ("7d", None), ("D", None), ("-1D", None), ("1.5h", None), ("1h ", None),
    ],
)  # fmt: skip
def test_ages(text: str, wanted: int | None) -> None:
    assert age_ms(text) == wanted


def test_a_policy_for_all_queues_leaves_streams_what_they_are() -> None:
    policy = {"message-ttl": 5, "max-length": 3, "dead-letter-exchange": "x", "max-age": "1h", "max-length-bytes": 9}
    stream = resolve({"x-queue-type": "stream"}, transient=False, policy=("p", policy))
    assert (stream.message_ttl_ms, stream.max_length, stream.dead_letter_exchange) == (None, None, None)
    assert (stream.max_age_ms, stream.max_length_bytes) == (3_600_000, 9)
    other = resolve({}, transient=False, policy=("p", policy))
    assert (other.message_ttl_ms, other.max_length, other.max_age) == (5, 3, None)


def test_how_many_copies_as_other_brokers_say_it() -> None:
    assert resolve({"x-queue-type": "stream", "x-initial-cluster-size": 5}, transient=False).replicas == 5
    assert resolve({"x-initial-cluster-size": 5}, transient=False).replicas is None
