"""The operator on the node's own machine: all of an administrator's rights, and AMQP as a user who may."""

from __future__ import annotations

import pytest

from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.principals import (
    ADMINISTRATOR,
    MANAGEMENT,
    MONITORING,
    OPERATOR,
    POLICYMAKER,
    LocalOperator,
    principal,
)
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.management.set_up import Place, everything, user


@pytest.fixture
def place() -> Place:
    made = Place()
    made.must(c.AddVhost(name="/"), c.AddVhost(name="closed"))
    return made


def test_it_may_everything_everywhere(place: Place) -> None:
    operator = LocalOperator(place.replica.map)
    for right in (ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER):
        operator.require(right)
    operator.enter("closed")
    assert operator.open_vhosts() == ["/", "closed"]
    assert operator.sees_all_vhosts()
    assert operator.own()("anybody")
    assert operator.account == "", "also if a user is called as it is shown"
    assert operator.may("closed", "anything") == ["configure", "write", "read"]
    with pytest.raises(Refused) as refused:
        operator.enter("none")
    assert refused.value.status == 404


def test_amqp_is_done_by_an_administrator_who_may_everything_there(place: Place) -> None:
    operator = LocalOperator(place.replica.map)
    with pytest.raises(Refused, match=r"no user may do everything in vhost '/'.*permissions set.*--as USER"):
        operator.amqp_user("/")
    place.must(user("a-partly", "administrator"), user("b-full", ""), user("z-admin", "administrator"))
    place.must(c.SetPermission(user="a-partly", vhost="/", configure="^a", write=".*", read=".*"))
    with pytest.raises(Refused):
        operator.amqp_user("/")
    place.must(everything("b-full"))
    assert operator.amqp_user("/") == "b-full"
    place.must(everything("z-admin"))
    assert operator.amqp_user("/") == "z-admin"
    with pytest.raises(Refused):
        operator.amqp_user("closed")


def test_it_may_be_any_user_and_then_no_more_than_that(place: Place) -> None:
    place.must(user("man", "management"))
    assert principal(place.replica.map, None).name == OPERATOR
    man = principal(place.replica.map, "man")
    assert (man.name, man.has(ADMINISTRATOR), man.amqp_user("/")) == ("man", False, "man")
    with pytest.raises(Refused) as refused:
        principal(place.replica.map, "none")
    assert refused.value.status == 400
