"""Operations on the wiring, of a running node (`calls`) and of a stopped one (`broker.cli.stopped_node`).

`carry_out` answers with facts or raises `Refused`. Passwords come in clear, are hashed off the loop, and are never
written anywhere. What is only a command with some texts stands in PLAIN, a list of entities in LISTS.

    user.add name password [tags, replace]    user.password name password
    user.delete name                          user.list
    vhost.add name [description, tags]            vhost.delete name               vhost.list
    vhost.limit vhost limit value             (max-queues, max-connections; negative: none)
    permission.set user vhost configure write read   permission.clear user vhost   permission.list
    permission.topic user vhost exchange write read
    policy.set vhost name pattern definition [apply_to, priority]   policy.delete vhost name   policy.list
    operator-policy.set vhost name pattern definition [apply_to, priority]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, get_args

from clusterbroker.cluster.passwords import SCRYPT, hashed
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import VHOST_LIMITS, ApplyTo, VhostLimit
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.queue_settings import storable_lives
from clusterbroker.cluster.wiring.view import ClusterView

Facts = dict[str, Any]
NO_LEASE: Final = "this node is cut off from the majority of its cluster: ask another one, or wait"


class Refused(Exception):
    """The answer is no; the text says why."""


class Operator(Protocol):
    """What the commands need: the map to read, and somebody who orders changes."""

    @property
    def map(self) -> ClusterView: ...

    @property
    def password_cost(self) -> int: ...

    async def order(self, command: c.AnyCommand) -> Applied: ...


async def _ordered(operator: Operator, command: c.AnyCommand) -> Facts:
    applied = await operator.order(command)
    if applied.error is not None:
        raise Refused(applied.error.text)
    return {}


def _text(asked: Facts, name: str, default: str | None = None) -> str:
    value = asked.get(name, default)
    if not isinstance(value, str) or (not value and default is None):
        raise Refused(f"'{name}' is missing")
    return value


def _words(asked: Facts, name: str) -> tuple[str, ...]:
    words = asked.get(name, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Refused(f"'{name}' is a list of words")
    return tuple(words)


def _known_user(operator: Operator, asked: Facts) -> str:
    name = _text(asked, "name")
    if operator.map.user(name) is None:
        raise Refused(f"there is no user '{name}'")
    return name


async def _hashed(operator: Operator, password: str) -> str:
    try:
        return await asyncio.to_thread(hashed, password, cost=operator.password_cost)
    except ValueError as error:
        raise Refused(str(error)) from error


async def _user_add(operator: Operator, asked: Facts) -> Facts:
    name, password, tags = _text(asked, "name"), _text(asked, "password"), _words(asked, "tags")
    if operator.map.user(name) is not None and asked.get("replace") is not True:
        raise Refused(
            f"there is a user '{name}' already: 'user password' changes its password, 'user add --replace' its tags too"
        )
    stored = await _hashed(operator, password)
    # permissions and limits of a user that is there stay
    command = c.PutUser(name=name, password_hash=stored, hash_algorithm=SCRYPT, tags=tags, limits=None)
    return await _ordered(operator, command)


async def _user_password(operator: Operator, asked: Facts) -> Facts:
    password, name = _text(asked, "password"), _known_user(operator, asked)
    stored, only = await _hashed(operator, password), ("password_hash", "hash_algorithm")
    command = c.PutUser(name=name, password_hash=stored, hash_algorithm=SCRYPT, only=only)
    return await _ordered(operator, command)


async def _user_delete(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.DeleteUser(name=_known_user(operator, asked)))


async def _vhost_add(operator: Operator, asked: Facts) -> Facts:
    name, description, tags = _text(asked, "name"), _text(asked, "description", ""), _words(asked, "tags")
    return await _ordered(operator, c.AddVhost(name=name, description=description, tags=tags))


async def _vhost_delete(operator: Operator, asked: Facts) -> Facts:
    name = _text(asked, "name")
    if operator.map.vhost(name) is None:
        raise Refused(f"there is no vhost '{name}'")
    return await _ordered(operator, c.DeleteVhost(name=name))


async def _vhost_limit(operator: Operator, asked: Facts) -> Facts:
    name, value = _text(asked, "vhost"), asked.get("value")
    field = VHOST_LIMITS.get(_text(asked, "limit"))
    if field is None or not isinstance(value, int):
        raise Refused(f"'limit' is one of {', '.join(get_args(VhostLimit))}, and 'value' a number (negative: no limit)")
    # where None is a limit, too
    unlimited = -1 if field in {"bindings_max", "policies_max", "parameters_max"} else None
    fields_set: dict[str, Any] = {field: unlimited if value < 0 else value}
    return await _ordered(operator, c.SetVhostLimits(vhost=name, only=(field,), **fields_set))


def _policy(asked: Facts, apply_to: str) -> dict[str, Any]:
    """The fields of a policy. `apply_to`: when it is not said."""
    definition, priority = asked.get("definition"), asked.get("priority", 0)
    if not isinstance(definition, dict) or not isinstance(priority, int):
        raise Refused("'definition' is an object and 'priority' a number")
    apply_to = _text(asked, "apply_to", apply_to)
    if apply_to not in get_args(ApplyTo):
        raise Refused(f"'apply_to' cannot be '{apply_to}'")
    texts = {"vhost": _text(asked, "vhost", "/"), "name": _text(asked, "name"), "pattern": _text(asked, "pattern")}
    return {**texts, "definition": storable_lives(definition), "apply_to": apply_to, "priority": priority}


async def _policy_set(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.PutPolicy(**_policy(asked, "all")))


async def _operator_policy_set(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.PutOperatorPolicy(**_policy(asked, "queues")))


Operation = Callable[[Operator, Facts], Awaitable[Facts]]


def _plain(command: Callable[..., c.AnyCommand], defaults: Mapping[str, str | None]) -> Operation:
    async def order(operator: Operator, asked: Facts) -> Facts:
        return await _ordered(operator, command(**{name: _text(asked, name, to) for name, to in defaults.items()}))

    return order


def _listed(section: str, fields: tuple[str, ...], entities: Callable[[ClusterView], Iterable[Any]]) -> Operation:
    async def listed(operator: Operator, _: Facts) -> Facts:
        found = entities(operator.map)
        return {section: [{name: _as_json(getattr(one, name)) for name in fields} for one in found]}

    return listed


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _policies(view: ClusterView) -> Iterable[Any]:
    return [policy for vhost in view.vhosts() for policy in view.policies(vhost.name)]


_OF_USER: Final[Mapping[str, str | None]] = {"user": None, "vhost": "/"}
_GRANTED: Final = ("configure", "write", "read")
PLAIN: Final[dict[str, tuple[Callable[..., c.AnyCommand], Mapping[str, str | None]]]] = {
    "permission.set": (c.SetPermission, {**_OF_USER, **dict.fromkeys(_GRANTED, "")}),
    "permission.topic": (c.SetTopicPermission, {**_OF_USER, "exchange": None, "write": "", "read": ""}),
    "permission.clear": (c.ClearPermission, _OF_USER),
    "policy.delete": (c.DeletePolicy, {"vhost": "/", "name": None}),
}
"""Commands with their texts, and the defaults of these; None: it must be said."""
LISTS: Final[dict[str, tuple[str, tuple[str, ...], Callable[[ClusterView], Iterable[Any]]]]] = {
    "user.list": ("users", ("name", "tags"), lambda view: view.users()),
    "vhost.list": ("vhosts", ("name", "description"), ClusterView.vhosts),
    "permission.list": ("permissions", ("user", "vhost", *_GRANTED), lambda view: view.permissions()),
    "policy.list": ("policies", ("vhost", "name", "pattern", "definition", "apply_to", "priority"), _policies),
}
WIRING: Final[dict[str, Operation]] = {
    "user.add": _user_add,
    "user.password": _user_password,
    "user.delete": _user_delete,
    "vhost.add": _vhost_add,
    "vhost.delete": _vhost_delete,
    "vhost.limit": _vhost_limit,
    "policy.set": _policy_set,
    "operator-policy.set": _operator_policy_set,
    **{name: _plain(*plain) for name, plain in PLAIN.items()},
    **{name: _listed(*listed) for name, listed in LISTS.items()},
}


async def carry_out(operator: Operator, operation: str, arguments: Facts) -> Facts:
    """Raises Refused."""
    if operation not in WIRING:
        raise Refused(f"'{operation}' is not one of {', '.join(WIRING)}")
    return await WIRING[operation](operator, arguments)
