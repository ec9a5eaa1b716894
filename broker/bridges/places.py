"""Where a broker is, and as whom one goes there: AMQP URIs with RabbitMQ's query parameters."""

from __future__ import annotations

import os
import re
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
URI_BYTES_MAX: Final = 4096
NAME_BYTES_MAX: Final = 255
"""Of a host, a label of which has LABEL_BYTES_MAX, and of a vhost."""
LABEL_BYTES_MAX: Final = 63
MASK: Final = "***"
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_URI: Final = re.compile(r"://|^\s*amqps?:", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(://[^:]*):.*@", re.DOTALL)
"""To the last @: a password that is not encoded may have any sign in it."""
_KEY_PASSWORD: Final = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


class Place(NamedTuple):
    """A vhost of a broker. `str` names no user and no password, `repr` no password."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - every broker's first user
    vhost: str = "/"
    tls: bool = False
    ca_file: str = ""
    """Trusted certificates (PEM); empty: the system's."""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}/{'' if self.vhost == '/' else self.vhost}"

    def __repr__(self) -> str:
        return f"<Place {self}>"

    def context(self) -> ssl.SSLContext | None:
        """Raises OSError, ssl.SSLError for files that cannot be read."""
        if not self.tls:
            return None
        for file in (self.ca_file, self.cert_file, self.key_file):
            if file and not os.path.isfile(file):  # a pipe or a terminal would hold the loop for ever
                raise OSError(f"{file} is no regular file")
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


def place(uri: str) -> Place:
    """`amqp[s]://USER:PASSWORD@HOST:PORT/VHOST?cacertfile=...&certfile=...&keyfile=...&verify=verify_none`.

    Other parameters are read over, as RabbitMQ does with those that it does not know. Raises ValueError, which never
    repeats the URI: a password may be in it.
    """
    if len(uri) > URI_BYTES_MAX:
        raise ValueError(f"a URI has {URI_BYTES_MAX} characters at most")
    if uri[:1].isspace():
        raise ValueError("a URI begins with white space")
    if not uri.isprintable() or not unquote(uri).isprintable():
        raise ValueError("a URI has a control character, or %00 to %1F")
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("a URI cannot be read: encode what is not a letter or a digit in user and password") from None
    if parts.scheme not in _PORTS:
        raise ValueError("a URI is amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://...")
    vhost = unquote(parts.path[1:]) or "/"
    labels = (host or "").split(".")
    if len((host or "").encode()) > NAME_BYTES_MAX or any(len(label.encode()) > LABEL_BYTES_MAX for label in labels):
        raise ValueError(
            f"the host of a URI has {NAME_BYTES_MAX} bytes at most, and {LABEL_BYTES_MAX} between two dots"
        )
    if "" in labels[:-1]:
        raise ValueError("the host of a URI has two dots in a row")
    if len(vhost.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"the vhost of a URI has {NAME_BYTES_MAX} bytes at most")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tls = parts.scheme == "amqps"
    return Place(
        host or "",
        port or _PORTS[parts.scheme],
        unquote(parts.username) if parts.username is not None else "guest",
        unquote(parts.password) if parts.password is not None else "guest",
        vhost,
        tls,
        query.get("cacertfile", ""),
        query.get("certfile", ""),
        query.get("keyfile", ""),
        query.get("verify", "verify_peer") != "verify_none",
        query.get("server_name_indication", ""),
    )


def masked(value: Any) -> Any:
    """A value of JSON in which each URI has MASK for its password. Of what looks like a URI and is none that `place`
    takes, only the scheme is left: a password may stand anywhere in it."""
    if isinstance(value, str):
        return _masked(value) if _URI.search(value) else value
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return value


def _masked(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme is None or not text.startswith("//", scheme.end()) or not _is_place(text):
        return MASK if scheme is None else f"{scheme[1]}://{MASK}"
    return _KEY_PASSWORD.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text, count=1))


def _is_place(uri: str) -> bool:
    try:
        place(uri)
    except ValueError:
        return False
    return True
