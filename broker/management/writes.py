"""What can be changed by commands of the wiring log: a table from method and path to the commands that do it.

A plan is made from the path, the body and what the map says now; then its commands are ordered one after another. The
map may change in between, so the wiring checks all of it again: a plan decides the status (201 for what is new, 204
for what was there) and nothing else. Exchanges, queues, bindings and messages are not here: these are AMQP, with the
user's own permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from clusterbroker.cluster.wiring import commands as c

from . import accounts, definitions, settings
from .bodies import (
    BODY_BYTES_MAX,
    DEFINITIONS_BYTES_MAX,
    Body,
    limit_command,
    parameter_command,
    policy_command,
    user_command,
    user_limit_command,
)
from .errors import bad_request, object_not_found
from .messages import require_unlocked, staged_in
from .naming import check_new_name
from .principals import ADMINISTRATOR, MANAGEMENT, POLICYMAKER
from .reading import Reading
from .reads import Path


class Planned(msgspec.Struct):
    """What shall be ordered, and how it is answered when nothing went wrong."""

    commands: list[c.AnyCommand]
    status: int = 204
    passwords: list[tuple[int, str]] = []
    """(place of a PutUser in `commands`, the password): hashed off the loop before anything is ordered."""
    whole: bool = False
    """All or nothing: one import."""
    answer: dict[str, Any] | None = None
    """Of a trial: nothing is ordered."""

    def definitions(self) -> list[c.Defining]:
        """The commands of an import."""
        assert self.whole, "commands that may be anything are no import"
        return cast(list[c.Defining], self.commands)

    def __repr__(self) -> str:
        """Without the passwords: they must never reach a log."""
        return f"Planned({self.commands!r}, status={self.status})"


Plan = Callable[[Reading, Path, Body, dict[str, Any]], Planned]


class Write(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    plan: Plan
    right: str = ADMINISTRATOR
    enter: bool = False
    """The vhost of the path must be open to the user."""
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of a success, the commonest first."""
        if self.plan is _import:
            return (204, 200)
        return (201, 204) if self.method == "PUT" else (204,)


def run(write: Write, reading: Reading, path: Path, fields: dict[str, Any]) -> Planned:
    """The plan. Refused as rights and body demand."""
    reading.principal.require(write.right)
    if write.enter:
        reading.principal.enter(path["vhost"])
    return write.plan(reading, path, Body(fields, reading.now_ms), fields)


def _made(command: c.AnyCommand, existed: bool) -> Planned:
    if not existed:
        for name in ("name", "component", "exchange"):
            check_new_name(getattr(command, name, ""))
    return Planned([command], 204 if existed else 201)


def _deleted(command: c.AnyCommand, existed: bool) -> Planned:
    if not existed:
        raise object_not_found()
    return Planned([command])


def _put_vhost(r: Reading, p: Path, body: Body, fields: dict[str, Any]) -> Planned:
    existing = r.map.vhost(p["vhost"])
    command = body.vhost_command(p["vhost"])
    if existing is not None and set(fields) == {"tracing"}:  # a switch says nothing of the rest
        command = replace(command, only=("tracing",))
    planned = _made(command, existing is not None)
    if existing is None and r.principal.account:  # as in RabbitMQ, whose clients make a vhost and go on to use it
        every = c.SetPermission(
            at_ms=body.at_ms, user=r.principal.account, vhost=p["vhost"], configure=".*", write=".*", read=".*"
        )
        planned.commands.append(every)
    return planned


