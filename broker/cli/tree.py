"""The tree of commands. Each is imported when it is called, completed or helped with: a start pays for none of them.

An entry names a module and a Typer in it: the group of this name, or the Typer's command of this name. A noun may be
said in the singular as well (`user add`, `users add`).
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

CONTENT: Final = "Queues, exchanges, messages"
RIGHTS: Final = "Users, permissions, policies"
CLUSTER: Final = "The cluster"
NODE: Final = "Node and data directory"
TRIALS: Final = "Tests"


class Entry(NamedTuple):
    """Where a command is."""

    module: str
    name: str = "app"
    panel: str = CONTENT
    singular: str = ""


COMMANDS: Final[dict[str, Entry]] = {
    "queues": Entry("queues", singular="queue"),
    "exchanges": Entry("exchanges", singular="exchange"),
    "bindings": Entry("exchanges", "bindings", singular="binding"),
    "delayed": Entry("delayed"),
    "pools": Entry("pools", singular="pool"),
    "producers": Entry("queues", "producers", singular="producer"),
    "leases": Entry("queues", "leases"),
    "connections": Entry("connections", singular="connection"),
    "channels": Entry("connections", "channels", singular="channel"),
    "consumers": Entry("connections", "consumers", singular="consumer"),
    "links": Entry("links", singular="link"),
    "bridges": Entry("bridges", singular="bridge"),
    "explain": Entry("explain"),
    "vhosts": Entry("vhosts", "app", RIGHTS, "vhost"),
    "vhost-limits": Entry("vhosts", "limits", RIGHTS),
    "users": Entry("users", "app", RIGHTS, "user"),
    "user-limits": Entry("users", "limits", RIGHTS),
    "permissions": Entry("users", "permissions", RIGHTS, "permission"),
    "topic-permissions": Entry("users", "topic_permissions", RIGHTS, "topic-permission"),
    "policies": Entry("policies", "app", RIGHTS, "policy"),
    "operator-policies": Entry("policies", "operator_policies", RIGHTS, "operator-policy"),
    "parameters": Entry("policies", "parameters", RIGHTS, "parameter"),
    "global-parameters": Entry("policies", "global_parameters", RIGHTS, "global-parameter"),
    "definitions": Entry("definitions", "app", RIGHTS),
    "migrate": Entry("migrate", "app", CLUSTER),
    "overview": Entry("nodes", "glance", CLUSTER),
    "whoami": Entry("nodes", "glance", CLUSTER),
    "cluster": Entry("nodes", "cluster", CLUSTER),
    "nodes": Entry("nodes", "app", CLUSTER, "node"),
    "members": Entry("administration", "members", CLUSTER),
    "checks": Entry("checks", "app", CLUSTER, "check"),
    "drain": Entry("administration", "draining", CLUSTER),
    "join": Entry("administration", "join", CLUSTER),
    "leave": Entry("administration", "leave", CLUSTER),
    "forget-node": Entry("nodes", "glance", CLUSTER),
    "rescue": Entry("rescue", "rescue", CLUSTER),
    "status": Entry("administration", "status", NODE),
    "health": Entry("health", "health", NODE),
    "copying": Entry("administration", "copying", NODE),
    "limit": Entry("administration", "limit", NODE),
    "reload-certificates": Entry("administration", "reload_certificates", NODE),
    "alarm": Entry("administration", "alarm", NODE),
    "journal": Entry("journal", "app", NODE),
    "demo": Entry("demo", "app", TRIALS),
    "verify": Entry("verify", "app", TRIALS),
    "chaos": Entry("chaos", "app", TRIALS),
}
SINGULARS: Final = {entry.singular: name for name, entry in COMMANDS.items() if entry.singular}


class Tree(TyperGroup):
    """The root."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help; singulars are understood, and not listed."""
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of this name, imported now."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        name = SINGULARS.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = self.commands[cmd_name] = loaded(cmd_name, COMMANDS[name])
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of any group; of a command that is not there, the one that was meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from clusterbroker.broker.cli.rabbitmqctl import hint

            meant = hint(name)
            if meant is None and (near := difflib.get_close_matches(name, self.list_commands(ctx), 3, 0.75)):
                meant = " or ".join(near)
            if meant is not None:
                ctx.fail(f"no command '{name}': {meant}")
        return super().resolve_command(ctx, args)


@cache
def loaded(name: str, entry: Entry) -> Any:
    """The command of an entry, made once in a process."""
    found = getattr(importlib.import_module(f"clusterbroker.broker.cli.{entry.module}"), entry.name)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(found)
        found = single
    group = typer.main.get_group(found)
    command: Any = group.commands.get(name, group)
    command.name = name
    command.rich_help_panel = entry.panel
    return command
