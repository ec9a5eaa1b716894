"""What the shell offers when TAB is pressed: names of this cluster's things (waits, a moment).

Asked of the node that the words before say, or else the environment. Whatever goes wrong, nothing is offered and
nothing is said: the user is in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

PATIENCE_S: Final = 1.5
OFFERED_MAX: Final = 200


def _reaching(context: typer.Context) -> dict[str, Any]:
    given = context.params
    found: dict[str, Any] = {
        "data_dir": given.get("data_dir"),
        "url": given.get("url"),
        "user": given.get("login"),
        "password_file": given.get("password_file"),
        "token_file": given.get("token_file"),
        "ca_file": given.get("ca_file"),
    }
    for name in ("data_dir", "password_file", "token_file", "ca_file"):
        if isinstance(found[name], str):
            found[name] = Path(found[name])
    if "-" in (str(found["password_file"]), str(found["token_file"])):
        raise ValueError("what is typed is not for us")
    return found


def _names(context: typer.Context, incomplete: str, path: str, vhost: bool = False, field: str = "name") -> list[str]:
    from contextlib import closing

    from clusterbroker.broker.cli.target import Target

    try:
        with closing(Target(**_reaching(context), timeout_s=PATIENCE_S, may_ask=False)) as reach:
            query = _beginning(incomplete) if field == "name" else {}
            if vhost:
                found = reach.api.get(path + "/{}", str(context.params.get("vhost") or "/"), query=query)
            else:
                found = reach.api.get(path, query=query)
    except (Exception, typer.Exit):
        return []
    found = found["items"] if isinstance(found, dict) else found
    names = sorted({str(row.get(field)) for row in found if str(row.get(field, "")).startswith(incomplete)})
    return [name for name in names if name][:OFFERED_MAX]


def _beginning(incomplete: str) -> dict[str, str]:
    """The first of those whose names begin so: thousands of others stay at the node."""
    asked = {"columns": "name", "page": "1", "page_size": str(OFFERED_MAX), "sort": "name"}
    if incomplete and "\\E" not in incomplete:
        asked |= {"name": rf"^\Q{incomplete}\E", "use_regex": "true"}
    return asked


def _offered(path: str, *, vhost: bool = False, field: str = "name") -> Callable[[typer.Context, str], list[str]]:
    def names(ctx: typer.Context, incomplete: str) -> list[str]:
        return _names(ctx, incomplete, path, vhost, field)

    return names


queues = _offered("/api/queues", vhost=True)
exchanges = _offered("/api/exchanges", vhost=True)
policies = _offered("/api/policies", vhost=True)
operator_policies = _offered("/api/operator-policies", vhost=True)
vhosts = _offered("/api/vhosts")
users = _offered("/api/users")
nodes = _offered("/api/nodes")
connections = _offered("/api/connections")
channels = _offered("/api/channels")
global_parameters = _offered("/api/global-parameters")
components = _offered("/api/parameters", field="component")
