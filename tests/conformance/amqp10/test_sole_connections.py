"""One connection for a container (rule O41), at any node."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp10.performatives import Begin, Close, Open
from clusterbroker.broker.wire.numbers import UInt32

from ..marks import rule
from ..wire import eventually
from .conftest import Connect10
from .wire import Ended, Peer, frame

CAPABILITY = "sole-connection-for-container"
POLICY = "sole-connection-enforcement-policy"
REFUSE, CLOSE = 0, 1


def asking(policy: int | None = None) -> dict[str, Any]:
    told = None if policy is None else {POLICY: UInt32(policy)}
    return {"desired_capabilities": (CAPABILITY,), "properties": told}


def is_refused(peer: Peer, policy: int | None) -> None:
    """The open of a connection that has signed in."""
    opened = peer.open(**asking(policy))
    assert opened.properties is not None
    assert opened.properties["amqp:connection-establishment-failed"] is True
    assert error_of(peer) == ("amqp:invalid-field", {"invalid-field": "container-id"})


def error_of(peer: Peer) -> tuple[str, dict[str, Any]]:
    """Condition and info of the node's close, which the client answers."""
    error = peer.find(lambda known: isinstance(known.body, Close)).body.error
    assert error is not None
    peer.say(Close())
    peer.wait_end()
    return str(error.condition), error.info


@rule("O41")
@pytest.mark.parametrize("policy", [REFUSE, None])
def test_the_newer_connection_is_refused(connect10: Connect10, policy: int | None) -> None:
    first = connect10(**asking(policy))
    assert CAPABILITY in first.opened.offered_capabilities
    assert first.opened.properties is not None
    assert first.opened.properties["sole-connection-detection-policy"] == 1, "weak"
    assert first.opened.properties[POLICY] == REFUSE
    for other in (REFUSE, CLOSE):
        is_refused(connect10(container=first.container, stop_before="open"), other)
    first.session().settle_down()
    first.close()
    connect10(container=first.container, **asking(policy)).session().settle_down()


@rule("O41")
def test_the_older_connection_is_closed(connect10: Connect10) -> None:
    first = connect10(**asking(CLOSE))
    second = connect10(container=first.container, **asking(CLOSE))
    assert second.opened.properties is not None
    assert "amqp:connection-establishment-failed" not in second.opened.properties
    locked = ("amqp:resource-locked", {"sole-connection-enforcement": True})
    assert error_of(first) == locked
    third = connect10(container=first.container, **asking(REFUSE))
    assert error_of(second) == locked
    is_refused(connect10(container=first.container, stop_before="open"), CLOSE)
    third.session().settle_down()


@rule("O41")
def test_a_lost_connection_frees_its_container(connect10: Connect10) -> None:
    first = connect10(**asking(REFUSE))
    first.abandon()

    def opens() -> bool:
        peer = connect10(container=first.container, stop_before="open")
        peer.open(**asking(REFUSE))
        try:
            peer.session().settle_down()
        except Ended:
            return False
        return True

    eventually(opens)


@rule("O41")
def test_others_are_left_alone(connect10: Connect10, connect10_as: Connect10) -> None:
    """Those that do not ask (weak detection), other containers, another user's."""
    first = connect10(**asking(REFUSE))
    peers = [
        first,
        connect10(container=first.container),
        connect10(**asking(REFUSE)),
        connect10_as("conf-reader", container=first.container, **asking(CLOSE)),
    ]
    for peer in peers:
        peer.session().settle_down()


@rule("O41")
def test_frames_behind_the_open_wait(connect10: Connect10) -> None:
    """An attach that comes in one packet with its open."""
    peer = connect10(stop_before="open")
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    opens = Open(container_id=peer.container, **asking(CLOSE))
    peer.raw(frame(0, opens, b"") + frame(0, begin, b"") + frame(0, Close(), b""))
    kinds = [type(peer.find(lambda _: True).body) for _ in range(3)]
    assert kinds == [Open, Begin, Close]
    peer.wait_end()


@rule("O41")
@pytest.mark.parametrize("policy", [2, "close-existing", True])
def test_a_policy_that_there_is_not(connect10: Connect10, policy: object) -> None:
    peer = connect10(stop_before="open")
    peer.say(Open(container_id=peer.container, desired_capabilities=(CAPABILITY,), properties={POLICY: policy}))
    with peer.closes("amqp:invalid-field", POLICY):
        peer.wait(Open)
