"""Addresses of the members: of the last run, and this node's own (waits).

    DIR/members    {"format": 1, "members": {"a": "10.0.0.1:5673", ...}}

Written by `clusterbroker join`, and by a member at each change in the map. The file is a hint: the metadata log has the
members, but may have to be fetched from one of them first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clusterbroker.broker.server.directory import WrongIdentity, write_durably
from clusterbroker.broker.server.endings import Unstarted
from clusterbroker.broker.server.listener import Address

FORMAT: Final = 1
NAME: Final = "members"
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - to be recognised
"""Hosts to listen at, never to dial."""


def remembered(directory: Path) -> dict[str, str]:
    """Cluster addresses by name, this node's included; empty: never written. Raises WrongIdentity."""
    path = directory / NAME
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw["format"] != FORMAT:
            raise WrongIdentity(f"{path}: written by a newer clusterbroker: start the node with that one")
        return {str(name): str(where) for name, where in raw["members"].items()}
    except WrongIdentity:
        raise
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WrongIdentity(f"{path}: damaged ({error}): remove it and name the members by --peers") from error


def remember(directory: Path, members: dict[str, str]) -> None:
    """Raises OSError."""
    write_durably(directory / NAME, json.dumps({"format": FORMAT, "members": dict(sorted(members.items()))}))


def own_address(name: str, listen: Address, peers: Sequence[tuple[str, str, bool]], before: Mapping[str, str]) -> str:
    """This node's address for the others: as --peers says, else --cluster unless it is a wildcard. Raises Unstarted."""
    own = next(where for peer, where, _ in peers if peer == name)
    if own == str(listen) and listen.host in WILDCARDS:
        if name not in before:
            raise Unstarted(
                f"--cluster {listen} is no address that others can dial: give one, or --peers, or advertised_cluster"
            )
        return before[name]
    return own


def dialable(urls: Sequence[str], address: str) -> tuple[str, ...]:
    """URLs for clients: in place of a wildcard, the host at which other nodes reach this one."""
    host = address.rpartition(":")[0]
    return tuple(url.replace("//0.0.0.0:", f"//{host}:").replace("//[::]:", f"//{host}:") for url in urls)
