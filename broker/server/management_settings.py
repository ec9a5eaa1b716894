"""Settings of a node for its management process: no secrets, because command lines are visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.certificates import TlsOptions

PROXIES = ("127.0.0.1", "::1")
"""A proxy on this machine is believed what it says of its clients: else they would all come from this machine. Without
a setting any process there may say so, and what it gains by that is counted against itself (`broker.http.auth`)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """As JSON on the command line."""

    tls: TlsOptions | None = None
    proxies: tuple[str, ...] | None = None
    """None: nobody has set any, and PROXIES are believed as far as that takes rights away."""
    oauth2: OAuth2Options | None = None
    audit: AuditOptions = AuditOptions()

    def written(self) -> str:
        """For the command line."""
        return msgspec.json.encode(self, enc_hook=str).decode()


def read(text: str) -> Settings:
    """What was written. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(text, type=Settings, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a {kind.__name__} is not told")
