"""The operator's door of a running node: a Unix socket in the data directory, for its owner only (waits).

Each line is a JSON object with `do` and its arguments, each answer a line: {"ok": true, ...} or {"ok": false,
"error": "..."}. Who may open the socket may read the data directory anyway, so nobody is asked for a password.
Passwords come in clear, are hashed off the loop, and are never written anywhere.

    user.add NAME PASSWORD [tags]   user.delete NAME          user.list
    vhost.add NAME                  vhost.delete NAME         vhost.list
    permission.set USER VHOST CONFIGURE WRITE READ            permission.clear USER VHOST     permission.list
    policy.set VHOST NAME PATTERN DEFINITION [apply_to, priority]   policy.delete VHOST NAME  policy.list
    status                          alarm.set memory|disk on|off   (a drill: raises the alarm whatever is measured)

The same commands run on the wiring log of a stopped node (`broker.cli.administration`), which is why they are a
table of functions that take an `Operator` and not methods of the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cluster import commands as c
from cluster.passwords import SCRYPT, hashed
from cluster.state import Applied
from cluster.view import ClusterView

if TYPE_CHECKING:
    from broker.server.shell import NodeShell

NAME = "admin.sock"
LINE_BYTES_MAX = 1 << 20

Facts = dict[str, Any]


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


async def _user_add(operator: Operator, asked: Facts) -> Facts:
    name, password = _text(asked, "name"), _text(asked, "password")
    tags = asked.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Refused("'tags' is a list of words")
    try:
        stored = await asyncio.to_thread(hashed, password, cost=operator.password_cost)
    except ValueError as error:
        raise Refused(str(error)) from error
    return await _ordered(operator, c.PutUser(name=name, password_hash=stored, hash_algorithm=SCRYPT, tags=tuple(tags)))


async def _user_delete(operator: Operator, asked: Facts) -> Facts:
    name = _text(asked, "name")
    if operator.map.user(name) is None:
        raise Refused(f"there is no user '{name}'")
    return await _ordered(operator, c.DeleteUser(name=name))


async def _user_list(operator: Operator, _: Facts) -> Facts:
    return {"users": [{"name": user.name, "tags": list(user.tags)} for user in operator.map.users()]}


async def _vhost_add(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.AddVhost(name=_text(asked, "name"), description=_text(asked, "description", "")))


async def _vhost_delete(operator: Operator, asked: Facts) -> Facts:
    name = _text(asked, "name")
    if operator.map.vhost(name) is None:
        raise Refused(f"there is no vhost '{name}'")
    return await _ordered(operator, c.DeleteVhost(name=name))


async def _vhost_list(operator: Operator, _: Facts) -> Facts:
    vhosts = operator.map.vhosts()
    return {"vhosts": [{"name": vhost.name, "description": vhost.description} for vhost in vhosts]}


async def _permission_set(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(
        operator,
        c.SetPermission(
            user=_text(asked, "user"),
            vhost=_text(asked, "vhost", "/"),
            configure=_text(asked, "configure", ""),
            write=_text(asked, "write", ""),
            read=_text(asked, "read", ""),
        ),
    )


async def _permission_clear(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.ClearPermission(user=_text(asked, "user"), vhost=_text(asked, "vhost", "/")))


async def _permission_list(operator: Operator, _: Facts) -> Facts:
    fields = ("user", "vhost", "configure", "write", "read")
    return {"permissions": [{field: getattr(p, field) for field in fields} for p in operator.map.permissions()]}


async def _policy_set(operator: Operator, asked: Facts) -> Facts:
    definition, priority = asked.get("definition"), asked.get("priority", 0)
    if not isinstance(definition, dict) or not isinstance(priority, int):
        raise Refused("'definition' is an object and 'priority' a number")
    apply_to: Any = _text(asked, "apply_to", "all")
    if apply_to not in ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"):
        raise Refused(f"'apply_to' cannot be '{apply_to}'")
    return await _ordered(
        operator,
        c.PutPolicy(
            vhost=_text(asked, "vhost", "/"),
            name=_text(asked, "name"),
            pattern=_text(asked, "pattern"),
            definition=definition,
            apply_to=apply_to,
            priority=priority,
        ),
    )


async def _policy_delete(operator: Operator, asked: Facts) -> Facts:
    return await _ordered(operator, c.DeletePolicy(vhost=_text(asked, "vhost", "/"), name=_text(asked, "name")))


async def _policy_list(operator: Operator, _: Facts) -> Facts:
    fields = ("vhost", "name", "pattern", "definition", "apply_to", "priority")
    policies = [policy for vhost in operator.map.vhosts() for policy in operator.map.policies(vhost.name)]
    return {"policies": [{field: getattr(policy, field) for field in fields} for policy in policies]}


WIRING: dict[str, Callable[[Operator, Facts], Awaitable[Facts]]] = {
    "user.add": _user_add,
    "user.delete": _user_delete,
    "user.list": _user_list,
    "vhost.add": _vhost_add,
    "vhost.delete": _vhost_delete,
    "vhost.list": _vhost_list,
    "permission.set": _permission_set,
    "permission.clear": _permission_clear,
    "permission.list": _permission_list,
    "policy.set": _policy_set,
    "policy.delete": _policy_delete,
    "policy.list": _policy_list,
}


async def _alarm_set(shell: NodeShell, asked: Facts) -> Facts:
    name, raised = _text(asked, "name"), asked.get("raised")
    if name not in shell.alarms.names or not isinstance(raised, bool):
        raise Refused(f"an alarm is one of {', '.join(shell.alarms.names)}, and 'raised' true or false")
    shell.alarms.set(name, "forced by the operator", raised)
    return {"alarms": list(shell.alarms.raised)}


async def _status(shell: NodeShell, _: Facts) -> Facts:
    from broker.server.alarms import resident_bytes

    node = shell.node
    queues = list(node.queues.values())
    return {
        "name": node.options.name,
        "incarnation": node.options.incarnation,
        "listeners": [f"{listener.protocol} {where}" for listener in shell.listeners for where in listener.addresses],
        "connections": len(node.connections),
        "channels": sum(len(connection.channels) for connection in node.connections.values()),
        "vhosts": len(node.vhosts),
        "queues": len(queues),
        "messages_ready": sum(queue.ring.ready for queue in queues),
        "messages_unacknowledged": sum(queue.ring.unacked for queue in queues),
        "alarms": list(shell.alarms.raised),
        "resident_bytes": resident_bytes(),
        "memory_limit_bytes": shell.alarms.memory_limit_bytes,
    }


RUNNING: dict[str, Callable[[NodeShell, Facts], Awaitable[Facts]]] = {
    "alarm.set": _alarm_set,
    "status": _status,
}


async def carry_out(operator: Operator, asked: Facts, shell: NodeShell | None = None) -> Facts:
    """Raises Refused."""
    do = asked.get("do")
    if isinstance(do, str) and do in WIRING:
        return await WIRING[do](operator, asked)
    if isinstance(do, str) and do in RUNNING:
        if shell is None:
            raise Refused(f"'{do}' needs a running node")
        return await RUNNING[do](shell, asked)
    raise Refused(f"'{do}' is not one of {', '.join([*WIRING, *RUNNING])}")


class Running:
    """The Operator of a running node."""

    __slots__ = ("_shell",)

    def __init__(self, shell: NodeShell) -> None:
        self._shell = shell

    @property
    def map(self) -> ClusterView:
        return self._shell.node.map

    @property
    def password_cost(self) -> int:
        return self._shell.options.password_cost

    async def order(self, command: c.AnyCommand) -> Applied:
        return await self._shell.propose(command)


def short_path(directory: Path, fd: int) -> str:
    """The socket's path by way of the open directory: a socket's name may have 107 bytes only, a directory's more."""
    path = str(directory / NAME)
    return path if len(os.fsencode(path)) < 100 else f"/proc/self/fd/{fd}/{NAME}"


