"""Bytes of a client that is connected and idle: there may be very many of them."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from tests.unit.broker.fronts.amqp10.harness import Peer, world_with

MANY = 100
BYTES_MAX = 4_700
"""What the core holds of a connection with a session and two links; its socket and its transport come to that."""


def connected(world: Any, number: int) -> Any:
    """The core of a client that stays; what the test's own client of it holds is let go."""
    peer = Peer(world).enter(container_id=f"idle-{number}")
    peer.sender(f"idle-{number}", "/queues/q")
    peer.receiver(f"idle-{number}", "/queues/q")
    del world.clients[peer.core]
    peer.core.tick(world.now_ms)
    return peer.core


def test_an_idle_connection_with_a_session_and_two_links_is_small() -> None:
    world = world_with("q")
    first = [connected(world, number) for number in range(10)]  # whatever the first connections ever need
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        cores = [connected(world, number) for number in range(len(first), len(first) + MANY)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cores) == MANY
    assert (after - before) / MANY < BYTES_MAX


def test_connections_of_an_account_share_what_its_permissions_said() -> None:
    world = world_with("q")
    one, other = (connected(world, number).access for number in range(2))
    assert one.verdicts is other.verdicts
