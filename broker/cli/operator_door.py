"""Operations that two doors know: `control.sock` of a node's data directory, and the management API (waits).

Of a node that is stopped its wiring log answers in place of the socket (`stopped_node`). A command names an operation
and its arguments, as the socket has them (`broker.server.control.operations`); `Target.change` chooses the door.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clusterbroker.broker.cli.exit_codes import FAILED, NOT_ALLOWED, UNREACHABLE, Failed
from clusterbroker.broker.server.control.client import ask

if TYPE_CHECKING:
    from clusterbroker.broker.cli.api import Api

Facts = dict[str, Any]
_NAME: Final = re.compile(r"\{(\w+)\}")


def performed(
    directory: Path,
    operation: str,
    *,
    patience_s: float = 30.0,
    meanwhile: AbstractContextManager[None] | None = None,
    **arguments: Any,
) -> Facts:
    """The answer of the node, or of its wiring log. Failed when it is no.

    `meanwhile`: what is done until the answer is there.
    """
    try:
        with meanwhile or nullcontext():
            answer = ask(directory, operation, arguments, patience_s)
    except TimeoutError:
        raise Failed(
            f"the node has not answered '{operation}' within {patience_s:g} s: look at its log", UNREACHABLE
        ) from None
    except OSError as error:
        raise unasked(directory, error) from None
    if answer is None:
        from clusterbroker.broker.cli.stopped_node import answered

        answer = answered(directory, operation, arguments)
    if not answer.pop("ok"):
        raise Failed(str(answer["error"]), FAILED)
    return answer


def unasked(directory: Path, error: OSError) -> Failed:
    """Why the node of a directory cannot be asked."""
    if not isinstance(error, PermissionError):
        return Failed(f"the node in {directory} cannot be asked: {error.strerror or error}", UNREACHABLE)
    return Failed(f"{foreign(directory)}, or --url for a management API", NOT_ALLOWED)


def foreign(place: Path) -> str:
    """Whose a file or directory is that may not be entered: of the innermost part of its path that can be looked at."""
    for known in (place, *place.parents):
        try:
            owner = pwd.getpwuid(known.stat().st_uid).pw_name
        except PermissionError:
            continue
        except (OSError, KeyError):
            owner = "USER"
        return f"{known} belongs to another user: sudo -u {owner} clusterbroker ..."
    return f"{place} belongs to another user"


# -- the same by the management API


class Route(NamedTuple):
    """A request of the management API: the path has the names, and the body, or of a DELETE the query, all else."""

    method: str
    path: str
    before: Callable[[Api, Facts], None] = lambda _api, _arguments: None
    """Refuses, or changes the arguments. Failed."""
    socket: bool = True
    """`control.sock` has the operation as well."""

    def ask(self, api: Api, arguments: Facts) -> Facts:
        """Failed."""
        given = dict(arguments)
        self.before(api, given)
        names = tuple(str(given.pop(name)) for name in _NAME.findall(self.path))
        path, rest = _NAME.sub("{}", self.path), {FIELDS.get(name, name): value for name, value in given.items()}
        if self.method == "DELETE":
            api.delete(path, *names, query={name: "true" for name, value in rest.items() if value})
            return {}
        answer: Facts | None = (api.put if self.method == "PUT" else api.post)(path, *names, body=rest)
        return answer or {}


def _must_be_new(api: Api, arguments: Facts) -> None:
    if not arguments.pop("replace") and api.get_or_none("/api/users/{}", arguments["name"]) is not None:
        raise Failed(
            f"there is a user '{arguments['name']}' already: 'users password' changes its password, "
            "'users add --replace' its tags too"
        )


def known_user(api: Api, arguments: Facts) -> None:
    """Failed when there is no user `name`."""
    if api.get_or_none("/api/users/{}", arguments["name"]) is None:
        raise Failed(f"there is no user '{arguments['name']}'", FAILED)


def _of_this_node(api: Api, arguments: Facts) -> None:
    arguments["node"] = api.get("/api/overview")["node"]


FIELDS: Final = {"apply_to": "apply-to", "accept_loss": "accept-loss"}
"""Arguments that the API calls otherwise."""
USER, POLICY, QUEUE = "/api/users/{name}", "/api/policies/{vhost}/{name}", "/api/queues/{vhost}/{queue}"
PERMISSION, LIMIT = "/api/permissions/{vhost}/{user}", "/api/vhost-limits/{vhost}/{limit}"
ROUTES: Final[dict[str, Route]] = {
    "user.add": Route("PUT", USER, _must_be_new),
    "user.password": Route("PUT", USER, known_user),
    "user.delete": Route("DELETE", USER, known_user),
    "vhost.add": Route("PUT", "/api/vhosts/{name}"),
    "vhost.delete": Route("DELETE", "/api/vhosts/{name}"),
    "vhost.limit": Route("PUT", LIMIT),
    "permission.set": Route("PUT", PERMISSION),
    "permission.clear": Route("DELETE", PERMISSION),
    "permission.topic": Route("PUT", "/api/topic-permissions/{vhost}/{user}"),
    "policy.set": Route("PUT", POLICY),
    "policy.delete": Route("DELETE", POLICY),
    "operator-policy.set": Route("PUT", "/api/operator-policies/{vhost}/{name}"),
    "queues.pause": Route("PUT", QUEUE + "/pause"),
    "queues.resume": Route("PUT", QUEUE + "/resume"),
    "queues.move": Route("POST", QUEUE + "/move"),
    "queues.force-owner": Route("POST", QUEUE + "/force-owner"),
    "queues.rebalance": Route("POST", "/api/rebalance/queues"),
    "queues.delete-messages": Route("POST", QUEUE + "/messages/delete"),
    "queues.move-messages": Route("POST", QUEUE + "/messages/move", socket=False),
    "queues.replay-messages": Route("POST", QUEUE + "/messages/replay", socket=False),
    "drain": Route("POST", "/api/nodes/{node}/drain", _of_this_node),
    "leave": Route("DELETE", "/api/nodes/{member}"),
    "level.raise": Route("PUT", "/api/feature-level"),
}
NO_LIMIT: Final = Route("DELETE", LIMIT, lambda _, arguments: arguments.update(value=None))
"""Of a vhost: a negative one."""
LISTS: Final = {f"{one}.list": many for one, many in (
    ("user", "users"), ("vhost", "vhosts"), ("permission", "permissions"), ("policy", "policies")
)}  # fmt: skip
"""Short lists: the answer's field, and of the API the path."""


def requested(api: Api, operation: str, arguments: Facts) -> Facts:
    """By the management API. Failed."""
    removes = operation == "vhost.limit" and arguments["value"] < 0
    return (NO_LIMIT if removes else ROUTES[operation]).ask(api, arguments)
