"""What policies and arguments say of links of AMQP 1.0: judged, merged, explained, and of feature level 4."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LOCAL_NODE
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Exchange, OperatorPolicy, Policy
from clusterbroker.cluster.wiring.levels import LINK_POLICIES, check_ordered
from clusterbroker.cluster.wiring.policies import ExchangeSettings, PolicyTable, check_policy
from clusterbroker.cluster.wiring.queue_rules import check_arguments
from clusterbroker.cluster.wiring.queue_settings import resolve

BAD = [
    ("link-recovery", "on", "unacceptable type 'longstr', expected a boolean"),
    ("link-expiry-max", -1, "value -1 is negative"),
    ("link-expiry-max", True, "expected an integer"),
    ("recoverable-links-max", "many", "expected an integer"),
]


@pytest.mark.parametrize(("key", "value", "why"), BAD)
@pytest.mark.parametrize("kind", [Policy, OperatorPolicy])
def test_a_bad_value_is_refused_where_it_is_defined(kind: Any, key: str, value: object, why: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"invalid value of '{key}' in policy 'p': .*{why}"):
        check_policy(kind("/", "p", "", {key: value}))
    with pytest.raises(PreconditionFailed, match=f"invalid arg 'x-{key}' for queue 'q' in vhost '/': .*{why}"):
        check_arguments("/", "q", {"x-" + key: value})


def test_the_operators_word_is_first_and_of_limits_the_lowest_counts() -> None:
    settings = resolve(
        {"x-link-recovery": True, "x-link-expiry-max": 5000},
        transient=False,
        policy=("p", {"link-expiry-max": 9000, "recoverable-links-max": 3}),
        operator_policy=("o", {"link-recovery": False, "link-expiry-max": 60_000}),
    )
    assert settings.explain() == {
        "link_recovery": "False, operator policy 'o'",
        "link_expiry_max_ms": "5000, the minimum of operator policy 'o' (60000) and argument 'x-link-expiry-max' (5000)"
        " and policy 'p' (9000)",
        "recoverable_links_max": "3, policy 'p'",
    }
    stream = resolve({"x-queue-type": "stream", "x-link-recovery": False}, transient=False)
    assert stream.link_recovery is False, "senders have links to streams"
    assert resolve({}, transient=False).link_recovery is None


def test_an_exchange_has_them_by_policy() -> None:
    table = PolicyTable()
    exchange = Exchange("/", "x", "direct", True, False, False, {})
    table.put(Policy("/", "p", "^x", {"link-expiry-max": 7000, "link-recovery": True}))
    assert table.exchange_settings(exchange) == ExchangeSettings(
        None, "p", True, 7000, sources=(("link_recovery", "policy 'p'"), ("link_expiry_max_ms", "policy 'p'"))
    )
    table.put(OperatorPolicy("/", "o", "", {"link-recovery": False}, apply_to="queues"))
    assert table.exchange_settings(exchange).link_recovery is True, "that policy is for queues"
    table.put(OperatorPolicy("/", "o", "", {"link-recovery": False}, apply_to="all"))
    assert table.exchange_settings(exchange).link_recovery is False


def test_members_that_judge_otherwise_must_be_gone() -> None:
    definition: dict[str, Any] = {"max-length": 5, "link-recovery": False}
    declare = c.DeclareQueue(
        vhost="/", name="q", durable=True, exclusive=False, auto_delete=False, owner=LOCAL_NODE,
        arguments={"x-recoverable-links-max": 1},
    )  # fmt: skip
    for command in (
        c.PutPolicy(vhost="/", name="p", pattern="", definition=definition),
        c.PutOperatorPolicy(vhost="/", name="p", pattern="", definition=definition),
        c.ImportDefinitions(import_id="i", number=0, commands=(declare,)),
    ):
        with pytest.raises(
            PreconditionFailed, match=f"this needs feature level {LINK_POLICIES}, and the cluster is at"
        ):
            check_ordered(command, LINK_POLICIES - 1)
        check_ordered(command, LINK_POLICIES)
    check_ordered(c.PutPolicy(vhost="/", name="p", pattern="", definition={"max-length": 5}), 1)
