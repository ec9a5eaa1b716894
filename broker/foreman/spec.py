"""The spec of a worker: values only.

A spec says *which* worker: ids, names and numbers, as the map of pools has them. *What* is executed is in the template
of its pool (`broker.foreman.templates`), which only a config file can give. The key of a worker is a text that any
client may choose; it reaches the worker as one environment variable, and names only through a hash.
"""

from __future__ import annotations

import hashlib
import re
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

KEY_BYTES_MAX: Final = 255
WORKER_ID: Final = re.compile(r"w[0-9]{1,20}-[0-9]{1,6}")
"""`w`, the index of the Launch in the wiring log, `-`, the position in it: unique for ever, and fit for every name."""
UNKNOWN: Final = 1 << 64
"""Later than all of the wiring log."""
RESERVED: Final = "WORKER_"
"""Variables with this prefix are the foreman's: a template that sets one is refused."""


class BadSpec(ValueError):
    """A worker that cannot be started anywhere: one line."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a launch that stands for all workers of its key, whose number is not the broker's."""

    by: Literal["hpa", "keda"]
    """An autoscaler of the API server, or KEDA."""
    least: int = 1
    most: int = 1
    backlog: int = 1
    """Requests, waiting and held, that are one worker's share."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the map."""

    worker_id: str
    pool: str
    template: str
    """Name of the section `[pools.NAME]`."""
    key: str
    """UTF-8 of at most 255 bytes, without NUL; empty is a key."""
    generation: int
    """Wiring index of the group's last change of state: rises over any failover."""
    version: str
    """Hash of the template that the launch was ordered with."""
    queue: str
    activity_exchange: str
    prefetch: int = 1
    grace_s: float = 30.0
    """From TERM to KILL."""
    memory_bytes: int = 0
    """Promised to it, in bytes; 0: as the template says."""
    spare: bool = False
    """Started without a key, which it asks for: it has neither WORKER_KEY nor WORKER_REQUESTS_QUEUE."""
    scale: Scale | None = None
    """None: it is one worker."""
    vhost: str = "/"
    uris: tuple[str, ...] = ()
    """AMQP addresses with the worker's own credential inside: a secret, so the representation leaves them out."""
    ca_pem: str = ""
    """Certificates of the authorities that it trusts; empty: those of its system."""

    def __repr__(self) -> str:
        return f"WorkerSpec({self.worker_id}, pool={self.pool!r}, generation={self.generation}, version={self.version})"

    @property
    def key_hash(self) -> str:
        """16 hexadecimal digits, for labels: a raw key may break their rules, or be a secret of the caller."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def fit(self) -> str:
        """16 hexadecimal digits over what may change while the launch lives: its bounds, and where its workers to come
        connect. Empty: nothing may."""
        if self.scale is None:
            return ""
        told = [self.scale, [uri.rpartition("@")[2] for uri in self.uris]]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]


def ordered_at(worker_id: str) -> int:
    """Index of its order in the wiring log; UNKNOWN of what is no worker id."""
    if WORKER_ID.fullmatch(worker_id) is None:
        return UNKNOWN
    return int(worker_id[1:].partition("-")[0])


def check(spec: WorkerSpec) -> None:
    """Raises BadSpec for what no driver may see."""
    if WORKER_ID.fullmatch(spec.worker_id) is None:
        raise BadSpec(f"'{spec.worker_id[:64]}' is no worker id: w, digits, -, digits")
    try:
        raw = spec.key.encode()
    except UnicodeEncodeError:
        raise BadSpec(f"{spec.worker_id}: the key is not UTF-8") from None
    if len(raw) > KEY_BYTES_MAX or b"\0" in raw:
        raise BadSpec(f"{spec.worker_id}: a key has at most {KEY_BYTES_MAX} bytes and no NUL")
    for name in (spec.pool, spec.queue, spec.activity_exchange, *spec.uris):
        if "\0" in name:
            raise BadSpec(f"{spec.worker_id}: a name with NUL cannot be in an environment")


def told(spec: WorkerSpec) -> dict[str, str]:
    """The variables of a worker that are no secret: five of OSRD's core workers, and ours."""
    found = {
        "WORKER_ID": spec.worker_id,
        "WORKER_KEY": spec.key,
        "WORKER_POOL": spec.pool,
        "WORKER_REQUESTS_QUEUE": spec.queue,
        "WORKER_ACTIVITY_EXCHANGE": spec.activity_exchange,
        "WORKER_GENERATION": str(spec.generation),
        "WORKER_VERSION": spec.version,
        "WORKER_PREFETCH": str(spec.prefetch),
        "WORKER_GRACE_S": f"{spec.grace_s:g}",
    }
    if spec.spare:
        del found["WORKER_KEY"], found["WORKER_REQUESTS_QUEUE"]
        found["WORKER_SPARE"] = "1"
    return found


def secrets(spec: WorkerSpec, *, own_network: bool = False) -> dict[str, str]:
    """The variables that hold the worker's credential, and by which authorities it knows to whom it gives that.
    `own_network`: the worker's loopback addresses are not the node's: they are left out, unless there are no others."""
    if not spec.uris:
        return {}
    uris = [uri for uri in spec.uris if not (own_network and _is_loopback(uri))] or spec.uris
    found = {"WORKER_AMQP_URI": uris[0], "WORKER_AMQP_URIS": ",".join(uris)}
    return found | {"WORKER_AMQP_CA_PEM": spec.ca_pem} if spec.ca_pem else found


def has_tls(spec: WorkerSpec) -> bool:
    """Whether one of its addresses is inside TLS."""
    return any(uri.startswith("amqps:") for uri in spec.uris)


def _is_loopback(uri: str) -> bool:
    host = urlsplit(uri).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
