"""A node's shell on the test's own loop, and clients for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from server_support import Lines, Peer, options

from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.shell import NodeShell

Start = Callable[..., Awaitable[NodeShell]]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
async def start(lines: Lines) -> AsyncIterator[Start]:
    """Starts a node with these options; it is stopped in the end."""
    shells: list[NodeShell] = []

    async def started(**changes: Any) -> NodeShell:
        shell = NodeShell(options(**changes), NodeLog(lines, "debug"))
        await shell.start()
        shells.append(shell)
        return shell

    yield started
    for shell in shells:
        await shell.stop()


Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    peers: list[Peer] = []

    async def connected(shell: NodeShell, **how: Any) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", shell.listeners[0].addresses[0].port, **how))
        peers.append(peer)
        return peer

    yield connected
    for peer in peers:
        peer.writer.close()
