"""Declaring and binding exchanges (amqp-rules.md 5.1, 5.3)."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed
from clusterbroker.cluster.wiring.commands import DeclareExchange
from clusterbroker.cluster.wiring.entities import Exchange
from clusterbroker.cluster.wiring.exchange_rules import (
    HASH_WEIGHT_MAX,
    check_arguments,
    check_binding,
    check_equivalent,
    check_type,
    refuse_default_exchange,
    refuse_system_deletion,
)


def test_texts_of_refusals() -> None:
    with pytest.raises(PreconditionFailed) as unknown:
        check_type("x-jms-topic")
    assert unknown.value.text == "unknown exchange type 'x-jms-topic'"
    with pytest.raises(AccessRefused) as default:
        refuse_default_exchange("")
    assert default.value.text == "operation not permitted on the default exchange"
    with pytest.raises(AccessRefused) as system:
        refuse_system_deletion("/", "amq.direct")
    assert system.value.text == "deletion of system exchange 'amq.direct' in vhost '/' not allowed"


@pytest.mark.parametrize(
    "field, value, text",
    [
        ("type", "fanout", "'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'"),
        ("durable", False, "'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'"),
        ("auto_delete", True, "'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
        ("internal", True, "'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'"),
        (
            "arguments",
            {"alternate-exchange": "a"},
            "'alternate-exchange' for exchange 'x' in vhost '/': "
            "received the value 'a' of type 'longstr' but current is none",
        ),
    ],
)
def test_inequivalent_redeclare(field: str, value: object, text: str) -> None:
    same: dict[str, Any] = {"vhost": "/", "name": "x", "type": "direct", "durable": True, "arguments": {"other": 1}}
    exchange = Exchange(vhost="/", name="x", type="direct")
    check_equivalent(exchange, DeclareExchange(**same))
    with pytest.raises(PreconditionFailed) as caught:
        check_equivalent(exchange, DeclareExchange(**{**same, field: value}))
    assert caught.value.text == f"inequivalent arg {text}"


@pytest.mark.parametrize("key", ["0", "1", "10", "+7", str(HASH_WEIGHT_MAX)])
def test_good_weights(key: str) -> None:
    check_binding(Exchange(vhost="/", name="x", type="x-consistent-hash"), key, {})


@pytest.mark.parametrize("key", ["", "a", "-1", "1.5", "+-1", "1_0", "\u0661", "9" * 255, str(HASH_WEIGHT_MAX + 1)])
def test_bad_weights(key: str) -> None:
    with pytest.raises(PreconditionFailed, match="The binding key must be"):
        check_binding(Exchange(vhost="/", name="x", type="x-consistent-hash"), key, {})


def test_headers_bindings() -> None:
    exchange = Exchange(vhost="/", name="x", type="headers")
    for good in ({}, {"x-match": "all"}, {"x-match": "any-with-x", "a": 1}):
        check_binding(exchange, "", good)
    for bad in ("some", 1, None):
        with pytest.raises(PreconditionFailed, match="Invalid x-match"):
            check_binding(exchange, "", {"x-match": bad})
    check_binding(Exchange(vhost="/", name="x", type="direct"), "", {"x-match": "some"})


def test_topic_bindings_have_at_most_two_hashes() -> None:
    exchange = Exchange(vhost="/", name="x", type="topic")
    check_binding(exchange, "#.a.#.b##", {})
    with pytest.raises(PreconditionFailed, match="more than 2 '#'"):
        check_binding(exchange, "#.#.#", {})


@pytest.mark.parametrize(
    "type_, arguments",
    [
        ("direct", {"alternate-exchange": 1}),
        ("x-consistent-hash", {"hash-header": 1}),
        ("x-consistent-hash", {"hash-property": "body"}),
        ("x-consistent-hash", {"hash-property": "message_id", "hash-header": "h"}),
    ],
)
def test_bad_arguments(type_: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match=r"invalid arg '.*' for exchange 'x' in vhost '/': "):
        check_arguments("/", "x", type_, arguments)


def test_good_arguments() -> None:
    check_arguments("/", "x", "direct", {"hash-header": 1, "alternate-exchange": "a"})
    check_arguments("/", "x", "x-consistent-hash", {"hash-property": "message_id"})
