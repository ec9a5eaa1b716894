"""RabbitMQ's shovel parameters as bridges, and URIs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.bridges.places import masked, place
from clusterbroker.broker.bridges.shovel import NAME_MAX, BadBridge, bridge

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
        ({"src-protocol": "amqp10"}, "speaks amqp091: say src-protocol amqp091 and src-queue in place of src-address"),
        ({"dest-protocol": "amqp10"}, "speaks amqp091: say dest-protocol amqp091 and dest-queue or dest-exchange"),
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
        ({"src-uri": ["amqp://a"] * 33}, "33 URIs: 32 are read at most"),
        ({"src-uri": "amqp://u:secret@" + "h" * 5000}, "4096 characters"),
        ({"src-uri": "amqp://u:secret@" + "h" * 64}, "63 between two dots"),
        ({"src-uri": "amqp://u:secret@" + "h." * 130}, "255 bytes"),
        ({"src-uri": "amqp://u:secret@a..b"}, "two dots"),
        ({"src-uri": "amqp://u:secret@h/%00"}, "control character"),
        ({"src-uri": "amqp://u:secret\0@h"}, "control character"),
        ({"src-uri": "amqp://u:secret@h/" + "v" * 256}, "vhost"),
        ({"src-uri": "amqp://u:***@h"}, "a password that was not shown"),
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
    assert "secret" not in repr(where) + repr([where]) + repr(
        bridge("/", "s", {**GOOD, "src-uri": "amqp://u:secret@h"})
    )


def test_a_name_that_its_queues_cannot_have_is_refused() -> None:
    assert bridge("/", "n" * NAME_MAX, GOOD)
    with pytest.raises(BadBridge, match=f"{NAME_MAX} bytes at most"):
        bridge("/", "n" * (NAME_MAX + 1), GOOD)


def test_passwords_of_uris_are_masked_wherever_they_stand() -> None:
    value = {"src-uri": ["amqp://u:p%40@h/v", "amqps://h"], "uri": "amqp://:x@h?a=b@c:d", "n": 5, "t": "a:b@c"}
    assert masked(value) == {
        "src-uri": ["amqp://u:***@h/v", "amqps://h"], "uri": "amqp://:***@c:d", "n": 5, "t": "a:b@c",
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from((*GOOD, "src-exchange", "src-delete-after", "dest-exchange")), JSON), st.text())
def test_any_value_is_a_bridge_or_refused_in_a_line(change: dict[str, Any], name: str) -> None:
    why = ""
    try:
        bridge("/", name, {**GOOD, **change})
    except BadBridge as bad:
        why = str(bad)
    assert why.isprintable()
