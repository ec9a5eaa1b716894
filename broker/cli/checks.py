"""`clusterbroker checks`: the health checks of the management API, with an exit code for scripts (waits).

`clusterbroker health` asks the node itself, without a management API; these look at the cluster as well.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from clusterbroker.broker.cli.commands import listing, operation, show
from clusterbroker.broker.cli.exit_codes import FAILED, USAGE, Failed
from clusterbroker.broker.cli.tables import Column, Document, Table, Wish
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Health checks: exit code 0 when all pass, 1 when one fails.")

CHECKS: Final[dict[str, str]] = {
    "alarms": "No member has a memory or disk alarm",
    "local-alarms": "This node has none",
    "virtual-hosts": "All virtual hosts run on this node",
    "node-is-quorum-critical": "No queue would lose its minimum in sync without this node",
    "is-in-service": "This node is not drained",
    "below-node-connection-limit": "This node takes one more connection",
    "ready-to-serve-clients": "Both, and it has a lease",
    "node-is-mirror-sync-critical": "The same, as older clients ask it",
    "node": "This node has no alarm, and a lease",
    "port-listener": "This node listens on port ARGUMENT",
    "certificate-expiration": "No certificate of this node ends within ARGUMENT: 1/months, 10/days",
    "protocol-listener": "This node listens for protocol ARGUMENT (amqp, amqps, http, https, clustering)",
}
WITH_ARGUMENT: Final = ("port-listener", "protocol-listener", "certificate-expiration")
BY_THEMSELVES: Final = ("alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical")
KNOWN = Table((Column("check"), Column("passes_when")), name="check")
FOUND = Table((Column("check"), Column("status"), Column("reason")), name="check")


@listing(app, "list", KNOWN)
def check_list(_reach: Target) -> list[Document]:
    """All checks."""
    return [{"check": name, "passes_when": text} for name, text in CHECKS.items()]


@operation(app, "run")
def check_run(
    reach: Target,
    checks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHECK[=ARGUMENT]]...",
            help=f"Without any: {', '.join(BY_THEMSELVES)}.",
            autocompletion=lambda: list(CHECKS),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, on one line.")] = False,
) -> None:
    """Run checks. A node without a lease fails all of them."""
    found = [_ran(reach, check) for check in checks or BY_THEMSELVES]
    show(FOUND, lambda: found, Wish(as_json=as_json))
    if any(row["status"] != "ok" for row in found):
        raise typer.Exit(FAILED)


def _ran(reach: Target, check: str) -> Document:
    name, equals, argument = check.partition("=")
    if name not in CHECKS:
        raise Failed(f"there is no check '{name}': choose of {', '.join(CHECKS)}", USAGE)
    if (name in WITH_ARGUMENT) != bool(argument):
        raise Failed(
            f"'{name}' needs an argument: {name}=..." if name in WITH_ARGUMENT else f"'{name}' has no argument", USAGE
        )
    if name == "node":
        ok, told = reach.api.check("/api/healthchecks/node")
    elif name == "certificate-expiration":
        within, _, unit = argument.partition("/")
        ok, told = reach.api.check("/api/health/checks/certificate-expiration/{}/{}", within, unit or "days")
    elif equals:
        ok, told = reach.api.check("/api/health/checks/" + name + "/{}", argument)
    else:
        ok, told = reach.api.check("/api/health/checks/" + name)
    return {"check": check, **told, "status": "ok" if ok else "failed"}
