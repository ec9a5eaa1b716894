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

from clusterbroker.broker.bridges.shovel import COMPONENT as SHOVEL
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import GroupWord

from . import accounts, bodies, definitions, pools, settings
from .errors import bad_request, not_authorised, object_not_found
from .forms import BODY_BYTES_MAX, Form, Said
from .messages import require_unlocked, staged_in
from .naming import check_new_name
from .pool_definitions import PoolDraft
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
    pools: tuple[PoolDraft, ...] = ()
    """Of an import, after it."""

    def definitions(self) -> list[c.Defining]:
        """The commands of an import."""
        assert self.whole, "commands that may be anything are no import"
        return cast(list[c.Defining], self.commands)

    def __repr__(self) -> str:
        """Without the passwords: they must never reach a log."""
        return f"Planned({self.commands!r}, status={self.status})"


Plan = Callable[[Reading, Path, Said], Planned]


class Write(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    plan: Plan
    right: str = ADMINISTRATOR
    enter: bool = False
    """The vhost of the path must be open to the user."""
    form: type[Form] | None = None
    """What the plan reads of a body."""
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of a success, the commonest first."""
        if self.plan is _import:
            return (204, 200)
        return (201, 204) if self.method == "PUT" else (204,)


def run(write: Write, reading: Reading, path: Path, said: Said) -> Planned:
    """The plan. Refused as rights and body demand."""
    reading.principal.require(write.right)
    if write.enter:
        reading.principal.enter(path["vhost"])
    return write.plan(reading, path, said)


def _made(command: c.AnyCommand, existed: bool) -> Planned:
    if not existed:
        for name in ("name", "component", "exchange"):
            check_new_name(getattr(command, name, ""))
    return Planned([command], 204 if existed else 201)


def _put(
    make: Callable[[Said, int, Path], c.AnyCommand],
    there: Callable[[Reading, Path], object],
    check: Callable[[Reading, Path], None] = lambda _r, _p: None,
) -> Plan:
    """A thing that a path names: new, or in the place of what is `there`."""

    def plan(r: Reading, p: Path, said: Said) -> Planned:
        check(r, p)
        return _made(make(said, r.now_ms, p), bool(there(r, p)))

    return plan


def _delete(
    make: Callable[[int, Path], c.AnyCommand],
    there: Callable[[Reading, Path], object],
    check: Callable[[Reading, Path], None] = lambda _r, _p: None,
) -> Plan:
    """Refused (404) when it is not there."""

    def plan(r: Reading, p: Path, _said: Said) -> Planned:
        check(r, p)
        if not there(r, p):
            raise object_not_found()
        return Planned([make(r.now_ms, p)])

    return plan


# -- vhosts, users, permissions -------------------------------------------------------------------------------


def _put_vhost(r: Reading, p: Path, said: Said) -> Planned:
    existing = r.map.vhost(p["vhost"])
    command = bodies.Vhost.of(said).command(r.now_ms, p["vhost"])
    if existing is not None and set(said) == {"tracing"}:  # a switch says nothing of the rest
        command = replace(command, only=("tracing",))
    planned = _made(command, existing is not None)
    if existing is None and r.principal.account:  # as in RabbitMQ, whose clients make a vhost and go on to use it
        every = bodies.Permission(configure=".*", write=".*", read=".*")
        planned.commands.append(every.command(r.now_ms, p["vhost"], r.principal.account))
    return planned


def _start_vhost(r: Reading, p: Path, _said: Said) -> Planned:
    """Nothing is to be done: a vhost runs wherever a node does."""
    settings.vhost_named(r, p["vhost"])
    if not r.replica.running(p["node"], r.now_ms):
        raise bad_request(f"Request to node {p['node']} failed with nodedown")
    return Planned([])


def _put_user(r: Reading, p: Path, said: Said) -> Planned:
    existed = r.map.user(p["user"]) is not None
    command, password = bodies.User.of(said).command(r.now_ms, p["user"], existed)
    planned = _made(command, existed)
    if password is not None:
        planned.passwords = [(0, password)]
    return planned


def _delete_users(r: Reading, _p: Path, said: Said) -> Planned:
    names = bodies.Users.of(said).users
    for name in names:
        if r.map.user(name) is None:
            raise bad_request(["no_such_user", name])
    return Planned([c.DeleteUser(at_ms=r.now_ms, name=name) for name in names])


def _known(r: Reading, p: Path) -> None:
    if r.map.vhost(p["vhost"]) is None or r.map.user(p["user"]) is None:
        raise bad_request("vhost_or_user_not_found")


def _topic_permissions(r: Reading, p: Path) -> list[str]:
    held = r.map.topic_permissions()
    return [entry.exchange for entry in held if (entry.user, entry.vhost) == (p["user"], p["vhost"])]


def _put_topic_permission(r: Reading, p: Path, said: Said) -> Planned:
    _known(r, p)
    command = bodies.TopicPermission.of(said).command(r.now_ms, **p)
    return _made(command, command.exchange in _topic_permissions(r, p))


_delete_topic_permission: Final = _delete(
    lambda at_ms, p: c.ClearTopicPermission(at_ms=at_ms, **p),
    lambda r, p: p["exchange"] in _topic_permissions(r, p) if "exchange" in p else _topic_permissions(r, p),
)

# -- policies, parameters, limits -----------------------------------------------------------------------------

POLICYMAKERS_BRIDGE: Final = "policymakers_set_bridges"
_OF_OTHERS: Final = (settings.POLICY_COMPONENT, settings.OPERATOR_POLICY_COMPONENT, settings.LIMITS_COMPONENT)


def _policy_there(operator: bool) -> Callable[[Reading, Path], bool]:
    return lambda r, p: p["name"] in r.policies(p["vhost"])[operator]


def _parameter_place(p: Path) -> dict[str, str]:
    """A path of global parameters has the name alone."""
    return {"vhost": settings.GLOBAL, "component": settings.GLOBAL, **p}


def _no_component_of_others(r: Reading, p: Path) -> None:
    component = p.get("component", settings.GLOBAL)
    if component in _OF_OTHERS:
        raise bad_request(f"component '{component}' has a path of its own")
    _may_bridge(r, p)


def _may_bridge(r: Reading, p: Path) -> None:
    """A bridge lets nodes connect to anywhere, with files of theirs: so it is an administrator's to put or delete one,
    unless one has set the global parameter POLICYMAKERS_BRIDGE."""
    if p.get("component") != SHOVEL or r.principal.has(ADMINISTRATOR):
        return
    relaxed = r.map.parameter(settings.GLOBAL, settings.GLOBAL, POLICYMAKERS_BRIDGE)
    if relaxed is None or relaxed.value is not True:
        raise not_authorised(
            f"bridges (component '{SHOVEL}') are set by administrators: one may set the global parameter "
            f"'{POLICYMAKERS_BRIDGE}' to true"
        )


def _put_cluster_name(r: Reading, _p: Path, said: Said) -> Planned:
    name = bodies.ClusterName.of(said).name
    check_new_name(name)
    return Planned([bodies.Parameter(value=name).command(r.now_ms, settings.GLOBAL, settings.GLOBAL, "cluster_name")])


def _put_vhost_limit(r: Reading, p: Path, said: Said) -> Planned:
    settings.vhost_named(r, p["vhost"])
    return Planned([bodies.vhost_limit_command(r.now_ms, **p, value=bodies.Limit.of(said).value)])


def _put_user_limit(r: Reading, p: Path, said: Said) -> Planned:
    accounts.user_named(r, p["user"])
    return Planned([bodies.user_limit_command(r.now_ms, **p, value=bodies.Limit.of(said).value)])


# -- imports and queues ---------------------------------------------------------------------------------------


def _import(r: Reading, p: Path, said: Said) -> Planned:
    draft = definitions.drafted(said, r.now_ms, p.get("vhost"), skip=r.query.get("skip_unsupported") == "true")
    if r.query.get("dry_run") == "true":
        return Planned([], whole=True, answer=definitions.trial(r.replica.map, draft))
    draft.ready()
    return Planned(list(draft.commands), passwords=draft.passwords, whole=True, pools=draft.pools)


def _pause_queue(paused: bool) -> Plan:
    def plan(r: Reading, p: Path, said: Said) -> Planned:
        staged = not paused and bodies.Resume.of(said).staged
        queue = staged_in(r, p["vhost"], p["name"]) if staged else r.map.queue(p["vhost"], p["name"])
        if queue is None:
            raise object_not_found()
        r.principal.check(p["vhost"], "configure", "queue", p["name"])
        if paused:
            require_unlocked(queue)
        return Planned([c.PauseQueue(at_ms=r.now_ms, **p, paused=paused, staging=staged)])

    return plan


def _pool(make: Callable[[Reading, str, str], c.AnyCommand]) -> Plan:
    return lambda r, p, _said: Planned([make(r, p["vhost"], p["name"])])


def _group(word: GroupWord) -> Plan:
    make = pools.direction(word)
    return lambda r, p, _said: Planned([make(r, p["vhost"], p["name"], p["key"])])


_POOL: Final = "/api/pools/{vhost}/{name}"
_GROUP: Final = _POOL + "/groups/{key}"
_POLICY: Final = "/api/policies/{vhost}/{name}"
_OPERATOR_POLICY: Final = "/api/operator-policies/{vhost}/{name}"
_PARAMETER: Final = "/api/parameters/{component}/{vhost}/{name}"
_TOPIC_PERMISSION: Final = "/api/topic-permissions/{vhost}/{user}"
_put_parameter: Final = _put(
    lambda said, at_ms, p: bodies.Parameter.of(said).command(at_ms, **_parameter_place(p)),
    lambda r, p: r.map.parameter(**_parameter_place(p)),
    _no_component_of_others,
)
_delete_parameter: Final = _delete(
    lambda at_ms, p: c.DeleteParameter(at_ms=at_ms, **_parameter_place(p)),
    lambda r, p: r.map.parameter(**_parameter_place(p)),
    _may_bridge,
)
WRITES: Final[tuple[Write, ...]] = (
    Write("PUT", "/api/queues/{vhost}/{name}/pause", "Hand nothing out", _pause_queue(True), MANAGEMENT, True),
    Write("PUT", "/api/queues/{vhost}/{name}/resume", "Hand out again", _pause_queue(False), MANAGEMENT, True,
          bodies.Resume),
    Write("PUT", _POOL, "Declare a worker pool", _put(
        lambda said, at_ms, p: pools.declaration(said, at_ms, **p), lambda r, p: r.map.pools.find(**p)),
        enter=True, form=pools.Declaration),
    Write("POST", _POOL + "/set", "Change settings of a worker pool: those that are said",
          lambda r, p, said: Planned(pools.change(r, said, **p)), enter=True, form=pools.Settings),
    Write("POST", _POOL + "/pause", "Start nothing in a worker pool", _pool(pools.pause(True)), enter=True),
    Write("POST", _POOL + "/resume", "Start again in a worker pool", _pool(pools.pause(False)), enter=True),
    Write("POST", _GROUP + "/start", "Keep a worker for a key of a pool", _group("start"), enter=True),
    Write("POST", _GROUP + "/stop", "Let the workers of a key finish and end", _group("stop"), enter=True),
    Write("POST", _GROUP + "/retry", "Try the starts of a key again at once", _group("retry"), enter=True),
    Write("POST", _GROUP + "/pin", "Keep the group of a key whatever happens", _group("pin"), enter=True),
    Write("POST", _GROUP + "/unpin", "Let the group of a key end when it is idle", _group("unpin"), enter=True),
    Write("POST", _POOL + "/workers/{id}/stop", "Let a worker of a pool finish what it holds and end",
          lambda r, p, _said: Planned(pools.worker_stop(r, **p)), enter=True),
    Write("DELETE", _POOL, "Delete a worker pool; with ?force=true also while it has groups, or requests wait",
          _pool(pools.deletion), enter=True),
    Write("PUT", "/api/vhosts/{vhost}", "Make or change a vhost", _put_vhost, form=bodies.Vhost),
    Write("DELETE", "/api/vhosts/{vhost}", "Delete a vhost and all in it", _delete(
        lambda at_ms, p: c.DeleteVhost(at_ms=at_ms, name=p["vhost"]), lambda r, p: r.map.vhost(p["vhost"]))),
    Write("POST", "/api/vhosts/{vhost}/start/{node}", "Start a vhost at a node; it runs there already", _start_vhost),
    Write("POST", "/api/users/bulk-delete", "Delete users", _delete_users, form=bodies.Users),
    Write("PUT", "/api/users/{user}", "Make or change a user", _put_user, form=bodies.User),
    Write("DELETE", "/api/users/{user}", "Delete a user", _delete(
        lambda at_ms, p: c.DeleteUser(at_ms=at_ms, name=p["user"]), lambda r, p: r.map.user(p["user"]))),
    Write("PUT", "/api/permissions/{vhost}/{user}", "Let a user into a vhost", _put(
        lambda said, at_ms, p: bodies.Permission.of(said).command(at_ms, **p),
        lambda r, p: r.map.permission(**p), _known), form=bodies.Permission),
    Write("DELETE", "/api/permissions/{vhost}/{user}", "Close a vhost to a user", _delete(
        lambda at_ms, p: c.ClearPermission(at_ms=at_ms, **p), lambda r, p: r.map.permission(**p))),
    Write("PUT", _TOPIC_PERMISSION, "Set a topic permission", _put_topic_permission, form=bodies.TopicPermission),
    Write("DELETE", _TOPIC_PERMISSION, "Clear topic permissions", _delete_topic_permission),
    Write("DELETE", _TOPIC_PERMISSION + "/{exchange}", "Clear one topic permission", _delete_topic_permission),
    Write("PUT", _POLICY, "Set a policy", _put(
        lambda said, at_ms, p: bodies.Policy.of(said).command(at_ms, **p), _policy_there(False)),
        POLICYMAKER, True, bodies.Policy),
    Write("DELETE", _POLICY, "Delete a policy", _delete(
        lambda at_ms, p: c.DeletePolicy(at_ms=at_ms, **p), _policy_there(False)), POLICYMAKER, True),
    Write("PUT", _OPERATOR_POLICY, "Set an operator policy", _put(
        lambda said, at_ms, p: bodies.OperatorPolicy.of(said).command(at_ms, **p), _policy_there(True)),
        enter=True, form=bodies.OperatorPolicy),
    Write("DELETE", _OPERATOR_POLICY, "Delete an operator policy", _delete(
        lambda at_ms, p: c.DeleteOperatorPolicy(at_ms=at_ms, **p), _policy_there(True)), enter=True),
    Write("PUT", _PARAMETER, "Set a parameter", _put_parameter, POLICYMAKER, True, bodies.Parameter),
    Write("DELETE", _PARAMETER, "Delete a parameter", _delete_parameter, POLICYMAKER, True),
    Write("PUT", "/api/global-parameters/{name}", "Set a global parameter", _put_parameter, form=bodies.Parameter),
    Write("DELETE", "/api/global-parameters/{name}", "Delete a global parameter", _delete_parameter),
    Write("PUT", "/api/cluster-name", "Name the cluster", _put_cluster_name, form=bodies.ClusterName),
    Write("PUT", "/api/vhost-limits/{vhost}/{name}", "Set a limit of a vhost", _put_vhost_limit, form=bodies.Limit),
    Write("DELETE", "/api/vhost-limits/{vhost}/{name}", "Take off a limit of a vhost", _delete(
        lambda at_ms, p: bodies.vhost_limit_command(at_ms, **p, value=None),
        lambda r, p: p["name"] in settings.limits_of(r.map.vhost_limits(p["vhost"])))),
    Write("PUT", "/api/user-limits/{user}/{name}", "Set a limit of a user", _put_user_limit, form=bodies.Limit),
    Write("DELETE", "/api/user-limits/{user}/{name}", "Take off a limit of a user", _delete(
        lambda at_ms, p: bodies.user_limit_command(at_ms, **p, value=None),
        lambda r, p: p["name"] in accounts.limits_of(accounts.user_named(r, p["user"]).limits))),
    Write("POST", "/api/definitions", "Import definitions, all or none", _import,
          body_bytes_max=bodies.DEFINITIONS_BYTES_MAX),
    Write("POST", "/api/definitions/{vhost}", "Import definitions into a vhost, all or none", _import, enter=True,
          body_bytes_max=bodies.DEFINITIONS_BYTES_MAX),
)  # fmt: skip
