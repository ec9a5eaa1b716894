"""Names of attributes, byte by byte: they stand on disks and in copies of releases before."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues import attributes as a

NAMES: list[tuple[Any, Any, bytes]] = [
    (a.PROXY, ("node", 7), b"nnode/7"),
    (a.PROXY_REFUSED, ("node", 7), b"rnode/7"),
    (a.CLIENT, b"client", b"pclient"),
    (a.CLIENT_REFUSED, (258, b"client"), b"h\0\0\0\0\0\0\1\2client"),
    (a.CLIENT_FLOOR, b"client", b"fclient"),
    (a.DEAD_LETTERS, (b"\0\0\0\0\0\0\0\7", 1), b"d\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\1"),
    (a.LEASE, "reader", b"lreader"),
    (a.LEASE_ACKNOWLEDGED, "reader", b"areader"),
    (a.LEASE_RUN, ("reader", "run"), b"u\0\6readerrun"),
    (a.DUE_TARGET, (7, 1), b"e\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\1"),
    (a.MOVED, 7, b"t\0\0\0\0\0\0\0\7"),
    (a.LINK_DELIVERY, (7, b"tag"), b"s\0\0\0\0\0\0\0\7tag"),
    (a.LINK_HELD, (7, 1), b"k\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\1"),
    (a.LINK_WITHDRAWN, (7, 1), b"w\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\1"),
    (a.LINK_ATTACH, 7, b"v\0\0\0\0\0\0\0\7"),
    (a.RETRY, 7, b"y\0\0\0\0\0\0\0\7"),
    (a.SUSPECT, 7, b"q\0\0\0\0\0\0\0\7"),
    (a.EXCLUDED, (b"0123456789abcdef", 1), b"x0123456789abcdef\0\0\0\0\0\0\0\1"),
    (a.BOOKMARK, "reader", b"oreader"),
]


@pytest.mark.parametrize(("kind", "key", "name"), NAMES)
def test_a_name_is_its_kinds_byte_and_the_key(kind: Any, key: Any, name: bytes) -> None:
    assert kind.name(key) == name
    assert kind.names({b"~": 1, name: 2}) == [name]
    if isinstance(kind, a.Readable):
        assert kind.of({b"~": 1, name: 2}) == [(key, 2)]


def test_a_byte_stands_for_one_kind() -> None:
    assert (a.HAD_CONSUMERS, a.SWEPT) == (b"c", b"g")
    assert {kind.prefix for kind, _, _ in NAMES} | {b"c", b"g"} == set(a.KINDS)
    with pytest.raises(AssertionError, match="one kind"):
        a.Kind(b"t", bytes)
