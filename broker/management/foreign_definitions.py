"""Definitions of RabbitMQ 3.8 to 4.3, before they are read: what has no meaning here is translated or left out.

    section             in the file                              here
    policies            ha-mode exactly, ha-params N             replicas N
                        ha-mode nodes, ha-params LIST            replicas, as many as there are names
                        target-group-size N                      replicas N
                        other ha-*                               left out: replicas are there without a policy
                        federation-*                             left out: there is no federation
                        a key that nobody here knows             unsupported
                        nothing else left                        an empty policy, which still hides weaker ones
    vhosts              default_queue_type stream, other         unsupported
    users               a hash of MD5                            unsupported
    parameters          shovel                                   kept: a bridge, or without effect and why
                        federation-*                             kept, without effect
    exchanges           a type that is not here, or to be delayed   unsupported
                        amq.rabbitmq....                         left out: there RabbitMQ publishes events and logs
    queues              a queue type that is not here            unsupported
                        amq.gen-..., named by the broker         unsupported: it would not go with its connection
    bindings            of an exchange or queue that is left out left out
                        of a queue that RabbitMQ's file lacks    left out: it is exclusive, and goes with its connection

*Unsupported* is an obstacle: the import is refused with all of them. With `skip` it is a warning. Either way it is left
out of the document, so that nothing that hangs on it is taken for a mistake: a key of its policy, a queue type of its
vhost, a password of its user, else the entry itself. An entry of the wrong form passes as it is: the form refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from clusterbroker.broker.bridges.shovel import COMPONENT as SHOVEL
from clusterbroker.broker.bridges.shovel import BadBridge, bridge
from clusterbroker.cluster.passwords import MD5
from clusterbroker.cluster.wiring.delay_bits import BITS_SETTINGS
from clusterbroker.cluster.wiring.exchange_rules import DECLARABLE, DELAYED, DELAYED_TYPE, TYPES
from clusterbroker.cluster.wiring.policies import ALTERNATE_EXCHANGE
from clusterbroker.cluster.wiring.queue_settings import POLICY_RULES, QUEUE_TYPES

from .nodes import PRODUCT
from .settings import OPERATOR_POLICY_COMPONENT

NAMES_TOLD: Final = 20
REPLICAS_MAX: Final = 255
NO_EFFECT: Final = {"queue-mode": "default"}
"""A definition that means nothing, of a policy of which nothing is left."""
GENERATED: Final = "amq.gen-"
"""Begins the names that brokers give to queues without one."""
OF_RABBITMQ: Final = "amq.rabbitmq."
"""Begins the names of exchanges to which RabbitMQ itself publishes."""
EXPORTED: Final = "rabbit_version"
"""A key of each file that RabbitMQ exports, and of ours, whose product has another name."""
DEFAULT_QUEUE_TYPES: Final = ("classic", "quorum", "undefined", "")
_FEDERATION: Final = ("federation-upstream", "federation-upstream-set")
"""Components of RabbitMQ's parameters that its plug-in reads."""

Entry = dict[str, Any]


class Adapted(NamedTuple):
    """A document that this broker can read, and what was done to it: a line for each kind of finding."""

    document: Entry
    warnings: list[str]
    obstacles: list[str]


