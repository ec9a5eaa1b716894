"""Worker pools of an embedded broker, and the foreman that starts their workers (waits: files, a process).

    Broker(pools={"core": {"max_length": 5}})             workers come by themselves; settings of the pool
    Broker(pools={"core": Core})                          a class of `clusterbroker_workers`
    Broker(pools={"core": "trains:Core"})                 likewise, by name; or "of/a/file.py:Core"
    Broker(pools={"core": ["./worker", "{key}"]})         a program and its arguments
    Broker(pools={"core": {"worker": Core, "max": 4, "environment": {"MODEL": "small"}}})

The foreman is the process that a started node has, with the driver `subprocess` and a config file of its own in a
temporary directory. It ends, with all workers, when the broker stops, and by itself when the broker's process is over
for whatever reason: its lifeline is closed then. The temporary directory goes with it.

Differences from the foreman of a started node: workers inherit the whole environment and the working directory, find
the modules that this process finds, and write to its standard error. They have GRACE_S to end, and one start that fails
is told to callers, unless the pool's settings say otherwise.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clusterbroker.broker.extras import is_there, wanting
from clusterbroker.broker.foreman import templates
from clusterbroker.broker.foreman.spec import RESERVED
from clusterbroker.broker.management.pools import SETTINGS, declaration
from clusterbroker.broker.server.foreman_desk import ForemanDesk
from clusterbroker.broker.server.foreman_process import ForemanProcess

if TYPE_CHECKING:
    import asyncio

    from clusterbroker.broker.server.log import NodeLog
    from clusterbroker.broker.server.shell import NodeShell
    from clusterbroker.cluster.wiring.map import Applied

PoolGiven: TypeAlias = Mapping[str, Any] | type | str | Sequence[str]

OF_WORKERS: Final = ("worker", "command", "environment", "directory")
GRACE_S: Final = 2
END_S: Final = 10.0
"""Of the foreman, beyond the grace of its workers; of one that follows it, should it hang, as long again."""
OWN_DEFAULTS: Final = {"start_failures_max": 1, "grace_s": GRACE_S}
"""Of pools whose workers the broker starts."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool."""

    name: str
    settings: dict[str, Any]
    """Of its declaration, `template` as well if it has one."""
    template: dict[str, Any] | None
    """The section of the config file; None: workers come by themselves."""


def planned(pools: Mapping[str, PoolGiven]) -> list[PoolPlan]:
    """Raises TypeError, ValueError, ModuleNotFoundError: one line."""
    return [_planned(name, given) for name, given in pools.items()]


def _planned(name: str, given: PoolGiven) -> PoolPlan:
    if isinstance(given, (type, str)):
        given = {"worker": given}
    elif not isinstance(given, Mapping):
        given = {"command": given}
    if unknown := given.keys() - {*SETTINGS, *OF_WORKERS}:
        known = ", ".join((*OF_WORKERS, *SETTINGS))
        raise TypeError(f"pool {name!r} has no setting {min(unknown)!r}: choose of {known}")
    settings = {key: value for key, value in given.items() if key in SETTINGS}
    of_workers = {key: value for key, value in given.items() if key in OF_WORKERS}
    if not of_workers:
        return PoolPlan(name, settings, None)
    if ("worker" in of_workers) == ("command" in of_workers):
        raise TypeError(f"pool {name!r}: give either a worker or a command")
    section = f"pool-{sha256(name.encode()).hexdigest()[:16]}" if templates.NAME.fullmatch(name) is None else name
    template = _template(name, of_workers)
    templates.template(section, template)  # raises BadTemplate, a ValueError
    return PoolPlan(name, {**OWN_DEFAULTS, **settings, "template": section}, template)


def _template(name: str, of_workers: Mapping[str, Any]) -> dict[str, Any]:
    environment = {**_search_path(), **of_workers.get("environment", {})}
    template: dict[str, Any] = {
        "driver": "subprocess",
        "command": _command(name, of_workers),
        "directory": str(Path(of_workers.get("directory", ".")).absolute()),
        "environment": environment,
        "env_pass": sorted(
            variable
            for variable in os.environ.keys() - environment
            if templates.VARIABLE.fullmatch(variable) and not variable.startswith(RESERVED)
        ),
    }
    if os.geteuid() == 0:
        template["user"] = pwd.getpwuid(0).pw_name
    return template


def _search_path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path))}


