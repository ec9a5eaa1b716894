"""Users, vhosts, permissions and policies from the command line, whether the node runs or not (waits).

A node that runs in the data directory is asked through its socket. Otherwise the directory is locked and its wiring
log changed here.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="CLUSTERBROKER_DATA_DIR", help="The node's data directory."),
]
Vhost = Annotated[str, typer.Option("--vhost", help="The virtual host.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DATA_DIR = Path("clusterbroker-data")


def perform(
    directory: Path,
    do: str,
    *,
    patience_s: float = 30.0,
    meanwhile: AbstractContextManager[None] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """The answer of the node, or of its wiring log; leaves with exit code 1 and one line when it is no.

    `meanwhile`: what is done until the answer is there.
    """
    from broker.server.admin import RUNNING, ask

    asked = {"do": do, **arguments}
    try:
        with meanwhile or nullcontext():
            answer = ask(directory, asked, patience_s)
    except TimeoutError:
        answer = {"ok": False, "error": f"the node has not answered '{do}' within {patience_s:g} s: look at its log"}
    if answer is None and do in RUNNING:
        answer = {"ok": False, "error": f"no node runs in {directory}"}
    elif answer is None:
        answer = _offline(directory, asked)
    if not answer.pop("ok"):
        typer.echo(f"clusterbroker: {answer['error']}", err=True)
        raise typer.Exit(1)
    return answer


def _offline(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    import os

    from broker.server.operations import Refused
    from cluster.errors import ClusterError
    from journal.errors import JournalError
    from journal.journal import lock_directory

    if (directory / "raft").exists():
        return {"ok": False, "error": f"{directory} is a cluster member's: start it, or ask another member"}
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = lock_directory(directory)
        try:
            return {"ok": True, **asyncio.run(_ordered(directory, asked))}
        finally:
            os.close(lock)
    except (Refused, ClusterError, JournalError, OSError) as error:
        return {"ok": False, "error": str(error)}


async def _ordered(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    from broker.server.operations import carry_out
    from cluster import commands as c
    from cluster.local_log import LocalLog
    from cluster.passwords import COST_DEFAULT
    from cluster.state import Applied
    from cluster.view import ClusterView

    loop = asyncio.get_running_loop()
    failed: asyncio.Future[Applied] = loop.create_future()
    log = LocalLog(directory / "wiring", call_soon=loop.call_soon_threadsafe, on_failure=failed.set_exception)

    class Stopped:
        """The Operator of a node that does not run."""

        map: ClusterView = log.map
        password_cost: int = COST_DEFAULT

        async def order(self, command: c.AnyCommand) -> Applied:
            applied: asyncio.Future[Applied] = loop.create_future()
            log.propose(command, applied.set_result)
            await asyncio.wait((applied, failed), return_when=asyncio.FIRST_COMPLETED)
            return (failed if failed.done() else applied).result()

    try:
        return await carry_out(Stopped(), asked)
    finally:
        log.close()


def _table(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        cells = (json.dumps(cell) if isinstance(cell, (dict, list)) else str(cell) for cell in row.values())
        typer.echo("\t".join(cells))


user = typer.Typer(no_args_is_help=True, help="Users and what they may do.")
vhost = typer.Typer(no_args_is_help=True, help="Virtual hosts.")
permission = typer.Typer(no_args_is_help=True, help="What users may configure, write and read in a vhost.")
policy = typer.Typer(no_args_is_help=True, help="Settings for all queues or exchanges whose name matches.")
alarm = typer.Typer(no_args_is_help=True, help="Drills: raise a resource alarm whatever is measured.")


Password = Annotated[str | None, typer.Argument(help="Asked for when it is left out.")]


def _typed(password: str | None) -> str:
    if password is not None:
        return password
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


@user.command("add")
def user_add(
    name: str,
    password: Password = None,
    tag: Annotated[list[str] | None, typer.Option(help="administrator, monitoring, ... (repeatable)")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Give one that is there this password and these tags.")] = (
        False
    ),
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Make a user."""
    perform(data_dir, "user.add", name=name, password=_typed(password), tags=tag or [], replace=replace)


@user.command("password")
def user_password(name: str, password: Password = None, data_dir: DataDir = DATA_DIR) -> None:
    """Give a user another password."""
    perform(data_dir, "user.password", name=name, password=_typed(password))


@user.command("delete")
def user_delete(name: str, data_dir: DataDir = DATA_DIR) -> None:
    """Delete a user and its permissions."""
    perform(data_dir, "user.delete", name=name)


