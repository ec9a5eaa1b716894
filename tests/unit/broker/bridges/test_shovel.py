"""RabbitMQ's shovel parameters as bridges, and URIs."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.bridges.places import place
from clusterbroker.broker.bridges.shovel import BadBridge, bridge

GOOD: dict[str, Any] = {
    "src-protocol": "amqp091", "src-uri": ["amqp://a", "amqps://u:p%40@b:1/v%2F"], "src-queue": "in",
    "dest-uri": "amqp://", "dest-queue": "out", "ack-mode": "on-publish", "src-prefetch-count": 100_000,
    "dest-add-forward-headers": True,
}  # fmt: skip


def test_what_rabbitmq_writes_is_read() -> None:
    found = bridge("shop", "s", GOOD)
    assert [str(each) for each in found.sources] == ["amqp://a:5672/", "amqps://b:1/v/"]
    assert (found.sources[1].user, found.sources[1].password) == ("u", "p@")
    assert found.destinations[0].vhost == "shop", "an URI without a host and vhost is in the parameter's vhost"
    assert (found.queue, found.bound_to, found.exchange, found.key) == ("in", None, "", "out")
    assert found.prefetch == 65535
    out = bridge("/", "s", {**GOOD, "dest-queue": "", "dest-exchange": "x", "delete-after": "queue-length"})
    assert (out.exchange, out.key, out.until_empty) == ("x", None, True)
    bound = bridge("/", "s", {**GOOD, "src-queue": "", "src-exchange": "e", "src-exchange-key": "k"})
    assert (bound.queue, bound.bound_to) == ("clusterbroker.source.s", ("e", "k"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"src-protocol": "amqp10"}, "speaks amqp091"),
        ({"src-queue": ""}, "src-queue or src-exchange"),
        ({"dest-exchange": "x"}, "not both"),
        ({"dest-queue": ""}, "dest-queue or dest-exchange"),
        ({"src-uri": []}, "src-uri is an AMQP URI"),
        ({"src-uri": "http://secret@x"}, "a URI is amqp://"),
        ({"src-uri": "amqp://secret@x:99999"}, "cannot be read"),
        ({"src-delete-after": -1}, "src-delete-after"),
        ({"src-prefetch-count": True}, "src-prefetch-count"),
        ({"reconnect-delay": "soon"}, "reconnect-delay"),
        ({"src-queue": "x" * 256}, "255 bytes"),
        ({"dest-queue-args": 5}, "is an object"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadBridge, match=told) as refused:
        bridge("/", "s", {**GOOD, **change})
    assert "secret" not in str(refused.value)
    with pytest.raises(BadBridge, match="no object"):
        bridge("/", "s", 5)


def test_a_place_hides_its_secrets() -> None:
    where = place("amqps://user:secret@[::1]:7/v?verify=verify_none&cacertfile=/ca&heartbeat=5")
    assert str(where) == "amqps://[::1]:7/v"
    assert (where.verify, where.ca_file) == (False, "/ca")
