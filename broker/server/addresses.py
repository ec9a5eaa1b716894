"""Where the other members were last: what a node dials before it has heard of the cluster again (waits).

    DIR/members    {"format": 1, "members": {"a": "10.0.0.1:5673", ...}}

Written by `clusterbroker join`, and by a member whenever the map says something new. It is a hint and no truth: who is
a member is in the wiring log, but that may have to be fetched from one of them first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from broker.server.identity import WrongIdentity, write_durably

FORMAT: Final = 1
NAME: Final = "members"


def remembered(directory: Path) -> dict[str, str]:
    """Cluster addresses by name, this node's among them; empty when nothing was ever written. Raises WrongIdentity."""
    path = directory / NAME
    try:
        raw = json.loads(path.read_text("utf-8"))
        return {str(name): str(where) for name, where in raw["members"].items()}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WrongIdentity(f"{path}: damaged ({error}): remove it and name the members by --peers") from error


def remember(directory: Path, members: dict[str, str]) -> None:
    """Raises OSError."""
    write_durably(directory / NAME, json.dumps({"format": FORMAT, "members": dict(sorted(members.items()))}))
