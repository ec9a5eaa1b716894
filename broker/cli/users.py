"""`clusterbroker users`, `permissions`, `topic-permissions` and `user-limits` (waits).

On the node's own machine most of it works without a management API, and while the node does not run: then the wiring
log in the data directory is changed. Passwords are typed at a terminal, or are the first line of standard input.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import typer

from clusterbroker.broker.cli.commands import listed, listing, operation, showing
from clusterbroker.broker.cli.complete import vhosts as complete_vhosts
from clusterbroker.broker.cli.exit_codes import USAGE, Failed
from clusterbroker.broker.cli.operator_door import known_user
from clusterbroker.broker.cli.parameters import OfUser, Replace, UserName, VhostName, new_password
from clusterbroker.broker.cli.tables import ABSENT, Column, Document, Table, pairs, pattern, text
from clusterbroker.broker.cli.target import Target

app = typer.Typer(no_args_is_help=True, help="Users and their tags.")
permissions = typer.Typer(no_args_is_help=True, help="Permissions of users in a vhost: configure, write, read.")
topic_permissions = typer.Typer(no_args_is_help=True, help="Permissions for routing keys of a topic exchange.")
limits = typer.Typer(no_args_is_help=True, help="Limits of connections and channels of a user.")


def grants(value: Any) -> str:
    """Permissions on one line."""
    told = [
        " ".join([text(one["vhost"]), *([text(one["exchange"])] if "exchange" in one else []), *_patterns(one)])
        for one in value
    ]
    return "; ".join(told) or ABSENT


def _patterns(permission: Document) -> list[str]:
    return [f"{name}={pattern(permission[name])}" for name in ("configure", "write", "read") if name in permission]


USERS = Table((Column("name"), Column("tags"), Column("limits", show=pairs), Column("hashing_algorithm", wide=True)))
USER = Table((*USERS.columns, Column("permissions", show=grants), Column("topic_permissions", show=grants)))
PERMISSIONS = Table(
    (
        Column("user"),
        Column("vhost"),
        Column("configure", show=pattern),
        Column("write", show=pattern),
        Column("read", show=pattern),
    ),
    name="user",
)
TOPIC_PERMISSIONS = Table(
    (Column("user"), Column("vhost"), Column("exchange"), Column("write", show=pattern), Column("read", show=pattern)),
    name="user",
)
LIMITS = Table((Column("user"), Column("limits", "value", pairs)), name="user")

Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", "--tags", help="administrator, monitoring, policymaker, management (repeatable)"),
]
Password = Annotated[
    str | None,
    typer.Argument(
        metavar="[PASSWORD]",
        help="Visible to other users; better typed at the prompt, or the first line of standard input.",
    ),
]
Pattern = Annotated[str, typer.Argument(help="A regular expression over names; '' matches none.")]
FOUR: Final = ("VHOST", "CONFIGURE", "WRITE", "READ")
Patterns = Annotated[
    list[str],
    typer.Argument(
        metavar="VHOST CONFIGURE WRITE READ", help="Regular expressions over names; '' matches none. VHOST or --vhost."
    ),
]
InVhost = Annotated[
    str | None, typer.Option("--vhost", "-p", help="In place of VHOST.", autocompletion=complete_vhosts)
]
Limit = Annotated[Literal["max-connections", "max-channels"], typer.Argument()]


# -- users ------------------------------------------------------------------------------------------------------


@listing(app, "list", USERS)
def user_list(reach: Target) -> list[Document]:
    """All users and their tags."""
    return [_public(user) for user in reach.rows("user.list")]


def _public(user: Document) -> Document:
    return {name: value for name, value in user.items() if name != "password_hash"}


@showing(app, "show", USER)
def user_show(reach: Target, user: UserName) -> Document:
    """One user, with permissions."""
    api = reach.api
    found = _public(api.get("/api/users/{}", user))
    found["permissions"] = api.get("/api/users/{}/permissions", user)
    found["topic_permissions"] = api.get("/api/users/{}/topic-permissions", user)
    return found


@listing(app, "lonely", USERS, hidden=True)
@listing(app, "without-permissions", USERS)
def user_without_permissions(reach: Target) -> list[Document]:
    """Users without permissions in any vhost."""
    return [_public(user) for user in reach.api.get("/api/users/without-permissions")]


@operation(app, "create", hidden=True)
@operation(app, "add")
def user_add(reach: Target, name: str, password: Password = None, tag: Tags = None, replace: Replace = False) -> str:
    """Create a user."""
    reach.change("user.add", name=name, password=new_password(password, name), tags=tag or [], replace=replace)
    return f"created user '{name}'"


@operation(app, "password")
def user_password(reach: Target, name: UserName, password: Password = None) -> str:
    """Change a user's password."""
    reach.change("user.password", name=name, password=new_password(password, name))
    return f"changed the password of user '{name}'"


@operation(app, "tags")
def user_tags(
    reach: Target,
    name: UserName,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="The new tags.")] = None,
) -> str:
    """Replace a user's tags."""
    known_user(reach.api, {"name": name})
    reach.api.put("/api/users/{}", name, body={"tags": tags or []})
    return f"user '{name}' has the tags: {', '.join(tags or []) or 'none'}"


