"""Where workers connect (pure).

    1   plain, at the loopback: it leaves no machine, and a certificate seldom names it
    2   TLS: where its node is advertised, where that listens, other members
    3   plain, the same: where its node listens, where it is advertised, other members

Each list is of one writer: what a node listens to, what a member advertises. One that has TLS is used without its plain
addresses, but those of the loopback: else whoever closes the TLS port to a worker would read its credential.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

Where = tuple[str, str]
"""(scheme, host:port)."""
ANY: Final = {
    "0.0.0.0": "127.0.0.1",  # noqa: S104 - nobody listens there by it
    "[::]": "[::1]",
}
"""Where a worker of this machine reaches a listener of all addresses."""
TLS: Final = "amqps"
SCHEMES: Final = ("amqp", TLS)


def worker_addresses(
    listeners: Iterable[Where], advertised: Iterable[str], others: Iterable[Iterable[str]]
) -> list[Where]:
    """`listeners`: of its node. `advertised`: URLs of its node; `others`: those of each other member."""
    own = [(scheme, f"{ANY.get(_host(where), _host(where))}:{where.rpartition(':')[2]}") for scheme, where in listeners]
    lists = [_usable(own), _usable(_read(advertised)), *(_usable(_read(urls)) for urls in others)]
    plain = [where for one in lists for where in one if where[0] != TLS]
    tls = [where for one in (lists[1], lists[0], *lists[2:]) for where in one if where[0] == TLS]
    loopback = [where for where in plain if _is_loopback(where)]
    return list(dict.fromkeys([*loopback, *tls, *plain]))


def _read(urls: Iterable[str]) -> list[Where]:
    """Those of a worker's protocol that can be reached."""
    found = [(scheme, where) for scheme, _, where in (url.partition("://") for url in urls)]
    return [(scheme, where) for scheme, where in found if scheme in SCHEMES and _host(where) not in ANY]


def _usable(found: Sequence[Where]) -> list[Where]:
    has_tls = any(scheme == TLS for scheme, _ in found)
    return [where for where in found if where[0] == TLS or not has_tls or _is_loopback(where)]


def _host(where: str) -> str:
    return where.rpartition(":")[0]


def _is_loopback(where: Where) -> bool:
    host = _host(where[1]).strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
