"""Documents of vhosts, policies, parameters and limits, and the feature flags that clients ask for."""

from __future__ import annotations

from typing import Any, Final

from clusterbroker.broker.bridges.places import masked
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS, OperatorPolicy, Parameter, Policy, Vhost, VhostLimits

from .errors import object_not_found
from .principals import ADMINISTRATOR, MONITORING
from .reading import Document, Reading, plain, plain_table, same
from .statistics import CHANNEL_FIELDS, CONNECTION_BYTES, DEPTH_FIELDS

POLICY_COMPONENT: Final = "policy"
OPERATOR_POLICY_COMPONENT: Final = "operator_policy"
LIMITS_COMPONENT: Final = "vhost-limits"
GLOBAL: Final = ""
"""Vhost and component of a global parameter."""

_FLAGS: Final = (
    ("classic_queue_type_delivery_support", "Classic queues support the queue type interface"),
    ("drop_unroutable_metric", "Count unroutable publishes to be dropped in stats"),
    ("empty_basic_get_metric", "Count AMQP `basic.get` on empty queues in stats"),
    ("implicit_default_bindings", "Default bindings are implicit, instead of being stored"),
    ("maintenance_mode_status", "Maintenance mode status"),
    ("quorum_queue", "Support queues of type `quorum`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)


# -- vhosts ---------------------------------------------------------------------------------------------------


def vhosts(reading: Reading) -> list[Document]:
    """Those that the user may enter; all to those who monitor."""
    names = (
        sorted(vhost.name for vhost in reading.map.vhosts())
        if reading.principal.has(MONITORING)
        else reading.principal.open_vhosts()
    )
    return [vhost_document(reading, vhost) for name in names if (vhost := reading.map.vhost(name)) is not None]


def vhost_named(reading: Reading, name: str) -> Vhost:
    """Refused (404) without one."""
    vhost = reading.map.vhost(name)
    if vhost is None:
        raise object_not_found()
    return vhost


def vhost_document(reading: Reading, vhost: Vhost) -> Document:
    """One vhost with its totals."""
    answer: Document = {
        "cluster_state": {
            node: "running" if reading.replica.running(node, reading.now_ms) else "stopped"
            for node in reading.replica.node_names()
        },
        "default_queue_type": vhost.default_queue_type or "undefined",
        "description": vhost.description,
        "metadata": {"description": vhost.description, "tags": list(vhost.tags)},
        "may": reading.principal.may_some(vhost.name),
        "name": vhost.name,
        "tags": list(vhost.tags),
        "tracing": vhost.tracing,
    }
    track = reading.replica.vhost_sums.get(vhost.name)
    if track is not None:
        answer |= reading.counted("lengths", (track,), DEPTH_FIELDS, gauge=True)
        answer |= reading.counted("data_rates", (track,), CONNECTION_BYTES)
        answer["message_stats"] = reading.counted("msg_rates", (track,), CHANNEL_FIELDS)
    return answer


# -- policies -------------------------------------------------------------------------------------------------


def policy_document(policy: Policy | OperatorPolicy) -> Document:
    """One policy."""
    return {
        **same(policy, "name", "pattern", "priority", "vhost"),
        "apply-to": policy.apply_to,
        "definition": plain_table(policy.definition),
    }


def policies(reading: Reading, vhost: str | None = None, *, operator: bool = False) -> list[Document]:
    """Of a vhost, or of all that the user may enter."""
    asked = reading.principal.open_vhosts() if vhost is None else [vhost]
    found: list[Policy | OperatorPolicy] = []
    for name in asked:
        found.extend(reading.map.operator_policies(name) if operator else reading.map.policies(name))
    return [policy_document(policy) for policy in sorted(found, key=lambda policy: (policy.vhost, policy.name))]


def policy_named(reading: Reading, vhost: str, name: str, *, operator: bool = False) -> Document:
    """Refused (404) without one."""
    found = reading.policies(vhost)[operator].get(name)
    if found is None:
        raise object_not_found()
    return policy_document(found)


# -- parameters -----------------------------------------------------------------------------------------------


def parameters(reading: Reading, component: str | None = None, vhost: str | None = None) -> list[Document]:
    """Those of the vhosts that the user may enter. Operator policies and limits count as parameters, as in RabbitMQ.
    Passwords in URIs are an administrator's to see."""
    asked = reading.principal.open_vhosts() if vhost is None else [vhost]
    whole = reading.principal.has(ADMINISTRATOR)

    def shown(value: Any) -> Any:
        return plain(value) if whole else masked(plain(value))

    found = [
        _parameter(parameter.component, parameter.name, parameter.vhost, shown(parameter.value))
        for parameter in reading.map.parameters()
        if parameter.vhost in asked
    ]
    for name in asked:
        found.extend(_policy_parameter(policy) for policy in reading.map.operator_policies(name))
        limits = limits_of(reading.map.vhost_limits(name))
        if limits:
            found.append(_parameter(LIMITS_COMPONENT, "limits", name, limits))
    chosen = [entry for entry in found if component in (None, entry["component"])]
    return sorted(chosen, key=lambda entry: (entry["vhost"], entry["component"], entry["name"]))


def parameter_named(reading: Reading, component: str, vhost: str, name: str) -> Document:
    """Refused (404) without one."""
    for entry in parameters(reading, component, vhost):
        if entry["name"] == name:
            return entry
    raise object_not_found()


def _parameter(component: str, name: str, vhost: str, value: Any) -> Document:
    return {"component": component, "name": name, "value": value, "vhost": vhost}


def _policy_parameter(policy: OperatorPolicy) -> Document:
    document = policy_document(policy)
    name, vhost = document.pop("name"), document.pop("vhost")
    return _parameter(OPERATOR_POLICY_COMPONENT, name, vhost, document)


def global_parameters(reading: Reading) -> list[Document]:
    """All of them."""
    found = [parameter for parameter in reading.map.parameters() if parameter.vhost == GLOBAL]
    return [_global(parameter) for parameter in sorted(found, key=lambda parameter: parameter.name)]


def global_parameter_named(reading: Reading, name: str) -> Document:
    """Refused (404) without one."""
    parameter = reading.map.parameter(GLOBAL, GLOBAL, name)
    if parameter is None:
        raise object_not_found()
    return _global(parameter)


def _global(parameter: Parameter) -> Document:
    return {"name": parameter.name, "value": plain(parameter.value)}


# -- limits and flags -----------------------------------------------------------------------------------------


def limits_of(limits: VhostLimits) -> Document:
    """Limits under their names in RabbitMQ."""
    return {name: value for name, field in VHOST_LIMITS.items() if (value := getattr(limits, field)) is not None}


def vhost_limits(reading: Reading, vhost: str | None = None) -> list[Document]:
    """Of a vhost, or of all that the user may enter; those that have some."""
    asked = reading.principal.open_vhosts() if vhost is None else [vhost]
    found = [(name, limits_of(reading.map.vhost_limits(name))) for name in asked]
    return [{"value": limits, "vhost": name} for name, limits in found if limits]


def feature_flags() -> list[Document]:
    """Those of RabbitMQ whose meaning is there; all are on, and there are none of our own."""
    return [
        {"desc": text, "doc_url": "", "name": name, "provided_by": "rabbit", "stability": "stable", "state": "enabled"}
        for name, text in _FLAGS
    ]
