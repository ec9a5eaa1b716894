"""Delivery-tags in a row and in a set: the model of `broker.wire.amqp10.tags`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

TAG_MAX: Final = 32
"""Bytes of a delivery-tag (2.8.7)."""


def _checked(tag: bytes) -> bytes:
    if len(tag) > TAG_MAX:
        raise ValueError(f"a delivery-tag of {len(tag)} bytes: at most {TAG_MAX}")
    return tag


class Tags:
    """Delivery-tags in their order."""

    def __init__(self, tags: Iterable[bytes] = ()) -> None:
        self._tags = [_checked(tag) for tag in tags]

    def append(self, tag: bytes) -> None:
        """Raises ValueError for a tag of more than 32 bytes."""
        self._tags.append(_checked(tag))

    def __len__(self) -> int:
        return len(self._tags)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._tags)

    def __eq__(self, other: object) -> bool:
        return list(other) == self._tags if isinstance(other, Tags | list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class TagSet:
    """Delivery-tags in use."""

    def __init__(self) -> None:
        self._tags: set[bytes] = set()

    @property
    def bytes_held(self) -> int:
        """Of memory, for its entries."""
        return 0

    def __len__(self) -> int:
        return len(self._tags)

    def __contains__(self, tag: bytes) -> bool:
        return tag in self._tags

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._tags)

    def add(self, tag: bytes) -> bool:
        """False: it is there already. Raises ValueError for one of more than 32 bytes."""
        known = len(self._tags)
        self._tags.add(_checked(tag))
        return len(self._tags) > known

    def hold(self, tags: Iterable[bytes]) -> bool:
        """Adds all of them; False: one is there already, or is there twice now."""
        new = [self.add(tag) for tag in tags]
        return all(new)

    def release(self, tags: Iterable[bytes]) -> None:
        """Takes out those of them that are there."""
        self._tags.difference_update(tags)
