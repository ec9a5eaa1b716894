"""`clusterbroker policies`, `operator-policies`, `parameters` and `global-parameters` (waits)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clusterbroker.broker.cli import complete
from clusterbroker.broker.cli.commands import listed, listing, operation, showing, shown
from clusterbroker.broker.cli.parameters import OfVhost, Vhost, json_of, object_of
from clusterbroker.broker.cli.tables import Column, Document, Table, number
from clusterbroker.broker.cli.tables import pattern as pattern_cell
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Settings for all queues or exchanges with a matching name.")
operator_policies = typer.Typer(no_args_is_help=True, help="Policies that precede arguments and policies.")
parameters = typer.Typer(no_args_is_help=True, help="Runtime parameters of components, in a vhost.")
global_parameters = typer.Typer(no_args_is_help=True, help="Parameters of the whole cluster.")

POLICIES = Table(
    (
        Column("vhost"),
        Column("name"),
        Column("pattern", show=pattern_cell),
        Column("apply_to"),
        Column("priority", show=number),
        Column("definition"),
    )
)
PARAMETERS = Table((Column("vhost"), Column("component"), Column("name"), Column("value")))
GLOBAL_PARAMETERS = Table((Column("name"), Column("value")))

PolicyName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete.policies)]
OperatorPolicyName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete.operator_policies)]
Pattern = Annotated[str, typer.Argument(help="A regular expression over names.")]
Definition = Annotated[str, typer.Argument(help='A JSON object, e.g. {"max-length": 1000}')]
ApplyTo = Annotated[str, typer.Option(help="all, queues, classic_queues, quorum_queues, streams or exchanges")]
Priority = Annotated[int, typer.Option(help="The highest matching priority applies.")]
Component = Annotated[str, typer.Argument(autocompletion=complete.components)]
Value = Annotated[str, typer.Argument(help="JSON")]


def _named(policy: Document) -> Document:
    """With the field that a policy's scope has here as in the wiring log; RabbitMQ's has a dash."""
    return {name.replace("apply-to", "apply_to"): value for name, value in policy.items()}


# -- policies ---------------------------------------------------------------------------------------------------


@listing(app, "list", POLICIES)
def policy_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All policies."""
    if vhost is not None:
        return [_named(policy) for policy in reach.api.get("/api/policies/{}", vhost)]
    return [_named(policy) for policy in reach.rows("policy.list")]


@showing(app, "show", POLICIES)
def policy_show(reach: Target, name: PolicyName, vhost: Vhost = "/") -> Document:
    """One policy."""
    return _named(reach.api.get("/api/policies/{}/{}", vhost, name))


@operation(app, "set")
def policy_set(
    reach: Target,
    name: PolicyName,
    pattern: Pattern,
    definition: Definition,
    vhost: Vhost = "/",
    apply_to: ApplyTo = "all",
    priority: Priority = 0,
    operator: Annotated[bool, typer.Option("--operator", help="As `operator-policies set`.")] = False,
) -> str:
    """Set a policy. `explain queue` shows the result."""
    if operator:
        return operator_policy_set(reach, name, pattern, definition, vhost, apply_to, priority)
    _set(reach, "policy.set", name, pattern, definition, vhost, apply_to, priority)
    return f"policy '{name}' is set"


def _set(
    reach: Target, how: str, name: str, pattern: str, definition: str, vhost: str, apply_to: str, priority: int
) -> None:
    wanted = {"pattern": pattern, "definition": object_of(definition, "DEFINITION"), "apply_to": apply_to}
    reach.change(how, name=name, vhost=vhost, priority=priority, **wanted)


@operation(app, "delete")
def policy_delete(reach: Target, name: PolicyName, vhost: Vhost = "/") -> str:
    """Delete a policy."""
    reach.change("policy.delete", name=name, vhost=vhost)
    return f"policy '{name}' is deleted"


@listing(operator_policies, "list", POLICIES)
def operator_policy_list(reach: Target, vhost: OfVhost = None) -> list[Document]:
    """All operator policies."""
    return [_named(policy) for policy in reach.api.documents("/api/operator-policies", of=vhost)]


@showing(operator_policies, "show", POLICIES)
def operator_policy_show(reach: Target, name: OperatorPolicyName, vhost: Vhost = "/") -> Document:
    """One operator policy."""
    return _named(reach.api.get("/api/operator-policies/{}/{}", vhost, name))


@operation(operator_policies, "set")
def operator_policy_set(
    reach: Target,
    name: OperatorPolicyName,
    pattern: Pattern,
    definition: Definition,
    vhost: Vhost = "/",
    apply_to: ApplyTo = "all",
    priority: Priority = 0,
) -> str:
    """Set an operator policy: limits that users cannot raise."""
    _set(reach, "operator-policy.set", name, pattern, definition, vhost, apply_to, priority)
    return f"operator policy '{name}' is set"


@operation(operator_policies, "delete")
def operator_policy_delete(reach: Target, name: OperatorPolicyName, vhost: Vhost = "/") -> str:
    """Delete an operator policy."""
    reach.api.delete("/api/operator-policies/{}/{}", vhost, name)
    return f"operator policy '{name}' is deleted"


# -- parameters -------------------------------------------------------------------------------------------------


@listing(parameters, "list", PARAMETERS)
def parameter_list(
    reach: Target,
    component: Annotated[
        str | None, typer.Option("--component", help="Only of this component.", autocompletion=complete.components)
    ] = None,
    vhost: OfVhost = None,
) -> list[Document]:
    """All parameters, with limits of vhosts and operator policies."""
    if component is None:
        return [row for row in reach.api.documents("/api/parameters") if vhost in (None, row["vhost"])]
    return reach.api.documents("/api/parameters/{}", component, of=vhost)


_PARAMETER = "/api/parameters/{component}/{vhost}/{name}"
shown(parameters, "show", PARAMETERS, _PARAMETER, "One parameter.", component=Component, name=str)


@operation(parameters, "set")
def parameter_set(reach: Target, component: Component, name: str, value: Value, vhost: Vhost = "/") -> str:
    """Set a parameter."""
    body: dict[str, Any] = {"value": json_of(value, "VALUE")}
    reach.api.put("/api/parameters/{}/{}/{}", component, vhost, name, body=body)
    return f"parameter '{name}' is set"


@operation(parameters, "delete")
def parameter_delete(reach: Target, component: Component, name: str, vhost: Vhost = "/") -> str:
    """Delete a parameter."""
    reach.api.delete("/api/parameters/{}/{}/{}", component, vhost, name)
    return f"parameter '{name}' is deleted"


GlobalName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete.global_parameters)]


listed(global_parameters, "list", GLOBAL_PARAMETERS, "/api/global-parameters", "All parameters of the cluster.", None)

_GLOBAL = "/api/global-parameters/{name}"
shown(global_parameters, "show", GLOBAL_PARAMETERS, _GLOBAL, "One parameter of the cluster.", name=GlobalName)


@operation(global_parameters, "set")
def global_parameter_set(reach: Target, name: GlobalName, value: Value) -> str:
    """Set a parameter of the cluster."""
    reach.api.put("/api/global-parameters/{}", name, body={"value": json_of(value, "VALUE")})
    return f"global parameter '{name}' is set"


@operation(global_parameters, "delete")
def global_parameter_delete(reach: Target, name: GlobalName) -> str:
    """Delete a parameter of the cluster."""
    reach.api.delete("/api/global-parameters/{}", name)
    return f"global parameter '{name}' is deleted"
