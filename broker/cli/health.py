"""`clusterbroker health`: whether the node of a data directory serves clients, for those who watch over it (waits).

The node's own loop answers, so a node that is stuck fails. What is wrong is one line, and exit code 1.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli.administration import DATA_DIR, DataDir


def health(
    alive: Annotated[
        bool, typer.Option("--alive", help="Only whether it answers: it may wait for others, be cut off or drained.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that it may take to answer.")] = 5.0,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Whether the node of this data directory serves clients: exit code 0, or 1 and why not."""
    from broker.server.admin import ask

    try:
        facts = ask(data_dir, {"do": "status"}, timeout)
    except TimeoutError:
        trouble = f"the node in {data_dir} has not answered within {timeout:g} s"
    except OSError as error:
        trouble = f"the node in {data_dir} cannot be asked: {error.strerror or error}"
    else:
        trouble = _trouble(facts, alive) if facts is not None else f"no node runs in {data_dir}"
    if trouble:
        typer.echo(f"clusterbroker: {trouble}", err=True)
        raise typer.Exit(1)
    blocked = [] if alive or facts is None else facts.get("blocked", [])
    typer.echo("; ".join(["alive" if alive else "serves clients", *blocked]))


def _trouble(facts: dict[str, Any], alive: bool) -> str:
    """Why the node that says this of itself should get no clients; empty: it should."""
    if not facts.get("ok"):
        return str(facts.get("error"))
    if alive:
        return ""
    if facts.get("state") == "waits":
        return f"the node starts: it waits {', '.join(facts['waits_for'])}"
    if facts.get("lease", "leased") != "leased":
        why = "".join(f"; {line}" for line in facts.get("blocked", []))
        return f"the node is cut off from the majority (lease: {facts['lease']}){why}"
    if facts.get("draining"):
        return "the node is drained: its clients were asked to go elsewhere"
    return ""
