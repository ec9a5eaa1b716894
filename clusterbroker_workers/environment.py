"""Environment of a worker: what its pool's driver gives it."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace

from . import names
from .connecting import addresses, trusting


class Misconfigured(Exception):
    """One line: which variable, and what to do."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Variables WORKER_*. Started by hand (driver noop), WORKER_POOL and WORKER_KEY are enough."""

    spare: bool
    """`key` and `requests_queue` come later (`assigned`)."""

    id: str
    key: str
    pool: str
    requests_queue: str
    activity_exchange: str
    urls: tuple[str, ...]
    prefetch: int
    grace_s: float
    authorities: ssl.SSLContext | None = None
    """By which it trusts brokers' certificates; None: those of the system."""
    replica: str = ""
    """Of several workers with one id; empty: there are none."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Raises Misconfigured."""
        pool = variables.get("WORKER_POOL")
        if pool is None:
            raise Misconfigured(
                "WORKER_POOL is not set: start the worker by its pool, or set WORKER_POOL and WORKER_KEY"
            )
        key = variables.get("WORKER_KEY", "")
        url = variables.get("WORKER_AMQP_URIS") or variables.get("WORKER_AMQP_URI") or "amqp://guest:guest@localhost/"
        try:
            authorities = trusting(pem=variables.get("WORKER_AMQP_CA_PEM", ""))
        except ValueError as error:
            raise Misconfigured(f"WORKER_AMQP_CA_PEM: {error}") from error
        return cls(
            spare=variables.get("WORKER_SPARE") == "1",
            id=variables.get("WORKER_ID") or f"{socket.gethostname()}-{os.getpid()}",
            key=key,
            pool=pool,
            requests_queue=variables.get("WORKER_REQUESTS_QUEUE") or names.requests_queue(pool, key),
            activity_exchange=variables.get("WORKER_ACTIVITY_EXCHANGE") or names.activity_exchange(pool),
            urls=addresses(url),
            prefetch=int(_number(variables, "WORKER_PREFETCH", 1, least=1)),
            grace_s=_number(variables, "WORKER_GRACE_S", 30, least=0),
            authorities=authorities,
            replica=variables.get("WORKER_REPLICA", ""),
        )

    def assigned(self, key: str, requests_queue: str) -> Environment:
        """Of a spare that has its key."""
        return replace(self, spare=False, key=key, requests_queue=requests_queue)


def _number(variables: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = variables.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e9:
        raise Misconfigured(f"{name} is {text!r}: give a number of at least {least:g}")
    return value
