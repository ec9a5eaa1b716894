"""Lists of members as settings write them: NAME@HOST:PORT, separated by commas."""

from __future__ import annotations

from clusterbroker.broker.server.listener import address
from clusterbroker.cluster.link.hello import valid_name

WITNESS = "/witness"


def members(peers: str) -> dict[str, tuple[str, bool]]:
    """(cluster address, is a witness) by name."""
    found: dict[str, tuple[str, bool]] = {}
    plain = ",".join(entry.strip().removesuffix(WITNESS) for entry in peers.split(","))
    witnesses = {entry.strip().partition("@")[0] for entry in peers.split(",") if entry.strip().endswith(WITNESS)}
    for name, where in named(plain, "@", "peers").items():
        found[name] = where, name in witnesses
    if found and len(witnesses) == len(found):
        raise ValueError("peers: all are witnesses: somebody must hold the messages")
    return found


def named(text: str, between: str, setting: str) -> dict[str, str]:
    """The table that `NAME@HOST:PORT,NAME@HOST:PORT` says."""
    found: dict[str, str] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, sign, where = entry.partition(between)
        if not sign or not name:
            raise ValueError(f"{setting}: '{entry}' is not NAME{between}HOST:PORT")
        if not valid_name(name):
            raise ValueError(f"{setting}: '{name}' cannot be a member's name: use letters, digits and _ . -")
        if found.get(name, where) != where:
            raise ValueError(f"{setting}: '{name}' is named twice, at {found[name]} and at {where}")
        if where in found.values() and found.get(name) != where:
            raise ValueError(f"{setting}: two members at {where}")
        try:
            address(where)
        except ValueError as error:
            raise ValueError(f"{setting}: {error}") from None
        found[name] = where
    return found