def _delete_vhost(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    return _deleted(c.DeleteVhost(at_ms=body.at_ms, name=p["vhost"]), r.map.vhost(p["vhost"]) is not None)


def _start_vhost(r: Reading, p: Path, _body: Body, _fields: dict[str, Any]) -> Planned:
    """Nothing is to be done: a vhost runs wherever a node does."""
    if r.map.vhost(p["vhost"]) is None:
        raise object_not_found()
    if not r.replica.running(p["node"], r.now_ms):
        raise bad_request(f"Request to node {p['node']} failed with nodedown")
    return Planned([])


def _put_user(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    existing = r.map.user(p["user"])
    command, password = user_command(p["user"], body, existing is not None)
    planned = _made(command, existing is not None)
    if password is not None:
        planned.passwords = [(0, password)]
    return planned


def _delete_user(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    return _deleted(c.DeleteUser(at_ms=body.at_ms, name=p["user"]), r.map.user(p["user"]) is not None)


def _delete_users(r: Reading, _p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    names = body.value("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("'users' should be a list of names")
    for name in names:
        if r.map.user(name) is None:
            raise bad_request(["no_such_user", name])
    return Planned([c.DeleteUser(at_ms=body.at_ms, name=name) for name in names])


def _known(r: Reading, p: Path) -> None:
    if r.map.vhost(p["vhost"]) is None or r.map.user(p["user"]) is None:
        raise bad_request("vhost_or_user_not_found")


def _put_permission(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    _known(r, p)
    existed = r.map.permission(p["user"], p["vhost"]) is not None
    return _made(body.permission_command(p["vhost"], p["user"]), existed)


def _delete_permission(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    command = c.ClearPermission(at_ms=body.at_ms, user=p["user"], vhost=p["vhost"])
    return _deleted(command, r.map.permission(p["user"], p["vhost"]) is not None)


def _topic_permissions(r: Reading, p: Path) -> list[str]:
    held = r.map.topic_permissions()
    return [entry.exchange for entry in held if (entry.user, entry.vhost) == (p["user"], p["vhost"])]


def _put_topic_permission(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    _known(r, p)
    command = body.topic_permission_command(p["vhost"], p["user"])
    return _made(command, command.exchange in _topic_permissions(r, p))


def _delete_topic_permission(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    held = _topic_permissions(r, p)
    exchange = p.get("exchange")
    command = c.ClearTopicPermission(at_ms=body.at_ms, user=p["user"], vhost=p["vhost"], exchange=exchange)
    return _deleted(command, bool(held) if exchange is None else exchange in held)


def _put_policy(operator: bool) -> Plan:
    def plan(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
        command = policy_command(p["vhost"], p["name"], body, operator=operator)
        return _made(command, p["name"] in r.policies(p["vhost"])[operator])

    return plan


def _delete_policy(operator: bool) -> Plan:
    def plan(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
        command: c.AnyCommand
        if operator:
            command = c.DeleteOperatorPolicy(at_ms=body.at_ms, vhost=p["vhost"], name=p["name"])
        else:
            command = c.DeletePolicy(at_ms=body.at_ms, vhost=p["vhost"], name=p["name"])
        return _deleted(command, p["name"] in r.policies(p["vhost"])[operator])

    return plan


_OF_OTHERS: Final = (settings.POLICY_COMPONENT, settings.OPERATOR_POLICY_COMPONENT, settings.LIMITS_COMPONENT)


def _parameter_place(p: Path) -> tuple[str, str, str]:
    """(vhost, component, name); a path of global parameters has the name alone."""
    return p.get("vhost", settings.GLOBAL), p.get("component", settings.GLOBAL), p["name"]


def _put_parameter(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    vhost, component, name = _parameter_place(p)
    if component in _OF_OTHERS:
        raise bad_request(f"component '{component}' has a path of its own")
    existed = r.map.parameter(vhost, component, name) is not None
    return _made(parameter_command(vhost, component, name, body), existed)


def _delete_parameter(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    vhost, component, name = _parameter_place(p)
    command = c.DeleteParameter(at_ms=body.at_ms, vhost=vhost, component=component, name=name)
    return _deleted(command, r.map.parameter(vhost, component, name) is not None)


def _put_cluster_name(_r: Reading, _p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    name = body.text("name")
    check_new_name(name)
    command = c.PutParameter(
        at_ms=body.at_ms, vhost=settings.GLOBAL, component=settings.GLOBAL, name="cluster_name", value=name
    )
    return Planned([command])


def _put_vhost_limit(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    settings.vhost_named(r, p["vhost"])
    return Planned([limit_command(p["vhost"], p["name"], body.number("value"), body.at_ms)])


def _delete_vhost_limit(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    if p["name"] not in settings.limits_of(r.map.vhost_limits(p["vhost"])):
        raise object_not_found()
    return Planned([limit_command(p["vhost"], p["name"], None, body.at_ms)])


def _put_user_limit(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    user = accounts.user_named(r, p["user"])
    return Planned([user_limit_command(user.name, p["name"], body.number("value"), body.at_ms)])


def _delete_user_limit(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
    user = accounts.user_named(r, p["user"])
    if p["name"] not in accounts.limits_of(user.limits):
        raise object_not_found()
    return Planned([user_limit_command(user.name, p["name"], None, body.at_ms)])


def _import(r: Reading, p: Path, body: Body, fields: dict[str, Any]) -> Planned:
    commands, passwords = definitions.planned(fields, body.at_ms, p.get("vhost"))
    planned = Planned(list(commands), passwords=passwords, whole=True)
    if r.query.get("dry_run") == "true":
        planned.answer = definitions.trial(r.replica.map, commands)
    return planned


def _pause_queue(paused: bool) -> Plan:
    def plan(r: Reading, p: Path, body: Body, _fields: dict[str, Any]) -> Planned:
        staged = not paused and body.flag("staged", False)
        queue = staged_in(r, p["vhost"], p["name"]) if staged else r.map.queue(p["vhost"], p["name"])
        if queue is None:
            raise object_not_found()
        r.principal.check(p["vhost"], "configure", "queue", p["name"])
        if paused:
            require_unlocked(queue)
        return Planned(
            [c.PauseQueue(at_ms=body.at_ms, vhost=p["vhost"], name=p["name"], paused=paused, staging=staged)]
        )

    return plan


WRITES: Final[tuple[Write, ...]] = (
    Write("PUT", "/api/queues/{vhost}/{name}/pause", "Hand nothing out", _pause_queue(True), MANAGEMENT, enter=True),
    Write("PUT", "/api/queues/{vhost}/{name}/resume", "Hand out again", _pause_queue(False), MANAGEMENT, enter=True),
    Write("PUT", "/api/vhosts/{vhost}", "Make or change a vhost", _put_vhost),
    Write("DELETE", "/api/vhosts/{vhost}", "Delete a vhost and all in it", _delete_vhost),
    Write("POST", "/api/vhosts/{vhost}/start/{node}", "Start a vhost at a node; it runs there already", _start_vhost),
    Write("POST", "/api/users/bulk-delete", "Delete users", _delete_users),
    Write("PUT", "/api/users/{user}", "Make or change a user", _put_user),
    Write("DELETE", "/api/users/{user}", "Delete a user", _delete_user),
    Write("PUT", "/api/permissions/{vhost}/{user}", "Let a user into a vhost", _put_permission),
    Write("DELETE", "/api/permissions/{vhost}/{user}", "Close a vhost to a user", _delete_permission),
    Write("PUT", "/api/topic-permissions/{vhost}/{user}", "Set a topic permission", _put_topic_permission),
    Write("DELETE", "/api/topic-permissions/{vhost}/{user}", "Clear topic permissions", _delete_topic_permission),
    Write(
        "DELETE",
        "/api/topic-permissions/{vhost}/{user}/{exchange}",
        "Clear one topic permission",
        _delete_topic_permission,
    ),
    Write("PUT", "/api/policies/{vhost}/{name}", "Set a policy", _put_policy(False), POLICYMAKER, enter=True),
    Write("DELETE", "/api/policies/{vhost}/{name}", "Delete a policy", _delete_policy(False), POLICYMAKER, enter=True),
    Write("PUT", "/api/operator-policies/{vhost}/{name}", "Set an operator policy", _put_policy(True), enter=True),
    Write(
        "DELETE", "/api/operator-policies/{vhost}/{name}", "Delete an operator policy", _delete_policy(True), enter=True
    ),
    Write(
        "PUT", "/api/parameters/{component}/{vhost}/{name}", "Set a parameter", _put_parameter, POLICYMAKER, enter=True
    ),
    Write(
        "DELETE",
        "/api/parameters/{component}/{vhost}/{name}",
        "Delete a parameter",
        _delete_parameter,
        POLICYMAKER,
        enter=True,
    ),
    Write("PUT", "/api/global-parameters/{name}", "Set a global parameter", _put_parameter),
    Write("DELETE", "/api/global-parameters/{name}", "Delete a global parameter", _delete_parameter),
    Write("PUT", "/api/cluster-name", "Name the cluster", _put_cluster_name),
    Write("PUT", "/api/vhost-limits/{vhost}/{name}", "Set a limit of a vhost", _put_vhost_limit),
    Write("DELETE", "/api/vhost-limits/{vhost}/{name}", "Take off a limit of a vhost", _delete_vhost_limit),
    Write("PUT", "/api/user-limits/{user}/{name}", "Set a limit of a user", _put_user_limit),
    Write("DELETE", "/api/user-limits/{user}/{name}", "Take off a limit of a user", _delete_user_limit),
    Write("POST", "/api/definitions", "Import definitions, all or none", _import, body_bytes_max=DEFINITIONS_BYTES_MAX),
    Write(
        "POST",
        "/api/definitions/{vhost}",
        "Import definitions into a vhost, all or none",
        _import,
        enter=True,
        body_bytes_max=DEFINITIONS_BYTES_MAX,
    ),
)
