"""Policies and parameters, and how many of each there may be."""

from typing import Any

import pytest

from clusterbroker.cluster.errors import (
    LimitReached,
    PreconditionFailed,
)
from clusterbroker.cluster.wiring import commands as c
from tests.unit.cluster.wiring.map_world import World


def test_policies_and_parameters_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(name: str, priority: int = 0) -> c.PutPolicy:
        return c.PutPolicy(vhost="/", name=name, pattern="", definition={"max-length": 1}, priority=priority)

    def parameter(name: str, vhost: str = "/", value: Any = 1) -> c.PutParameter:
        return c.PutParameter(vhost=vhost, component="shovel", name=name, value=value)

    world.do(c.SetVhostLimits(vhost="/", policies_max=2, parameters_max=1))
    world.do(policy("a"))
    world.do(c.PutOperatorPolicy(vhost="/", name="a", pattern="", definition={"max-length": 1}))
    with pytest.raises(LimitReached) as caught:
        world.do(policy("b"))
    assert caught.value.text == "cannot set policy 'b': policy limit in vhost '/' (2) is reached"
    with pytest.raises(LimitReached):
        world.do(c.PutOperatorPolicy(vhost="/", name="b", pattern="", definition={"max-length": 1}))
    world.do(policy("a", 7))
    world.do(parameter("a"))
    world.do(parameter("a", value=2))
    with pytest.raises(LimitReached):
        world.do(parameter("b"))
    world.do(c.ImportDefinitions(import_id="i", number=0, last=True, commands=[policy("b")], apply=9))
    assert len(world.map.policies("/")) == 2, "an import is an operator's"
    world.do(c.ClearVhostLimits(vhost="/"))
    monkeypatch.setattr("clusterbroker.cluster.wiring.parameters.POLICIES_MAX", 3)
    monkeypatch.setattr("clusterbroker.cluster.wiring.parameters.PARAMETERS_MAX", 1)
    with pytest.raises(LimitReached):
        world.do(policy("c"))
    world.do(parameter("a", ""))
    with pytest.raises(LimitReached, match=r"parameter limit of global parameters \(1\) is reached"):
        world.do(parameter("b", ""))
    world.do(c.SetVhostLimits(vhost="/", policies_max=-1, parameters_max=-1))
    world.do(policy("c"))
    world.do(parameter("b"))


def test_policies_change_settings(world: World) -> None:
    queue = world.queue("q")
    world.do(c.PutPolicy(vhost="/", name="p", pattern="^q", definition={"max-length": 7}))
    assert world.told == ["PolicyChanged"]
    assert world.map.effective(queue).max_length == 7
    world.do(c.PutPolicy(vhost="/", name="p", pattern="^q", definition={"max-length": 7}))
    assert world.told == []
    world.do(c.PutOperatorPolicy(vhost="/", name="p", pattern="", definition={"max-length": 3}))
    assert world.map.effective(queue).max_length == 3
    with pytest.raises(PreconditionFailed):
        world.do(c.PutPolicy(vhost="/", name="bad", pattern="(", definition={"max-length": 7}))
    assert world.do(c.DeletePolicy(vhost="/", name="p")) is True
    assert world.do(c.DeletePolicy(vhost="/", name="p")) is False
    assert world.do(c.DeleteOperatorPolicy(vhost="/", name="p")) is True
    assert world.map.effective(queue).max_length is None


def test_a_policy_for_all_takes_no_record_of_a_bridge_away(world: World) -> None:
    ledger, other = world.queue("clusterbroker.bridge.b", arguments={"x-max-length": 9}), world.queue("q")
    limits = {"message-ttl": 5, "max-length": 1, "expires": 7, "delivery-limit": 1, "replicas": 5}
    world.do(c.PutPolicy(vhost="/", name="all", pattern=".*", definition=limits))
    world.do(c.PutOperatorPolicy(vhost="/", name="all", pattern=".*", definition={"max-length-bytes": 3}))
    settings = world.map.effective(ledger)
    taken = settings.message_ttl_ms, settings.max_length_bytes, settings.expires_ms, settings.delivery_limit
    assert taken == (None, None, None, None)
    assert (settings.max_length, settings.replicas) == (9, 5), "its own argument, and where its copies are"
    assert (settings.policy, settings.operator_policy) == ("all", "all")
    assert settings.explain() == {"replicas": "5, policy 'all'", "max_length": "9, argument 'x-max-length'"}
    assert world.map.effective(other).max_length == 1
    world.do(c.DeletePolicy(vhost="/", name="all"))
    world.do(c.DeleteOperatorPolicy(vhost="/", name="all"))
    assert world.map.effective(ledger).replicas is None


def test_parameters(world: World) -> None:
    world.do(c.PutParameter(vhost="", component="c", name="n", value=1))
    world.do(c.PutParameter(vhost="", component="c", name="n", value=True))
    assert world.told == ["ParameterChanged"]
    assert world.map.parameter("", "c", "n").value is True  # type: ignore[union-attr]
    assert world.do(c.DeleteParameter(vhost="", component="c", name="n")) is True
    assert world.do(c.DeleteParameter(vhost="", component="c", name="n")) is False
