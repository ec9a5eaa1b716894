"""What a node and its foreman tell each other, over the socket pair that ties the two processes.

    frame      u32 length (big endian) | msgpack map with the key `type`             at most FRAME_BYTES_MAX

    node -> foreman     Wanted: launches of this place, all (`full`) or what changed; Lease: whether the node holds one
    foreman -> node     Hello, once: templates of this place; then PlaceRow, WorkerRow, GoneRow as they change

Nothing is answered: either side tells what is, and tells it again. GoneRow comes until the map has dropped the launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from clusterbroker.broker.foreman.spec import WorkerSpec

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 64 << 20
"""5,000 launches of a pool have some 2 MiB."""
HEAD_BYTES: Final = 4


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Root of these."""


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A launch, with its credential: it goes through no other door."""

    spec: WorkerSpec
    state: str
    """`reconcile.Launch`: wanted, retiring, revoked."""


class Wanted(Frame, frozen=True, kw_only=True, tag="wanted"):
    """The map's launches of this place."""

    index: int
    """Of the wiring log, up to which the map counts."""
    full: bool
    """`put` is all there is; else what is new or other than before."""
    put: tuple[LaunchRow, ...] = ()
    drop: tuple[str, ...] = ()
    """Launches that the map does not have any more."""
    elsewhere: dict[str, bool] | None = None
    """Launches of other places, and whether they are revoked, as in `put`: for a foreman with a shared place, which
    has said so. None: not told."""


class Lease(Frame, frozen=True, kw_only=True, tag="lease"):
    """Whether the node holds a lease, so that its map is of now."""

    held: bool
    caught_up: bool
    """The map has all that was in the wiring log when the foreman began."""


class Busy(Frame, frozen=True, kw_only=True, tag="busy"):
    """Replicas of launches that stand for several workers, as far as they are connected to this node."""

    replicas: dict[str, bool]
    """Name -> whether it holds a request."""


class TemplateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A template of this place: nothing of what it executes."""

    version: str
    driver: str
    max_workers: int = 0
    memory_bytes: int = 0
    endpoint: str = ""
    """Where its driver is asked: a key of `PlaceRow.suspended`. Empty: of a foreman that does not tell it."""
    rolling: bool = True
    surge: int = 1


class Hello(Frame, frozen=True, kw_only=True, tag="hello"):
    """A foreman begins."""

    version: int
    templates: dict[str, TemplateRow]
    shared: bool = False
    """One of its drivers sees workers of other places as well."""


class PlaceRow(Frame, frozen=True, kw_only=True, tag="place"):
    """The place as its foreman sees it."""

    running: int
    starting: int
    memory_bytes: int = 0
    """Of the machine; 0: not known."""
    used_bytes: int = 0
    """By workers now, as far as drivers tell."""
    suspended: dict[str, str] = {}
    """Endpoint of a driver -> why nothing can be started or listed there."""


class WorkerRow(Frame, frozen=True, kw_only=True, tag="worker"):
    """A worker, as its state changes."""

    worker_id: str
    state: str
    memory_bytes: int = 0


class GoneRow(Frame, frozen=True, kw_only=True, tag="gone"):
    """A launch is over: the command Gone is due."""

    worker_id: str
    exit: int | None
    peak_bytes: int = 0
    why: str = ""


ToForeman = Wanted | Lease | Busy
ToNode = Hello | PlaceRow | WorkerRow | GoneRow

_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """Raises ValueError when it would be too long."""
    body = _ENCODER.encode(frame)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame has {FRAME_BYTES_MAX} bytes at most, and this would have {len(body)}")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class Frames:
    """Bytes in, frames out."""

    def __init__(self, kinds: Any) -> None:
        """`kinds`: ToForeman or ToNode, what the other side may say."""
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kinds)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The frames that are complete. Raises ValueError for what is none."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= HEAD_BYTES:
                size = int.from_bytes(self._rest[at : at + HEAD_BYTES], "big")
                if size > FRAME_BYTES_MAX:
                    raise ValueError(f"a frame of {size} bytes: there are at most {FRAME_BYTES_MAX}")
                if len(self._rest) - at - HEAD_BYTES < size:
                    return
                at += HEAD_BYTES + size
                try:
                    frame = self._decoder.decode(bytes(self._rest[at - size : at]))
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise ValueError(f"no frame of a foreman: {error}") from error
                yield frame
        finally:
            del self._rest[:at]
