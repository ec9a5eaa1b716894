"""Frames about pools, between releases."""

from __future__ import annotations

import msgspec

from clusterbroker.broker.pools.messages import TemplateTold


def test_a_template_is_read_by_releases_of_either_side() -> None:
    """How its workers are replaced came after the first release, which replaces them one by one."""

    class Before(msgspec.Struct, array_like=True):
        version: str
        driver: str
        max_workers: int = 0
        memory_bytes: int = 0

    new = msgspec.msgpack.encode(TemplateTold("v1", "noop", 1, 2, "socket", False, 3))
    assert msgspec.msgpack.decode(new, type=Before) == Before("v1", "noop", 1, 2)
    old = msgspec.msgpack.encode(Before("v1", "noop", 1, 2))
    assert msgspec.msgpack.decode(old, type=TemplateTold) == TemplateTold("v1", "noop", 1, 2, "", True, 1)