@user.command("list")
def user_list(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All users and their tags."""
    _table(perform(data_dir, "user.list")["users"], as_json)


@permission.command("set")
@user.command("permit")
def permission_set(name: str, vhost: str, configure: str, write: str, read: str, data_dir: DataDir = DATA_DIR) -> None:
    """Give a user three regular expressions over names in a vhost."""
    perform(data_dir, "permission.set", user=name, vhost=vhost, configure=configure, write=write, read=read)


@permission.command("topic")
@user.command("permit-topic")
def permission_topic(name: str, vhost: str, exchange: str, write: str, read: str, data_dir: DataDir = DATA_DIR) -> None:
    """Give a user two regular expressions over the routing keys of a topic exchange."""
    perform(data_dir, "permission.topic", user=name, vhost=vhost, exchange=exchange, write=write, read=read)


@permission.command("clear")
def permission_clear(name: str, vhost: str, data_dir: DataDir = DATA_DIR) -> None:
    """Keep a user out of a vhost."""
    perform(data_dir, "permission.clear", user=name, vhost=vhost)


@permission.command("list")
def permission_list(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All permissions."""
    _table(perform(data_dir, "permission.list")["permissions"], as_json)


@vhost.command("add")
def vhost_add(name: str, description: str = "", data_dir: DataDir = DATA_DIR) -> None:
    """Make a vhost."""
    perform(data_dir, "vhost.add", name=name, description=description)


@vhost.command("delete")
def vhost_delete(name: str, data_dir: DataDir = DATA_DIR) -> None:
    """Delete a vhost and all that is in it."""
    perform(data_dir, "vhost.delete", name=name)


@vhost.command("limit")
def vhost_limit(name: str, limit: str, value: int, data_dir: DataDir = DATA_DIR) -> None:
    """Set max-queues or max-connections of a vhost; a negative number takes the limit away."""
    perform(data_dir, "vhost.limit", vhost=name, limit=limit, value=value)


@vhost.command("list")
def vhost_list(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All vhosts."""
    _table(perform(data_dir, "vhost.list")["vhosts"], as_json)


@policy.command("set")
def policy_set(
    name: str,
    pattern: str,
    definition: Annotated[str, typer.Argument(help='JSON, e.g. {"max-length": 1000}')],
    vhost: Vhost = "/",
    apply_to: Annotated[str, typer.Option(help="all, queues or exchanges")] = "all",
    priority: int = 0,
    operator: Annotated[bool, typer.Option("--operator", help="An operator policy: stronger than arguments.")] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Make or replace a policy."""
    try:
        wanted = json.loads(definition)
    except ValueError as error:
        raise typer.BadParameter(f"DEFINITION is not JSON: {error}") from error
    do = "operator-policy.set" if operator else "policy.set"
    more: dict[str, Any] = {} if operator else {"apply_to": apply_to}
    perform(data_dir, do, name=name, pattern=pattern, definition=wanted, vhost=vhost, priority=priority, **more)


@policy.command("delete")
def policy_delete(name: str, vhost: Vhost = "/", data_dir: DataDir = DATA_DIR) -> None:
    """Delete a policy."""
    perform(data_dir, "policy.delete", name=name, vhost=vhost)


@policy.command("list")
def policy_list(data_dir: DataDir = DATA_DIR, as_json: AsJson = False) -> None:
    """All policies."""
    _table(perform(data_dir, "policy.list")["policies"], as_json)


@alarm.command("set")
def alarm_set(
    name: str,
    raised: Annotated[str, typer.Argument(help="on or off")] = "on",
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Raise the memory or disk alarm (on), or take the drill back (off)."""
    if raised not in ("on", "off"):
        raise typer.BadParameter("say on or off")
    perform(data_dir, "alarm.set", name=name, raised=raised == "on")


@alarm.command("clear")
def alarm_clear(name: str, data_dir: DataDir = DATA_DIR) -> None:
    """Take the drill back."""
    perform(data_dir, "alarm.set", name=name, raised=False)


def limit(
    name: Annotated[str, typer.Argument(help="consumers-per-channel, queues or exchanges")],
    value: Annotated[int, typer.Argument(help="0: what was configured.", min=0)],
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Change a limit of the running node until it ends."""
    perform(data_dir, "limit.set", name=name, value=value)


def status(
    data_dir: DataDir = DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """What the running node holds: listeners, connections, queues, messages, alarms, memory."""
    facts = perform(data_dir, "status")
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name:24} {', '.join(map(str, value)) if isinstance(value, list) else value}")