def _command(name: str, of_workers: Mapping[str, Any]) -> list[str]:
    if "command" in of_workers:
        command = of_workers["command"]
        if isinstance(command, str) or not isinstance(command, Iterable):
            raise TypeError(f"pool {name!r}: a command runs without a shell: give a list, ['program', 'argument']")
        return [os.fspath(word) for word in command]
    if not is_there("aio_pika"):
        raise ModuleNotFoundError(wanting("a worker of Broker(pools=...)", "aio-pika", "workers"))
    worker = of_workers["worker"]
    if isinstance(worker, type):
        worker = reference(worker)
    elif not isinstance(worker, str) or not all(worker.rpartition(":")):
        raise TypeError(f"pool {name!r}: {worker!r} is no worker: give a class, or 'module:Class'")
    return [sys.executable, "-P", "-m", "clusterbroker_workers", worker]  # by the search path alone


def reference(worker: type) -> str:
    """How a process of its own finds the class: "module:Class", or "FILE:Class" where no module of the search path has
    it, as in a script. Raises TypeError."""
    module, name = worker.__module__, worker.__qualname__
    if not callable(getattr(worker, "handle", None)):
        raise TypeError(f"{name} is no worker: derive it from clusterbroker_workers.Worker")
    if "." in name:
        raise TypeError(f"{name}: a process of its own cannot find it: define it at the top of its module")
    loaded = sys.modules.get(module)
    if module == "__main__":
        spec = getattr(loaded, "__spec__", None)
        if spec is not None:  # python -m
            return f"{spec.name}:{name}"
    elif _is_found(module, getattr(loaded, "__file__", None)):
        return f"{module}:{name}"
    file = getattr(loaded, "__file__", None)
    if file is None:
        raise TypeError(f"{name}: a process of its own cannot find it: define it in a file")
    return f"{Path(file).absolute()}:{name}"


def _is_found(module: str, file: str | None) -> bool:
    """Whether the search path leads to it."""
    top, _, below = module.partition(".")
    found = PathFinder.find_spec(top, sys.path)
    return found is not None and (bool(below) or found.origin == file)


def written(plans: Iterable[PoolPlan]) -> str:
    """A config file with their templates."""
    lines = []
    for plan in plans:
        if plan.template is not None:
            lines.append(f"[pools.{_toml(plan.settings['template'])}]")
            lines += [f"{name} = {_toml(value)}" for name, value in plan.template.items()]
    return "".join(f"{line}\n" for line in lines)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(name)} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


async def declared(shell: NodeShell, plans: Iterable[PoolPlan]) -> None:
    """Raises ValueError."""
    import asyncio

    for plan in plans:
        applied: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        shell.node.propose(declaration(plan.settings, shell.node.now_ms, "/", plan.name), applied.set_result)
        if (error := (await applied).error) is not None:
            raise ValueError(f"pool {plan.name!r}: {error}")


class Workers:
    """The foreman of one life of an embedded node. `begin`, when clients are accepted; `end`, before the node stops."""

    def __init__(self, plans: Sequence[PoolPlan], data_dir: Path | None) -> None:
        """`data_dir`: has the records of workers; None: they are temporary."""
        self._plans = plans
        self._data_dir = data_dir
        self._foreman: ForemanProcess | None = None
        self._desk: ForemanDesk | None = None
        given = [plan.settings["grace_s"] for plan in plans if plan.template is not None]
        self.grace_s = float(max(given, default=0))
        self._foreman_s = self.grace_s + END_S
        self.end_s = 2 * self._foreman_s

    def begin(self, shell: NodeShell, log: NodeLog) -> None:
        """Raises OSError."""
        if not sys.platform.startswith("linux"):
            raise OSError("workers of Broker(pools=...) need Linux: start them by hand")
        temporary = Path(tempfile.mkdtemp(prefix="clusterbroker-workers-"))
        config = temporary / "pools.toml"
        config.touch(0o600)
        config.write_text(written(self._plans), encoding="utf-8", errors="surrogateescape")
        name, directory = shell.options.node.name, (self._data_dir or temporary).absolute() / "workers"
        words = [
            "--log-format", "library", "--log-level", "warning", "--grace-s", str(self.grace_s),
            "--temporary", str(temporary), "--own-output",
        ]  # fmt: skip
        self._foreman = ForemanProcess(name, directory, config, log, words)
        self._foreman.cluster = temporary.name if self._data_dir is None else shell.storage.parts.identity.disk_id
        self._foreman.begin(shell.loop)
        self._desk = ForemanDesk(shell, self._foreman)
        self._desk.begin()

    async def end(self) -> None:
        """Returns when no worker is left."""
        if self._desk is not None:
            self._desk.end()
        foreman, self._foreman, self._desk = self._foreman, None, None
        if foreman is not None:
            await foreman.end_workers(self._foreman_s)
