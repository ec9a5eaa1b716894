"""Heartbeats and channel.flow (5.2)."""

from __future__ import annotations

import time

import pytest

from .conftest import Connect
from .encoding import FRAME_HEARTBEAT
from .marks import rule
from .target import Target
from .wire import Channel, Connection, Silence


@rule("5.2/heartbeat-sent")
def test_heartbeats_come_every_half_timeout(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    connection.auto_heartbeat_s = 0.3
    connection.read_for(1.4)
    assert connection.heartbeats >= 2


@rule("5.2/heartbeat-missed")
def test_two_misses_end_the_connection(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    began = time.monotonic()
    connection.drops(timeout_s=6)
    assert time.monotonic() - began >= 1, "a single missed interval is not yet two"


@rule("5.2/heartbeat-any-traffic")
def test_any_traffic_keeps_the_connection(connect: Connect) -> None:
    connection = connect(heartbeat=1)
    channel = connection.channel()
    until = time.monotonic() + 3.2
    while time.monotonic() < until:
        channel.basic_publish("amq.fanout", "", b"traffic, not a heartbeat")
        connection.read_for(0.3)
    connection.is_usable()


@rule("5.2/heartbeat-zero")
def test_zero_switches_heartbeats_off(connect: Connect) -> None:
    connection = connect(heartbeat=0)
    connection.read_for(1.5)
    assert connection.heartbeats == 0
    connection.is_usable()


@rule("5.2/heartbeat-blocked")
def test_a_blocked_connection_is_not_monitored(connect: Connect, provisioned: Target) -> None:
    connection = connect(heartbeat=1)
    connection.auto_heartbeat_s = 0.3
    channel = connection.channel()
    provisioned.set_alarm("memory", True)
    try:
        connection.publish_until_blocked(channel, "amq.fanout", "", b"x")
        connection.auto_heartbeat_s = 0.0
        connection.read_for(3.5)
    finally:
        provisioned.set_alarm("memory", False)
    connection.wait(lambda: len(connection.blocked) == 2, "connection.unblocked")
    connection.is_usable()


def test_heartbeats_before_open_are_no_fault(connect: Connect) -> None:
    connection = connect(stop_before="open", heartbeat=10)
    connection.send_frame(FRAME_HEARTBEAT, 0, b"")
    connection.open()
    connection.is_usable()


@rule("5.2/channel-flow")
def test_flow_on_is_a_no_op(channel: Channel) -> None:
    assert channel.channel_flow(active=True).active is True


@rule("5.2/channel-flow", "5.2/flow-state-invisible")
def test_a_burst_of_publishes_brings_neither_flow_nor_blocked(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    for _ in range(3000):
        channel.basic_publish("", queue, b"x" * 100)
    channel.basic_qos_probe()
    assert connection.blocked == []
    assert {method.name for method in channel.log} == {"channel.open-ok", "channel.flow-ok"}


def test_silence_is_reported_by_the_client_itself(channel: Channel) -> None:
    with pytest.raises(Silence):
        channel.deliveries(1, timeout_s=0.05)
