"""Effective settings: operator policy > argument > policy, numeric limits take the minimum (amqp-rules.md 5.3)."""

import dataclasses

import msgspec
import pytest

from clusterbroker.cluster.wiring.queue_settings import RULES, QueueSettings, Rule, resolve, storable_lives


def test_defaults() -> None:
    settings = resolve({}, transient=False)
    assert settings == QueueSettings()
    assert settings.durability == "fsync"
    assert settings.explain() == {}


def test_limits_take_the_minimum_of_all_sources() -> None:
    settings = resolve(
        {"x-message-ttl": 500, "x-max-length": 10},
        transient=False,
        policy=("p", {"message-ttl": 900, "max-length": 5, "expires": 7}),
        operator_policy=("o", {"message-ttl": 700, "expires": 9}),
    )
    assert (settings.message_ttl_ms, settings.max_length, settings.expires_ms) == (500, 5, 7)
    assert (settings.policy, settings.operator_policy) == ("p", "o")
    explained = settings.explain()["message_ttl_ms"]
    assert (
        explained
        == "500, the minimum of operator policy 'o' (700) and argument 'x-message-ttl' (500) and policy 'p' (900)"
    )


def test_others_take_the_strongest_source() -> None:
    policy = ("p", {"dead-letter-exchange": "p", "overflow": "drop-head", "durability": "memory", "replicas": 3})
    operator = ("o", {"overflow": "reject-publish", "replicas": 5})
    arguments = {"x-dead-letter-exchange": "a", "x-overflow": "reject-publish-dlx", "x-replicas": 1}
    settings = resolve(arguments, transient=False, policy=policy, operator_policy=operator)
    assert settings.dead_letter_exchange == "a"
    assert settings.overflow == "reject-publish"
    assert settings.replicas == 5
    assert settings.durability == "memory"
    assert settings.explain()["dead_letter_exchange"] == "a, argument 'x-dead-letter-exchange'"
    assert resolve({}, transient=False, policy=policy).dead_letter_exchange == "p"


def test_the_queue_type_chooses_defaults_only() -> None:
    assert resolve({"x-queue-type": "quorum"}, transient=False).delivery_limit == 20
    assert resolve({"x-queue-type": "classic"}, transient=False).delivery_limit is None
    both = resolve({"x-queue-type": "quorum", "x-max-priority": 5, "x-delivery-limit": 3}, transient=False)
    assert (both.delivery_limit, both.max_priority) == (3, 5)
    assert resolve({"x-quorum-initial-group-size": 5}, transient=False).replicas == 5
    assert resolve({"x-quorum-initial-group-size": 5, "x-replicas": 1}, transient=False).replicas == 1


def test_a_negative_delivery_limit_is_none_and_never_the_minimum() -> None:
    quorum = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    assert resolve(quorum, transient=False).delivery_limit is None
    assert resolve(quorum, transient=False, policy=("p", {"delivery-limit": 8})).delivery_limit == 8


def test_a_transient_queue_lives_in_memory() -> None:
    settings = resolve({"x-durability": "fsync"}, transient=True)
    assert settings.durability == "memory"
    assert settings.explain()["durability"] == "memory, the queue is not durable"


def test_every_rule_names_a_field_and_no_field_twice() -> None:
    fields = [rule.field for rule in RULES if rule.field is not None]
    assert len(fields) == len(set(fields))
    assert set(fields) <= set(QueueSettings.__struct_fields__)
    arguments = [rule.argument for rule in RULES]
    assert len(arguments) == len(set(arguments))


def test_settings_are_frozen() -> None:
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError, msgspec.ValidationError)):
        resolve({}, transient=False).max_length = 1  # type: ignore[misc]


def test_a_life_beyond_every_clock_is_kept_as_the_longest_and_nothing_else_is_touched() -> None:
    """RabbitMQ takes any length in a policy; the metadata log has no longer integers (decision 021)."""
    given = {"message-ttl": 2**64, "expires": 2**63, "x-expires": 5, "x-message-ttl": 10**30, "consumer-timeout": 2**64}
    longest = 2**63 - 1
    assert storable_lives(given) == given | {"message-ttl": longest, "expires": longest, "x-message-ttl": longest}
    assert given["expires"] == 2**63, "the caller's table stays as it is"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.argument)
def test_what_the_schema_of_a_setting_excludes_is_refused(rule: Rule) -> None:
    schema = rule.legal.schema
    outside = {"integer": [True, "1"], "string": [1, None], "boolean": [0, "true"]}[schema["type"]]
    if "minimum" in schema:
        outside += [schema["minimum"] - 1, schema["maximum"] + 1]
        assert rule.check(schema["minimum"]) is None
        assert rule.check(schema["maximum"]) is None
    if "enum" in schema:
        outside.append("".join(schema["enum"]))
        assert [rule.check(value) for value in schema["enum"]] == [None] * len(schema["enum"])
    if "maxLength" in schema:
        outside.append("x" * (schema["maxLength"] + 1))
    assert all(rule.check(value) is not None for value in outside), outside