@operation(app, "delete")
def user_delete(reach: Target, names: Annotated[list[str], typer.Argument(metavar="USER...")]) -> str:
    """Delete users and their permissions."""
    for name in names:
        reach.change("user.delete", name=name)
    return f"deleted: {', '.join(names)}"


# -- permissions ------------------------------------------------------------------------------------------------


@listing(permissions, "list", PERMISSIONS)
def permission_list(
    reach: Target,
    user: OfUser = None,
    vhost: Annotated[str | None, typer.Option("--vhost", help="Only in this virtual host.")] = None,
) -> list[Document]:
    """All permissions."""
    if user is not None and vhost is not None:
        return [reach.api.document("/api/permissions/{}/{}", vhost, user)]
    if user is None and vhost is None:
        return reach.rows("permission.list")
    return _granted(reach, "permissions", user, vhost)


def _granted(
    reach: Target, what: Literal["permissions", "topic-permissions"], user: str | None, vhost: str | None
) -> list[Document]:
    """Those of a user, or in a vhost."""
    if user is not None:
        return reach.api.documents("/api/users/{}/" + what, user)
    assert vhost is not None, "one of the two was said"
    return reach.api.documents("/api/vhosts/{}/" + what, vhost)


@operation(app, "permit", hidden=True)
@operation(permissions, "set")
def permission_set(reach: Target, user: UserName, patterns: Patterns, of_vhost: InVhost = None) -> str:
    """Set a user's permissions in a vhost: three regular expressions over names of queues and exchanges."""
    vhost, configure, write, read = _in_vhost(patterns, of_vhost)
    reach.change("permission.set", user=user, vhost=vhost, configure=configure, write=write, read=read)
    return f"granted user '{user}' access to vhost '{vhost}'"


def _in_vhost(patterns: list[str], vhost: str | None) -> list[str]:
    """A vhost and three patterns. Failed (USAGE)."""
    said = patterns if vhost is None else [vhost, *patterns]
    if len(said) != len(FOUR):
        raise Failed(f"say USER {' '.join(FOUR)}, or USER {' '.join(FOUR[1:])} with --vhost", USAGE)
    return said


@operation(permissions, "clear")
def permission_clear(reach: Target, user: UserName, vhost: VhostName) -> str:
    """Remove a user's permissions in a vhost."""
    reach.change("permission.clear", user=user, vhost=vhost)
    return f"removed the permissions of user '{user}' in vhost '{vhost}'"


@listing(topic_permissions, "list", TOPIC_PERMISSIONS)
def topic_permission_list(
    reach: Target,
    user: OfUser = None,
    vhost: Annotated[str | None, typer.Option("--vhost", help="Only in this virtual host.")] = None,
) -> list[Document]:
    """All topic permissions."""
    if user is not None and vhost is not None:
        return reach.api.documents("/api/topic-permissions/{}/{}", vhost, user)
    if user is None and vhost is None:
        return reach.api.documents("/api/topic-permissions")
    return _granted(reach, "topic-permissions", user, vhost)


@operation(app, "permit-topic", hidden=True)
@operation(permissions, "topic", hidden=True)
@operation(topic_permissions, "set")
def topic_permission_set(
    reach: Target, user: UserName, vhost: VhostName, exchange: str, write: Pattern, read: Pattern
) -> str:
    """Set a user's topic permissions: two regular expressions over routing keys."""
    reach.change("permission.topic", user=user, vhost=vhost, exchange=exchange, write=write, read=read)
    return f"'{user}' has a permission on the routing keys of '{exchange}'"


@operation(topic_permissions, "clear")
def topic_permission_clear(
    reach: Target,
    user: UserName,
    vhost: VhostName,
    exchange: Annotated[str | None, typer.Argument(help="Of this exchange; none: of all.")] = None,
) -> str:
    """Remove topic permissions: all routing keys are allowed again."""
    if exchange is None:
        reach.api.delete("/api/topic-permissions/{}/{}", vhost, user)
    else:
        reach.api.delete("/api/topic-permissions/{}/{}/{}", vhost, user, exchange)
    return f"'{user}' has no topic permission on {exchange or 'any exchange'} in vhost '{vhost}'"


# -- limits -----------------------------------------------------------------------------------------------------


listed(limits, "list", LIMITS, "/api/user-limits", "All limits of users.", OfUser)


@operation(limits, "set")
def user_limit_set(reach: Target, user: UserName, limit: Limit, value: int) -> str:
    """Set a limit of a user."""
    reach.api.put("/api/user-limits/{}/{}", user, limit, body={"value": value})
    return f"'{user}' has {limit} {value}"


@operation(limits, "clear")
def user_limit_clear(reach: Target, user: UserName, limit: Limit) -> str:
    """Remove a limit."""
    reach.api.delete("/api/user-limits/{}/{}", user, limit)
    return f"'{user}' has no {limit}"
