"""`clusterbroker health`: whether the node of a data directory serves clients, for those who watch over it (waits).

The node's own loop answers, so a node that is stuck fails. What is wrong is one line, and exit code 1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from clusterbroker.broker.cli.administration import DATA_DIR, DataDir
from clusterbroker.broker.cli.operator_door import foreign
from clusterbroker.broker.cli.parameters import duration
from clusterbroker.broker.cli.tables import counted

AGAIN_S: Final = 0.5


def health(
    alive: Annotated[
        bool, typer.Option("--alive", help="Only: the node answers. It may wait for others, be cut off or drained.")
    ] = False,
    in_sync: Annotated[
        bool,
        typer.Option("--in-sync", help="Also: all its replicas are in sync, so the next node may be stopped."),
    ] = False,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready",
            help="Only: the node may receive clients. It serves them, its replicas were in sync since its start.",
        ),
    ] = False,
    spare: Annotated[
        bool, typer.Option("--spare", help="Only: the node may be stopped. No queue needs it for confirms.")
    ] = False,
    wait: Annotated[float, duration("Wait this long for success.")] = 0.0,
    timeout: Annotated[float, duration("Wait this long for an answer.", least=0.1)] = 5.0,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Check that this directory's node serves clients and can confirm: exit code 0, or 1 with the reason."""
    end_s = time.monotonic() + wait
    while True:
        blocked: list[str] = []
        trouble = _looked(data_dir, timeout, Asked(alive, in_sync, ready, spare), blocked)
        if not trouble or time.monotonic() >= end_s:
            break
        time.sleep(AGAIN_S)
    if trouble:
        typer.echo(f"clusterbroker: {trouble}", err=True)
        raise typer.Exit(1)
    typer.echo("; ".join(["alive" if alive else "may be stopped" if spare else "serves clients", *blocked]))


class Asked(NamedTuple):
    """What was asked for."""

    alive: bool = False
    in_sync: bool = False
    ready: bool = False
    spare: bool = False


def _looked(directory: Path, timeout_s: float, asked: Asked, blocked: list[str]) -> str:
    """What is wrong; empty: nothing."""
    from clusterbroker.broker.server.control.client import ask

    try:
        facts = ask(directory, "status", timeout_s=timeout_s)
        wanted = facts and facts.get("state") != "waits" and any(asked[1:])
        copies = ask(directory, "copies", timeout_s=timeout_s) if wanted else None
    except TimeoutError:
        return f"the node in {directory} has not answered within {timeout_s:g} s"
    except PermissionError:
        return foreign(directory)
    except OSError as error:
        return f"the node in {directory} cannot be asked: {error.strerror or error}"
    if facts is None:
        return f"no node runs in {directory}"
    blocked += [] if asked.alive else facts.get("blocked", [])
    return _trouble(facts, asked) or _lacking(copies, asked)


def _trouble(facts: dict[str, Any], asked: Asked) -> str:
    """Why the node that says this of itself should get no clients; empty: it should."""
    if not facts.get("ok"):
        return str(facts.get("error"))
    if asked.alive:
        return ""
    if facts.get("state") == "waits":
        return f"the node starts: it waits {', '.join(facts['waits_for'])}"
    if asked.spare:
        return ""
    if facts.get("lease", "leased") != "leased":
        why = "".join(f"; {line}" for line in facts.get("blocked", []))
        return f"the node is cut off from the majority (lease: {facts['lease']}){why}"
    if facts.get("draining"):
        return "the node is drained: its clients were asked to go elsewhere"
    # consumers must find it all the same: nobody else can end the alarm
    if facts.get("alarms") and not asked.ready:
        return f"publishers wait here: the {' and the '.join(facts['alarms'])} alarm is raised"
    return ""


def _lacking(copies: dict[str, Any] | None, asked: Asked) -> str:
    """Why the rollout of a release should wait; empty: it need not, or nobody asked."""
    if copies is None:
        return ""
    if not copies.get("ok"):
        return str(copies.get("error"))
    replicas = counted(copies["behind"], "replica")
    if asked.ready and not copies["caught_up"]:
        has = "has" if copies["behind"] == 1 else "have"
        return f"{replicas} here {has} not been in sync since it began, the first is of {copies['first']}"
    if asked.in_sync and copies["behind"]:
        are = "is" if copies["behind"] == 1 else "are"
        return f"{replicas} here {are} not in sync, the first is of {copies['first']}"
    if asked.spare and copies["critical"]:
        return f"{counted(copies['critical'], 'queue')} would confirm nothing without this node"
    return ""