@contextlib.contextmanager
def opened(directory: Path) -> Any:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class AdminSocket:
    """Serves one data directory. The directory's lock says that a socket found there is a dead one."""

    __slots__ = ("_operator", "_path", "_server", "_shell", "_tasks")

    def __init__(self, shell: NodeShell, path: Path) -> None:
        self._shell = shell
        self._path = path
        self._operator = Running(shell)
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, shell: NodeShell, directory: Path) -> AdminSocket:
        self = cls(shell, directory / NAME)
        self._path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with opened(directory) as fd:
                bound.bind(short_path(directory, fd))
            os.chmod(self._path, 0o600)  # before `listen`: nobody could connect so far
            bound.setblocking(False)
            self._server = await asyncio.start_unix_server(self._serve, sock=bound, limit=LINE_BYTES_MAX)
        except BaseException:
            bound.close()
            raise
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served by tasks"
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> Facts:
        try:
            asked = json.loads(line)
            if not isinstance(asked, dict):
                raise Refused("a request is a JSON object")
            return {"ok": True, **await carry_out(self._operator, asked, self._shell)}
        except (Refused, ValueError) as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            self._shell.log.crashed(NAME, error)
            return {"ok": False, "error": "the broker made a mistake; see its log"}

    async def close(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        self._path.unlink(missing_ok=True)


def ask(directory: Path, asked: Facts, timeout_s: float = 10.0) -> Facts | None:
    """Puts one request to the node that runs in the directory; None when none runs there. Blocks."""
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(opened(directory))
            line = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            line.settimeout(timeout_s)
            line.connect(short_path(directory, fd))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return None
        line.sendall(json.dumps(asked).encode() + b"\n")
        with line.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b'{"ok": false, "error": "the node went away"}')
    assert isinstance(answer, dict), "an answer is an object"
    return answer
