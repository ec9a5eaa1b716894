"""Credentials of the workers that a pool has ordered (pure).

    user        worker:ID                      ID is the launch's
    password    HMAC-SHA256(key, ID), base64   key: all nodes of the cluster derive it from what they share

Nobody stores a password, nor anything to verify it by: a worker's node computes it for its foreman, and each node to
compare. It is good while the map has the launch, and the launch is not revoked. So `Revoke` is the end of it at every
node that has applied the command. A key without bytes makes none: a node that has no key yet signs no worker in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote

USER_PREFIX: Final = "worker:"
KEY_PURPOSE: Final = "workers"
"""Of the key that is derived from the cluster's secret."""
_USER: Final = re.compile(r"worker:(w[0-9]{1,20}-[0-9]{1,6})", re.ASCII)


class WorkerKey:
    """What passwords are made with. Its bytes are in no repr."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes = b"") -> None:
        """Empty: no worker has a password."""
        self._key = key

    def __bool__(self) -> bool:
        return bool(self._key)

    def password(self, launch_id: str) -> str:
        """43 letters, digits, `-` and `_`. Raises ValueError without a key."""
        if not self._key:
            raise ValueError("this node has no key for workers yet")
        made = hmac.new(self._key, launch_id.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode("ascii").rstrip("=")

    def matches(self, launch_id: str, password: bytes) -> bool:
        """Whether it is the launch's, in constant time."""
        return bool(self._key) and hmac.compare_digest(self.password(launch_id).encode(), password)

    def uri(self, launch_id: str, scheme: str, address: str, vhost: str) -> str:
        """An address with the credential inside: a secret. `scheme`: amqp or amqps; `address`: HOST:PORT."""
        user = quote(user_of(launch_id), safe="")
        return f"{scheme}://{user}:{self.password(launch_id)}@{address}/{quote(vhost, safe='')}"


def user_of(launch_id: str) -> str:
    """As whom a worker signs in."""
    return USER_PREFIX + launch_id


def launch_of(user: str) -> str | None:
    """The launch that a user name is of; None: it is no worker's."""
    found = _USER.fullmatch(user)
    return None if found is None else found[1]
