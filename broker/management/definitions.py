"""Definitions: the wiring as one document, out and in.

Out, as RabbitMQ exports it: everything that was declared and survives a restart; no exchange that every vhost has by
itself, no exclusive queue. In, as a list of commands in an order in which each finds what it needs:

    vhosts, users, permissions, topic permissions, parameters, global parameters, limits, policies, operator policies,
    queues, exchanges, bindings; and then worker pools (`pool_definitions`)

Reading a document finds what cannot be imported: what RabbitMQ has and this broker has not (`foreign_definitions`), and
mistakes of form. Whether it contradicts what exists is found out when the commands are folded, all or none. A trial
tells all obstacles at once, OBSTACLES_TOLD at most. What is there already and the same is a success.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Binding, Exchange, Queue, VhostLimits
from clusterbroker.cluster.wiring.exchange_rules import EXCHANGE_DECLARATIONS, FAILOVER, PREDECLARED, STAGING
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.view import ClusterView

from . import accounts, bodies, foreign_definitions, pool_definitions, settings
from .bodies import Name
from .errors import Refused, bad_request
from .forms import Form, table
from .json_schema import Schema, list_of
from .json_schema import table as table_schema
from .naming import check_imported_name
from .nodes import PRODUCT, RABBITMQ_API
from .pool_definitions import PoolDraft, PoolEntry
from .reading import Document, Reading, plain_table, same

NAMES_MAX: Final = 20
OBSTACLES_TOLD: Final = 200
PASSWORDS_MAX: Final = 1000
"""In the clear, of one import: hashing them takes some 50 s."""
_BY_ITSELF: Final = frozenset(name for name, _, _ in PREDECLARED) | {FAILOVER}


# -- out ------------------------------------------------------------------------------------------------------


def exported(reading: Reading) -> Document:
    """Of the whole cluster."""
    vhosts = sorted(vhost.name for vhost in reading.map.vhosts())
    return {
        **_about(),
        "users": accounts.users(reading),
        "vhosts": [_vhost(reading, name) for name in vhosts],
        "permissions": accounts.permissions(reading),
        "topic_permissions": accounts.topic_permissions(reading),
        "parameters": [entry for name in vhosts for entry in settings.parameters(reading, vhost=name)],
        "global_parameters": settings.global_parameters(reading),
        "policies": [entry for name in vhosts for entry in settings.policies(reading, name)],
        **_wiring(reading, vhosts, named=True),
        **pool_definitions.exported(reading, vhosts, named=True),
    }


def exported_of(reading: Reading, vhost: str) -> Document:
    """Of one vhost, to be imported under any name: without users, and nothing names the vhost."""
    answer = {
        **_about(),
        "parameters": settings.parameters(reading, vhost=vhost),
        "policies": settings.policies(reading, vhost),
        **_wiring(reading, [vhost], named=False),
        **pool_definitions.exported(reading, [vhost], named=False),
    }
    for section in ("parameters", "policies"):
        answer[section] = [{name: entry[name] for name in entry if name != "vhost"} for entry in answer[section]]
    return answer


def _about() -> Document:
    return {
        "product_name": PRODUCT,
        "product_version": VERSION,
        "rabbit_version": RABBITMQ_API,
        "rabbitmq_version": RABBITMQ_API,
    }


def _vhost(reading: Reading, name: str) -> Document:
    vhost = settings.vhost_named(reading, name)
    answer: Document = {"name": name}
    if vhost.description or vhost.tags:
        answer |= {"description": vhost.description, "tags": list(vhost.tags)}
        answer["metadata"] = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type:
        answer["default_queue_type"] = vhost.default_queue_type
    return answer


def _wiring(reading: Reading, vhosts: list[str], *, named: bool) -> Document:
    def told(entry: Queue | Exchange | Binding, *fields: str) -> Document:
        names = (*fields, "vhost") if named else fields
        return same(entry, *names) | {"arguments": plain_table(entry.arguments)}

    answer: Document = {"queues": [], "exchanges": [], "bindings": []}
    pools = reading.map.pools
    for vhost in vhosts:
        for queue in sorted(reading.map.queues(vhost), key=lambda queue: queue.name):
            comes_along = queue.part_of or pools.queue(queue.queue_id)  # with its exchange, or its pool
            if queue.exclusive_owner is None and not comes_along:
                answer["queues"].append(told(queue, "auto_delete", "durable", "name"))
        for exchange in sorted(reading.map.exchanges(vhost), key=lambda exchange: exchange.name):
            by_itself = exchange.name in _BY_ITSELF or pools.owner_of_exchange(vhost, exchange.name)
            if not by_itself and exchange.type != STAGING:
                answer["exchanges"].append(told(exchange, "auto_delete", "durable", "internal", "name", "type"))
        for binding in reading.map.bindings(vhost):
            if pools.owner_of_exchange(vhost, binding.source):
                continue
            queue_there = reading.map.queue(vhost, binding.destination)
            if binding.destination_kind == "queue" and (queue_there is None or queue_there.exclusive_owner is not None):
                continue
            kind = {"destination_type": binding.destination_kind}
            answer["bindings"].append(told(binding, "destination", "routing_key", "source") | kind)
    return answer


# -- in -------------------------------------------------------------------------------------------------------

Plan = list[c.Defining]


class Named(Form):
    """What a path says of a vhost, a user or a global parameter."""

    name: Name


class InVhost(Form):
    """Of a policy, a queue, an exchange."""

    vhost: Name
    name: Name


class OfUser(Form):
    """Of a permission."""

    vhost: Name
    user: Name


class OfComponent(Form):
    """Of a parameter."""

    component: Name
    name: Name
    vhost: Name


class Between(Form):
    """Of a binding."""

    vhost: Name
    source: Name
    destination: Name


class Section(NamedTuple):
    """A list of a document: what names an entry, what else is said of it, and the command of both."""

    place: type[Form]
    body: type[Form]
    command: Callable[..., c.Defining | tuple[c.PutUser, str | None]]
    """Of the body, the time, and by name of what the place has."""


def _parameter(body: bodies.Parameter, at_ms: int, vhost: str, component: str, name: str) -> c.Defining:
    """Limits and operator policies are parameters in a document, as at RabbitMQ."""
    if component == settings.LIMITS_COMPONENT:
        return bodies.vhost_limits_command(at_ms, vhost, table("value", body.value))
    if component == settings.OPERATOR_POLICY_COMPONENT:
        return bodies.OperatorPolicy.of(table("value", body.value)).command(at_ms, vhost, name)
    return body.command(at_ms, vhost, component, name)


def _global_parameter(body: bodies.Parameter, at_ms: int, name: str) -> c.Defining:
    return body.command(at_ms, settings.GLOBAL, settings.GLOBAL, name)


SECTIONS: Final[dict[str, Section]] = {
    "vhosts": Section(Named, bodies.Vhost, bodies.Vhost.command),
    "users": Section(Named, bodies.ImportedUser, bodies.ImportedUser.command),
    "permissions": Section(OfUser, bodies.Permission, bodies.Permission.command),
    "topic_permissions": Section(OfUser, bodies.TopicPermission, bodies.TopicPermission.command),
    "parameters": Section(OfComponent, bodies.Parameter, _parameter),
    "global_parameters": Section(Named, bodies.Parameter, _global_parameter),
    "policies": Section(InVhost, bodies.Policy, bodies.Policy.command),
    "operator_policies": Section(InVhost, bodies.OperatorPolicy, bodies.OperatorPolicy.command),
    "queues": Section(InVhost, bodies.Queue, bodies.Queue.command),
    "exchanges": Section(InVhost, bodies.ImportedExchange, bodies.ImportedExchange.command),
    "bindings": Section(Between, bodies.ImportedBinding, bodies.ImportedBinding.command),
}
POOLS: Final = "pools"
_OF_CLUSTER: Final = ("vhosts", "users", "permissions", "topic_permissions", "global_parameters")


def document_schema(of_one_vhost: bool) -> Schema:
    """Of a document: a path that names the vhost says it for all entries."""
    entries = {}
    forms = {name: (section.place, section.body) for name, section in SECTIONS.items()} | {POOLS: (InVhost, PoolEntry)}
    for name, (place_form, body_form) in forms.items():
        place, body = place_form.schema(), body_form.schema()
        required = [*place["required"], *body.get("required", ())]
        if of_one_vhost:
            if name in _OF_CLUSTER:
                continue
            required.remove("vhost")
        entry = {**body, "properties": place["properties"] | body["properties"], "required": required}
        entries[name] = list_of(entry)
    return table_schema(entries)


class Draft(NamedTuple):
    """What a document asks for. With obstacles: what is left without them."""

    commands: Plan
    passwords: list[tuple[int, str]]
    """In the clear, still to be hashed: (place of the command, password)."""
    warnings: list[str]
    unsupported: list[str]
    """Obstacles that `skip` would leave out."""
    mistakes: list[str]
    """Of form."""
    pools: tuple[PoolDraft, ...] = ()

    def ready(self) -> Draft:
        """Itself. Refused (400) with all obstacles in one line."""
        obstacles = [*self.unsupported, *self.mistakes]
        if obstacles:
            raise bad_request("; ".join(obstacles))
        return self


def drafted(document: Any, at_ms: int, vhost: str | None = None, *, skip: bool = False) -> Draft:
    """The commands of a document.

    `vhost`: import all into this one, whatever the document names. `skip`: leave out what is not supported. Refused
    (400) when the document is no object, or has too many passwords in the clear.
    """
    if not isinstance(document, dict):
        raise bad_request("not_json")
    passed_over = () if vhost is None else _OF_CLUSTER
    adapted = foreign_definitions.adapted(document, skip, passed_over)
    unsupported = adapted.obstacles
    document = adapted.document
    plan: Plan = []
    passwords: list[tuple[int, str]] = []
    wrong: list[str] = []
    for name, section in SECTIONS.items():
        if name in passed_over:
            continue
        for number, entry in enumerate(_entries(document, name)):
            try:
                command = _command(section, entry, at_ms, vhost)
                if isinstance(command, tuple):
                    command, password = command
                    if password is not None:
                        passwords.append((len(plan), password))
                plan.append(command)
            except Refused as refused:
                wrong.append(f"{name}[{number}]: {refused.reason}")
            if len(passwords) > PASSWORDS_MAX:
                too_many = f"more than {PASSWORDS_MAX} passwords in the clear: divide it, or give hashes"
                raise bad_request(f"{name}[{number}]: {too_many}")
            if len(wrong) > OBSTACLES_TOLD:
                wrong[-1] = "and perhaps more"
                return Draft(plan, passwords, adapted.warnings, unsupported, wrong)
    drafts = []
    for number, entry in enumerate(_entries(document, POOLS)):
        try:
            body, place = _placed(InVhost, entry, vhost)
            drafts.append(pool_definitions.drafted(body, at_ms, **asdict(place)))
        except Refused as refused:
            wrong.append(f"{POOLS}[{number}]: {refused.reason}")
    plan, drafts = pool_definitions.with_their_bindings(plan, drafts)
    wrong += pool_definitions.mistakes(plan, drafts)
    return Draft(plan, passwords, adapted.warnings, unsupported, wrong[:OBSTACLES_TOLD], tuple(drafts))


def _command(section: Section, entry: Any, at_ms: int, vhost: str | None) -> c.Defining | tuple[c.PutUser, str | None]:
    body, place = _placed(section.place, entry, vhost)
    return section.command(section.body.of(body), at_ms, **asdict(place))


def _placed(form: type[Form], entry: Any, vhost: str | None) -> tuple[Document, Form]:
    if not isinstance(entry, dict):
        raise bad_request("not an object")
    place = form.of(entry if vhost is None else {**entry, "vhost": vhost})
    name = getattr(place, "name", None)
    if name is not None:
        check_imported_name(name)
    return entry, place


def _entries(document: Mapping[str, Any], section: str) -> list[Any]:
    entries = document.get(section, [])
    if section == "global_parameters" and isinstance(entries, dict):
        entries = [{"name": name, "value": value} for name, value in entries.items()]
    if not isinstance(entries, list):
        raise bad_request(f"{section}: not a list")
    return entries


def trial(map_: ClusterMap, draft: Draft) -> Document:
    """What an import would do: `{"warnings": [line], "unsupported": [line], "obstacles": [line], section: {"new": n,
    "changed": n, "same": n, "names": {"new": [name], "changed": [name]}}}`, with the first NAMES_MAX names of each.
    With something in `unsupported` or `obstacles` nothing would be done, and no section is told."""
    obstacles = draft.mistakes
    changes: list[c.Defining] = []
    if not obstacles:
        changes, refused = map_.tried(draft.commands, OBSTACLES_TOLD)
        obstacles = [error.text for error in refused] + [*pool_definitions.refusals(map_, draft.pools, draft.commands)]
    answer: Document = {"warnings": draft.warnings, "unsupported": draft.unsupported, "obstacles": obstacles}
    if draft.unsupported or obstacles:
        return answer
    changing = {id(command) for command in changes}
    for command in draft.commands:
        section, there = _OF[type(command)]
        existed = bool(there(map_, command))
        if isinstance(command, c.PutParameter) and not command.vhost:
            section = "global_parameters"
        what = "same" if id(command) not in changing else "changed" if existed else "new"
        _count(answer, section, what, command)
    for one in draft.pools:
        known = map_.pools.find(one.declare.vhost, one.declare.name)
        _count(answer, POOLS, "new" if known is None else "same", one.declare)
        for binding in one.bindings:
            _count(answer, "bindings", "new" if map_.find_binding(binding) is None else "same", binding)
    return answer


def _count(answer: Document, section: str, what: str, command: c.Defining | c.DeclarePool) -> None:
    counts = answer.setdefault(section, {"new": 0, "changed": 0, "same": 0, "names": {"new": [], "changed": []}})
    counts[what] += 1
    if what != "same" and len(counts["names"][what]) < NAMES_MAX:
        counts["names"][what].append(_named(command))


def _named(command: c.Defining | c.DeclarePool) -> str:
    """How a person is told of it."""
    match command:
        case c.Bind():
            name = f"{command.source} to {command.destination_kind} {command.destination} by '{command.routing_key}'"
        case c.SetPermission() | c.SetTopicPermission():
            name = command.user
        case c.SetVhostLimits():
            return command.vhost
        case _:
            name = command.name
    vhost = getattr(command, "vhost", "")
    return f"{name} in {vhost}" if vhost else name


_There = Callable[[ClusterView, Any], object]
_OF: Final[dict[type[c.Defining], tuple[str, _There]]] = {
    c.AddVhost: ("vhosts", lambda map_, one: map_.vhost(one.name)),
    c.PutUser: ("users", lambda map_, one: map_.user(one.name)),
    c.SetPermission: ("permissions", lambda map_, one: map_.permission(one.user, one.vhost)),
    c.SetTopicPermission: ("topic_permissions", lambda map_, one: any(
        (held.user, held.vhost, held.exchange) == (one.user, one.vhost, one.exchange)
        for held in map_.topic_permissions())),
    c.PutParameter: ("parameters", lambda map_, one: map_.parameter(one.vhost, one.component, one.name)),
    c.SetVhostLimits: ("limits", lambda map_, one: map_.vhost_limits(one.vhost) != VhostLimits(one.vhost)),
    c.PutPolicy: ("policies", lambda map_, one: any(held.name == one.name for held in map_.policies(one.vhost))),
    c.PutOperatorPolicy: ("operator_policies", lambda map_, one: any(
        held.name == one.name for held in map_.operator_policies(one.vhost))),
    c.DeclareQueue: ("queues", lambda map_, one: map_.queue(one.vhost, one.name)),
    **dict.fromkeys(EXCHANGE_DECLARATIONS, ("exchanges", lambda map_, one: map_.exchange(one.vhost, one.name))),
    c.Bind: ("bindings", lambda map_, one: map_.find_binding(Binding(
        one.vhost, one.source, one.destination, one.destination_kind, one.routing_key, one.arguments))),
}  # fmt: skip
"""The section of a command, and whether what it defines is there."""
