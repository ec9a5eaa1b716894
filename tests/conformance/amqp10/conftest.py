"""Fixtures of the AMQP 1.0 suite, beside those of the whole conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ..target import PASSWORD, Target
from .wire import Peer, Session

Connect10 = Callable[..., Peer]


@pytest.fixture
def connect10(target: Target) -> Iterator[Connect10]:
    """Open connections that the test's end closes."""
    opened: list[Peer] = []

    def open_one(**options: object) -> Peer:
        peer = Peer(target.address, **options)  # type: ignore[arg-type]
        opened.append(peer)
        return peer

    yield open_one
    for peer in opened:
        peer.abandon()


@pytest.fixture
def connect_here(target: Target) -> Iterator[Connect10]:
    """Opens connections to one node."""
    opened: list[Peer] = []
    address = target.address

    def open_one(**options: object) -> Peer:
        peer = Peer(address, **options)  # type: ignore[arg-type]
        opened.append(peer)
        return peer

    yield open_one
    for peer in opened:
        peer.abandon()


@pytest.fixture
def connect10_as(provisioned: Target, connect10: Connect10) -> Connect10:
    """Open a connection as one of the users of target.py."""

    def open_as(user: str, **options: object) -> Peer:
        return connect10(user=user, password=PASSWORD, **options)

    return open_as


@pytest.fixture
def peer(connect10: Connect10) -> Peer:
    return connect10()


@pytest.fixture
def session(peer: Peer) -> Session:
    return peer.session()