class _Findings:
    """Findings, those with the same text in one line."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self._warnings: dict[str, list[str]] = {}
        self._obstacles: dict[str, list[str]] = {}

    def warn(self, name: str, text: str) -> None:
        self._warnings.setdefault(text, []).append(name)

    def left_out(self, name: str, problem: str, instead: str) -> None:
        """Something unsupported is."""
        if self._skip:
            self.warn(name, f"{problem}: {instead}")
        else:
            self._obstacles.setdefault(problem, []).append(name)

    def follows(self, name: str, text: str) -> None:
        """From something unsupported: told when that is only a warning."""
        if self._skip:
            self.warn(name, text)

    def lines(self) -> tuple[list[str], list[str]]:
        return _lines(self._warnings), _lines(self._obstacles)


def _lines(findings: Mapping[str, list[str]]) -> list[str]:
    return [f"{_listed(names)}: {text}" for text, names in findings.items()]


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


def adapted(document: Mapping[str, Any], skip: bool = False, passed_over: Container[str] = ()) -> Adapted:
    """`document` itself is not changed. `passed_over`: sections that nobody will read."""
    findings = _Findings(skip)
    answer = dict(document)
    gone: set[tuple[str, Any, Any]] = set()
    for section, adapt in _SECTIONS.items():
        entries = None if section in passed_over else document.get(section)
        if isinstance(entries, list):
            answer[section] = list(_kept(section, entries, adapt, findings, gone))
    bindings = document.get("bindings")
    if isinstance(bindings, list):
        of_rabbitmq = EXPORTED in document and document.get("product_name") != PRODUCT
        exported = _queues(document.get("queues")) if of_rabbitmq else None
        answer["bindings"] = [
            entry
            for entry in bindings
            if not _dangling(entry, gone, findings) and not _exclusive(entry, exported, findings)
        ]
    return Adapted(answer, *findings.lines())


def _kept(
    section: str,
    entries: Iterable[Any],
    adapt: Callable[[Entry, _Findings], Entry | None],
    findings: _Findings,
    gone: set[tuple[str, Any, Any]],
) -> Iterable[Any]:
    for entry in entries:
        if not isinstance(entry, dict):
            yield entry
        elif (after := adapt(entry, findings)) is not None:
            yield after
        else:
            gone.add((section[:-1], _hashable(entry.get("vhost")), _hashable(entry.get("name"))))


def _hashable(name: Any) -> Any:
    return name if isinstance(name, str) else None


def _dangling(entry: Any, gone: set[tuple[str, Any, Any]], findings: _Findings) -> bool:
    """Whether a binding lost one of its ends."""
    if not isinstance(entry, dict):
        return False
    vhost = _hashable(entry.get("vhost"))
    source = "exchange", vhost, _hashable(entry.get("source"))
    destination = entry.get("destination_type", "queue"), vhost, _hashable(entry.get("destination"))
    for kind, _, name in {source, (_hashable(destination[0]), *destination[1:])} & gone:
        findings.follows(f"bindings of {kind} '{name}'{_in(entry)}", "left out with it")
        return True
    return False


def _queues(entries: Any) -> set[tuple[Any, Any]] | None:
    """(vhost, name) of each; None where the file has none of anything."""
    if not isinstance(entries, list):
        return None
    named = (entry for entry in entries if isinstance(entry, dict))
    return {(_hashable(entry.get("vhost")), _hashable(entry.get("name"))) for entry in named}


def _exclusive(entry: Any, exported: set[tuple[Any, Any]] | None, findings: _Findings) -> bool:
    """Whether a binding is of a queue that RabbitMQ left out of the file (`exported`; None: no such file). It leaves
    out exclusive ones, and not their bindings."""
    if exported is None or not isinstance(entry, dict) or entry.get("destination_type", "queue") != "queue":
        return False
    queue = _hashable(entry.get("vhost")), _hashable(entry.get("destination"))
    if queue in exported or queue[1] is None:
        return False
    findings.warn(f"bindings of queue '{queue[1]}'{_in(entry)}", "left out: the queue is exclusive to its connection")
    return True


def _in(entry: Mapping[str, Any]) -> str:
    vhost = entry.get("vhost")
    return "" if vhost is None else f" in vhost '{vhost}'"


def _named(kind: str, entry: Mapping[str, Any]) -> str:
    return f"{kind} '{entry.get('name')}'{_in(entry)}"


# -- sections -------------------------------------------------------------------------------------------------


def _vhost(entry: Entry, findings: _Findings) -> Entry | None:
    metadata = entry.get("metadata")
    for holder in (entry, metadata if isinstance(metadata, dict) else {}):
        kind = holder.get("default_queue_type")
        if kind is None or kind in DEFAULT_QUEUE_TYPES:
            continue
        findings.left_out(f"vhost '{entry.get('name')}'", f"no default queue type '{kind}' here", "left out")
        entry = {name: value for name, value in entry.items() if name != "default_queue_type"}
        if isinstance(metadata, dict):
            entry["metadata"] = {name: value for name, value in metadata.items() if name != "default_queue_type"}
        break
    return entry


def _user(entry: Entry, findings: _Findings) -> Entry | None:
    if entry.get("hashing_algorithm") != MD5 or not entry.get("password_hash"):
        return entry
    problem = "an MD5 hash of a password is not taken"
    findings.left_out(f"user '{entry.get('name')}'", problem, "imported without a password, to be set anew")
    return {name: value for name, value in entry.items() if name != "hashing_algorithm"} | {"password_hash": ""}


def _parameter(entry: Entry, findings: _Findings) -> Entry | None:
    component = entry.get("component")
    value = entry.get("value")
    if component == OPERATOR_POLICY_COMPONENT and isinstance(value, dict):
        about = {"name": entry.get("name"), "vhost": entry.get("vhost"), **value}
        return {**entry, "value": {**value, **_definition("operator policy", about, findings)}}
    if component in _FEDERATION:
        findings.warn(_named(component, entry), "kept, and does nothing: there is no federation here")
    if component == SHOVEL:
        try:
            bridge(str(entry.get("vhost", "")), str(entry.get("name", "")), value)
        except BadBridge as bad:
            findings.warn(_named(component, entry), f"kept, and does nothing: {bad}")
        else:
            findings.warn(_named(component, entry), "is a bridge here, and runs when it is imported")
    return entry


def _policy(entry: Entry, findings: _Findings) -> Entry | None:
    return {**entry, **_definition("policy", entry, findings)}


def _operator_policy(entry: Entry, findings: _Findings) -> Entry | None:
    return {**entry, **_definition("operator policy", entry, findings)}


def _definition(kind: str, entry: Entry, findings: _Findings) -> Entry:
    """`{"definition": ...}` of a policy; empty: it stays as it is."""
    before = entry.get("definition")
    if not isinstance(before, dict) or not before:
        return {}
    name = _named(kind, entry)
    after: Entry = {}
    unsupported = False
    known = {*POLICY_RULES, ALTERNATE_EXCHANGE, *BITS_SETTINGS} if kind == "policy" else {*POLICY_RULES}
    for key, value in before.items():
        if key in known:
            after[key] = value
        elif key.startswith("ha-"):
            if key == "ha-mode":
                replicas = _mirrors(value, before.get("ha-params"))
                told = f"replaced by 'replicas' {replicas}" if replicas else "left out, as all queues are replicated"
                findings.warn(name, f"'ha-mode' '{value}' is {told}")
                _put_replicas(after, before, replicas)
        elif key == "target-group-size":
            findings.warn(name, f"'{key}' is replaced by 'replicas'")
            _put_replicas(after, before, value)
        elif key.startswith("federation-"):
            findings.warn(name, f"'{key}' is left out: there is no federation here")
        else:
            findings.left_out(name, f"no setting '{key}' of policies here", "left out")
            unsupported = True
    if not after:
        tell = findings.follows if unsupported else findings.warn
        tell(name, "nothing of its definition is left; it stays, as it hides policies of lower priority")
        after = dict(NO_EFFECT)
    return {"definition": after}


def _mirrors(mode: Any, params: Any) -> int | None:
    """How many copies a policy of mirrors asks for; None: all, or nothing that could be read."""
    if mode == "exactly" and isinstance(params, int):
        return min(max(params, 1), REPLICAS_MAX)
    if mode == "nodes" and isinstance(params, list) and params:
        return min(len(params), REPLICAS_MAX)
    return None


def _put_replicas(after: Entry, before: Entry, replicas: Any) -> None:
    if replicas is not None and "replicas" not in before:
        after["replicas"] = replicas


def _queue(entry: Entry, findings: _Findings) -> Entry | None:
    arguments = entry.get("arguments")
    kind = arguments.get("x-queue-type") if isinstance(arguments, dict) else None
    if isinstance(kind, str) and kind not in QUEUE_TYPES:
        findings.left_out(_named("queue", entry), f"no queue type '{kind}' here", "left out")
        return None
    if str(entry.get("name", "")).startswith(GENERATED):
        findings.left_out(_named("queue", entry), "a broker gave this name, for as long as its client was", "left out")
        return None
    return entry


def _exchange(entry: Entry, findings: _Findings) -> Entry | None:
    if str(entry.get("name", "")).startswith(OF_RABBITMQ):
        findings.warn(_named("exchange", entry), "left out: RabbitMQ's own")
        return None
    kind = entry.get("type")
    if isinstance(kind, str) and kind not in DECLARABLE:
        findings.left_out(_named("exchange", entry), f"no exchange type '{kind}' here", "left out")
        return None
    arguments = entry.get("arguments")
    within = arguments.get(DELAYED_TYPE) if kind == DELAYED and isinstance(arguments, dict) else None
    if isinstance(within, str) and within not in TYPES:
        findings.left_out(_named("exchange", entry), f"no exchange type '{within}' here, to be delayed", "left out")
        return None
    return entry


_SECTIONS: Final[dict[str, Callable[[Entry, _Findings], Entry | None]]] = {
    "vhosts": _vhost,
    "users": _user,
    "parameters": _parameter,
    "policies": _policy,
    "operator_policies": _operator_policy,
    "queues": _queue,
    "exchanges": _exchange,
}
