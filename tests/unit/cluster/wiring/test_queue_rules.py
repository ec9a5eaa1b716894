"""Declaring queues: argument checks, equivalence, and the order of the checks (amqp-rules.md 5.1, 5.3)."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed, ResourceLocked, WiringError
from clusterbroker.cluster.ids import LOCAL_NODE, QueueId
from clusterbroker.cluster.wiring.commands import DeclareQueue
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.queue_rules import (
    check_access,
    check_arguments,
    check_equivalent,
    check_kind,
    check_length,
    check_name,
)


def queue(**fields: Any) -> Queue:
    given: dict[str, Any] = {
        "vhost": "/",
        "name": "q",
        "queue_id": QueueId(1),
        "durable": True,
        "auto_delete": False,
        "exclusive_owner": None,
        "arguments": {},
        "owner": LOCAL_NODE,
    }
    return Queue(**{**given, **fields})


def declare(**fields: Any) -> DeclareQueue:
    return DeclareQueue(**{"vhost": "/", "name": "q", "durable": True, "connection": "c1", **fields})


def redeclare(existing: Queue, queue_type_default: str = "classic", **fields: Any) -> None:
    check_equivalent(existing, declare(**fields), queue_type_default)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-unknown": object},
        {"x-message-ttl": 0},
        {"x-expires": 1},
        {"x-max-length": 0, "x-max-length-bytes": 0},
        {"x-max-priority": 255},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
        {"x-queue-type": "quorum", "x-delivery-limit": -1, "x-max-priority": 3},
        {"x-queue-type": "classic", "x-delivery-limit": 5, "x-queue-mode": "lazy", "x-queue-version": 2},
        {"x-single-active-consumer": True},
        {"x-replicas": 3, "x-min-in-sync": 2, "x-durability": "disk"},
        {"x-ownership": "rotating", "x-ownership-hold-ms": 50},
        {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 100, "x-delayed-retry-max": 100},
        {"x-message-ttl": 2**32, "x-expires": 134_217_728_000, "x-consumer-timeout": 2**63 - 1},
        {"x-message-ttl": 2**63 - 1, "x-expires": 2**63 - 1},
    ],
)
def test_good_arguments(arguments: dict[str, Any]) -> None:
    check_arguments("/", "q", arguments)


@pytest.mark.parametrize(
    "arguments, argument",
    [
        ({"x-message-ttl": -1}, "x-message-ttl"),
        ({"x-message-ttl": "10"}, "x-message-ttl"),
        ({"x-message-ttl": True}, "x-message-ttl"),
        ({"x-message-ttl": 1.0}, "x-message-ttl"),
        ({"x-message-ttl": 2**63}, "x-message-ttl"),
        ({"x-expires": 0}, "x-expires"),
        ({"x-max-length": -1}, "x-max-length"),
        ({"x-max-length": 2**63}, "x-max-length"),
        ({"x-max-length-bytes": "1"}, "x-max-length-bytes"),
        ({"x-overflow": "drop-tail"}, "x-overflow"),
        ({"x-overflow": 1}, "x-overflow"),
        ({"x-max-priority": 0}, "x-max-priority"),
        ({"x-max-priority": 256}, "x-max-priority"),
        ({"x-single-active-consumer": 1}, "x-single-active-consumer"),
        ({"x-dead-letter-exchange": 1}, "x-dead-letter-exchange"),
        ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-routing-key"),
        ({"x-queue-type": "stream", "x-message-ttl": 1}, "x-message-ttl"),
        ({"x-queue-type": "stream", "x-max-length": 1}, "x-max-length"),
        ({"x-queue-type": "stream", "x-single-active-consumer": True}, "x-single-active-consumer"),
        ({"x-queue-type": "stream", "x-max-age": "7"}, "x-max-age"),
        ({"x-queue-type": "stream", "x-max-age": "7W"}, "x-max-age"),
        ({"x-queue-type": "stream", "x-max-age": 7}, "x-max-age"),
        ({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1000}, "x-stream-max-segment-size-bytes"),
        ({"x-queue-type": "stream", "x-max-length-bytes": -1}, "x-max-length-bytes"),
        ({"x-queue-type": "other"}, "x-queue-type"),
        ({"x-queue-type": None}, "x-queue-type"),
        ({"x-queue-mode": "fast"}, "x-queue-mode"),
        ({"x-delivery-limit": -2}, "x-delivery-limit"),
        ({"x-max-age": "1h"}, "x-max-age"),
        ({"x-replicas": 0}, "x-replicas"),
        ({"x-replicas": 2, "x-min-in-sync": 3}, "x-min-in-sync"),
        ({"x-durability": "paper"}, "x-durability"),
        ({"x-ownership": "none"}, "x-ownership"),
        ({"x-ownership-hold-ms": 0}, "x-ownership-hold-ms"),
        ({"x-delayed-retry-min": 5, "x-delayed-retry-max": 4}, "x-delayed-retry-max"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_arguments("/", "q", arguments)
    assert caught.value.text.startswith(f"invalid arg '{argument}' for queue 'q' in vhost '/'")


def test_what_a_stream_may_have() -> None:
    check_arguments(
        "/",
        "q",
        {
            "x-queue-type": "stream", "x-max-length-bytes": 1, "x-max-age": "7D", "x-replicas": 3, "x-min-in-sync": 2,
            "x-stream-max-segment-size-bytes": 1 << 20, "x-queue-leader-locator": "balanced", "x-durability": "disk",
            "x-initial-cluster-size": 3, "x-stream-filter-size-bytes": 32, "x-queue-master-locator": "any",
            "x-unknown": 1,
        },
    )  # fmt: skip


def test_an_argument_of_the_other_kind_names_the_kind() -> None:
    with pytest.raises(PreconditionFailed) as caught:
        check_arguments("/", "q", {"x-queue-type": "quorum", "x-max-age": "1h"})
    assert caught.value.text == (
        "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type quorum: only streams have it"
    )
    with pytest.raises(PreconditionFailed) as caught:
        check_arguments("/", "q", {"x-queue-type": "stream", "x-overflow": "drop-head"})
    assert caught.value.text == (
        "invalid arg 'x-overflow' for queue 'q' in vhost '/' of queue type stream: streams do not have it"
    )


@pytest.mark.parametrize(
    "flags, problem",
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
        ({"server_named": True}, "server-named"),
    ],
)
def test_what_a_stream_cannot_be(flags: dict[str, bool], problem: str) -> None:
    check_kind(declare(arguments={"x-queue-type": "stream"}))
    check_kind(declare(arguments={"x-queue-type": "quorum"}, **flags))
    with pytest.raises(PreconditionFailed) as caught:
        check_kind(declare(arguments={"x-queue-type": "stream"}, **flags))
    assert caught.value.text == f"invalid property '{problem}' for queue 'q' in vhost '/'"


def test_reserved_and_long_names() -> None:
    with pytest.raises(AccessRefused) as caught:
        check_name("queue", "amq.x")
    assert caught.value.text == "queue name 'amq.x' contains reserved prefix 'amq.*'"
    check_name("queue", "amqx")
    check_length("queue", "ü" * 127)
    with pytest.raises(PreconditionFailed):
        check_length("queue", "ü" * 128)


def test_redeclare_of_the_same_is_fine() -> None:
    redeclare(queue())
    redeclare(queue(arguments={"x-message-ttl": 10}), arguments={"x-message-ttl": 10, "x-other": 1})
    redeclare(queue(arguments={"x-unknown": 1}), arguments={"x-unknown": 2})
    redeclare(queue(durable=False, exclusive_owner="c1"), exclusive=True, durable=True)


@pytest.mark.parametrize(
    "existing, fields, text",
    [
        ({}, {"durable": False}, "'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        ({}, {"auto_delete": True}, "'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        (
            {},
            {"arguments": {"x-message-ttl": 10}},
            "'x-message-ttl' for queue 'q' in vhost '/': received the value '10' of type 'signedint' "
            "but current is none",
        ),
        (
            {"arguments": {"x-max-length": 5}},
            {},
            "'x-max-length' for queue 'q' in vhost '/': received none but current is the value '5' of type 'signedint'",
        ),
        (
            {"arguments": {"x-queue-type": "quorum"}},
            {},
            "'x-queue-type' for queue 'q' in vhost '/': received none "
            "but current is the value 'quorum' of type 'longstr'",
        ),
    ],
)
def test_inequivalent_redeclare(existing: dict[str, Any], fields: dict[str, Any], text: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        redeclare(queue(**existing), **fields)
    assert caught.value.text == f"inequivalent arg {text}"


def test_an_absent_type_is_classic_or_the_vhosts_default() -> None:
    redeclare(queue(), arguments={"x-queue-type": "classic"})
    redeclare(queue(arguments={"x-queue-type": "classic"}))
    redeclare(queue(arguments={"x-queue-type": "quorum"}), queue_type_default="quorum")
    redeclare(queue(), queue_type_default="quorum")


@pytest.mark.parametrize(
    "owner, connection, exclusive",
    [("c1", "c2", True), ("c1", "c2", False), ("c1", "c1", False), (None, "c1", True), ("c1", None, True)],
)
def test_exclusive_is_checked_before_everything_else(
    owner: str | None, connection: str | None, exclusive: bool
) -> None:
    existing = queue(exclusive_owner=owner, durable=False)
    with pytest.raises(ResourceLocked, match="cannot obtain exclusive access to locked queue 'q' in vhost '/'"):
        redeclare(existing, connection=connection, exclusive=exclusive, durable=True, auto_delete=True)


def test_access_without_redeclare_asks_for_the_owner_only() -> None:
    check_access(queue(), None)
    check_access(queue(exclusive_owner="c1"), "c1")
    with pytest.raises(WiringError):
        check_access(queue(exclusive_owner="c1"), "c2")
